import doctest
import runpy
from pathlib import Path

import numpy as np
import pytest

from resrep_tf.budget import flops
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.terms import Term, count, count_by_name

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "selection.py"

# The authors' network with 54.5 % fewer FLOPs: the widths of both internal
# convolutions of every block.
PUBLISHED_WIDTHS = (
    *(22, 22, 23, 36, 1, 1),
    *(62, 97, 16, 49, 38, 68, 41, 92),
    *(189, 204, 69, 145, 65, 139, 64, 94, 67, 89, 86, 95),
    *(473, 488, 171, 281, 511, 512),
)


def random_terms(rng, num_channels):
    """Terms of 0 to 3 factors, with repeats within a factor and between factors."""
    return [
        Term(
            f"layer{rng.integers(4)}",
            int(rng.integers(0, 50)),
            tuple(
                rng.integers(0, num_channels, rng.integers(0, 8))
                for _ in range(rng.integers(0, 4))
            ),
        )
        for _ in range(rng.integers(1, 8))
    ]


def count_plainly(terms, removed):
    """What `count` must return, in loops that leave nothing to argue about."""
    total = 0
    for term in terms:
        product = term.coefficient
        for ids in term.factors:
            width = 0
            for channel in ids:
                if channel not in removed:
                    width += 1
            product *= width
        total += product
    return total


@pytest.mark.parametrize("seed", range(30))
def test_count_and_meter_agree_with_plain_loops(seed):
    rng = np.random.default_rng(seed)
    num_channels = int(rng.integers(1, 12))
    terms = random_terms(rng, num_channels)
    meter = FlopsMeter(terms, num_channels)
    assert meter.total == count(terms) == count_plainly(terms, set())
    for _ in range(2):
        meter.reset()
        assert meter.current == meter.total
        removed = set()
        for channel in rng.permutation(num_channels):
            before = meter.current
            cost = meter.cost(channel)
            assert meter.current == before  # Asking for the price changes nothing.
            meter.remove(channel)
            removed.add(channel)
            keep = ~np.isin(np.arange(num_channels), list(removed))
            expected = count_plainly(terms, removed)
            assert meter.current == expected == count(terms, keep)
            assert cost == before - expected
            assert meter.cost(channel) == 0


def test_channel_in_both_factors():
    # A convolution within one residual stream: n x n becomes (n - 1) x (n - 1).
    meter = FlopsMeter([Term("conv", 9, (np.arange(4), np.arange(4)))], 4)
    assert meter.cost(2) == 9 * (16 - 9)
    meter.remove(2)
    assert meter.current == 9 * 9


def test_repeats_within_a_factor():
    # Flatten of 3 x 3 positions of 2 channels into a Dense layer of 5 units.
    terms = [Term("dense", 1, (np.tile([0, 1], 9), np.arange(2, 7)))]
    meter = FlopsMeter(terms, 7)
    assert meter.total == 90
    assert meter.cost(1) == 45
    assert meter.cost(6) == 18


def test_exact_beyond_the_range_of_floats_and_of_int64():
    coefficient = 10**18 + 1
    meter = FlopsMeter([Term("huge", coefficient, (np.arange(99), [99, 100]))], 101)
    meter.remove(0)
    assert meter.current == 98 * 2 * coefficient
    assert count([Term("huge", coefficient, (np.arange(99), [99]))]) == 99 * coefficient


def test_count_by_name_sums_the_terms_of_a_layer():
    terms = [
        Term("b", 2, ([0, 1],)),
        Term("a", 3, ([0], [1])),
        Term("b", 5, ()),
    ]
    assert count_by_name(terms) == {"b": 9, "a": 3}
    assert list(count_by_name(terms)) == ["b", "a"]
    assert count_by_name(terms, np.array([True, False])) == {"b": 7, "a": 0}


def test_resnet50_golden_numbers():
    terms, spaces, num_channels = runpy.run_path(str(BENCHMARK))["resnet50"]()
    assert sum(map(len, spaces)) == 7552
    assert count(terms) == 4_089_184_256
    keep = np.ones(num_channels, bool)
    meter = FlopsMeter(terms, num_channels)
    for channels, width in zip(spaces, PUBLISHED_WIDTHS, strict=True):
        keep[channels[width:]] = False
        for channel in channels[width:]:
            meter.remove(channel)
    assert meter.current == count(terms, keep)
    assert round(meter.current / meter.total, 4) == 0.4546


def test_term_leaves_its_arguments_alone_and_prints():
    ids = np.arange(3, dtype=np.int32)
    term = Term("conv", 49, (ids, [0, 1]))
    ids[0] = 2
    assert term.factors[0].tolist() == [0, 1, 2]
    assert str(term) == "conv: 49 x 3 x 2 = 294 MACs"
    assert repr(FlopsMeter([term], 3)) == "FlopsMeter(current=294 of 294 FLOPs)"


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"`coefficient`.*Received: coefficient=-1"):
        Term("conv", -1, ())
    with pytest.raises(ValueError, match=r"`factors`.*Received: .*float64"):
        Term("conv", 1, ([0.5],))
    with pytest.raises(ValueError, match=r"`factors`.*Received: -2"):
        Term("conv", 1, ([0, -2],))
    terms = [Term("conv", 1, ([0, 3],))]
    with pytest.raises(ValueError, match=r"'conv' has channel 3.*num_channels=3"):
        FlopsMeter(terms, 3)
    meter = FlopsMeter(terms, 4)
    meter.remove(3)
    with pytest.raises(ValueError, match=r"`channel`.*already.*Received: channel=3"):
        meter.remove(3)
    for method in (meter.remove, meter.cost):
        for channel in (-1, 4):
            with pytest.raises(ValueError, match=f"Received: channel={channel}"):
                method(channel)


def test_examples_in_the_docstrings():
    results = doctest.testmod(flops, extraglobs={"np": np})
    assert results.attempted > 0
    assert results.failed == 0
