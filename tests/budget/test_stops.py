"""Widths at which a network is faster, which a selection stops at."""

import numpy as np
import pytest

import resrep_tf
from resrep_tf.budget.base import Meter
from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency import LatencyMeter
from resrep_tf.selection.importance import ranks
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.selection import Constraints, select
from support.latency import made_up_table, wide_model


class Staircase(LatencyMeter):
    """The latency of one layer, at each of its widths."""

    def __init__(self, times):
        self.times, self._stops = np.array(times), {}
        Meter.__init__(self, [(np.arange(len(times) - 1),)], len(times) - 1)

    def _price(self, part, widths):
        return self.times[widths[0]]


@pytest.mark.parametrize(
    "times, counts, expected",
    [
        # A width that saves nothing is passed over, from wherever one starts.
        ([0, 4, 4, 4, 4, 8, 8, 8, 8, 12], range(8, 0, -1), [8, 4, 1]),
        ([0, 4, 4, 4, 4, 8, 8], range(5, 0, -1), [4, 1]),
        # Small steps that save nearly as much as a full bundle are worth it.
        ([0, 10, 20, 30, 41, 50, 60, 70, 81], range(7, 0, -1), [7, 6, 5, 4, 3, 2, 1]),
        # Only what may be left is looked at, and the last of it always stays.
        ([0, 4, 4, 4, 4, 8, 8, 8, 8], [6, 4, 2], [4, 2]),
        # A narrower layer may be slower; beyond the hump it is faster.
        ([0, 1, *[9] * 34, 5], range(35, 0, -1), [1]),
        ([0, 9, 9, 9, 5], range(3, 0, -1), [1]),
        ([0, 4, 8], [], []),
    ],
)
def test_widths_worth_stopping_at(times, counts, expected):
    meter = Staircase(times)
    channels = np.random.default_rng(0).permutation(len(times) - 1)
    counts = np.array(list(counts), np.int64)
    assert meter.stops(channels, counts).tolist() == expected


@pytest.mark.parametrize("gone", [0, 1, 15, 16])
def test_a_channel_saves_its_share_of_a_bundle(gone):
    graph = resrep_tf.ChannelGraph(wide_model(64))
    meter = LatencyMeter(made_up_table(graph, overhead=0.0, share=1.0), graph)
    first = next(s.channels for s in graph.spaces if s.prunable)
    meter.remove_all(first[:gone])
    bundle = first[gone : gone + 32]
    before = meter.current
    rate = meter.rate(int(bundle[0]))
    assert meter.current == before and meter.rate(int(bundle[0])) == rate > 0
    meter.remove_all(bundle)
    assert rate == pytest.approx((before - meter.current) / 32)
    assert meter.rate(int(bundle[0])) == 0


def test_importance_goes_by_what_a_bundle_saves():
    graph = resrep_tf.ChannelGraph(wide_model(64))
    rows = RowChannels.of(graph, [s.channels for s in graph.spaces if s.prunable])
    table = made_up_table(graph, overhead=0.0, share=1.0)
    goals = Goals(latency_target=0.5, latency_table=table).budget(graph)
    # Of equally important channels, those of the dearest layer go first, and where a
    # layer is in its bundle makes no difference.
    importance = [np.ones(len(ids)) for ids in rows]
    for gone in (0, 1):
        masks = [np.ones(len(ids)) for ids in rows]
        masks[0][:gone] = 0
        goals.reset()
        rates = [goals.share(int(ids[-1])) for ids in rows]
        found = ranks(importance, rows, goals, masks)
        order = np.argsort([ranked[gone:].min() for ranked in found])
        assert order.tolist() == np.argsort(rates)[::-1].tolist()


def selected(meter, spaces, norms, **constraints):
    chosen = select(norms, spaces, meter, Constraints(0.3, **constraints))
    assert chosen.target_met and meter.current <= 0.7 * meter.total
    return chosen


def test_selection_by_latency_stops_where_the_network_is_faster():
    model = wide_model(64)
    graph = resrep_tf.ChannelGraph(model)
    spaces = [s.channels for s in graph.spaces if s.prunable]
    rng = np.random.default_rng(0)
    norms = [rng.random(len(channels)) for channels in spaces]
    table = made_up_table(graph, overhead=0.0, share=1.0)
    chosen = selected(LatencyMeter(table, graph), spaces, norms)
    assert all(width % 16 == 0 for width in chosen.widths)
    assert set(chosen.widths) != set(map(len, spaces))
    again = selected(LatencyMeter(table, graph), spaces, norms)
    for one, other in zip(chosen.masks, again.masks, strict=True):
        np.testing.assert_array_equal(one, other)
    # The user's own wishes hold as well.
    chosen = selected(LatencyMeter(table, graph), spaces, norms, round_to=6)
    for width, ids in zip(chosen.widths, spaces, strict=True):
        assert width % 6 == 0 or width == len(ids)
    chosen = selected(LatencyMeter(table, graph), spaces, norms, min_width=20)
    assert min(chosen.widths) >= 20
    # At the same latency, the network that stops anywhere has fewer channels.
    plain = LatencyMeter(table, graph)
    plain.stops = lambda channels, counts: counts
    assert sum(selected(plain, spaces, norms).widths) < sum(
        selected(LatencyMeter(table, graph), spaces, norms).widths
    )


def test_other_targets_hold_beside_the_latency():
    graph = resrep_tf.ChannelGraph(wide_model(64))
    spaces = [s.channels for s in graph.spaces if s.prunable]
    norms = [np.random.default_rng(0).random(len(channels)) for channels in spaces]
    table = made_up_table(graph, overhead=0.0, share=1.0)
    for targets in ((0.6, None, 0.2), (0.1, 0.6, 0.2), (None, 0.1, 0.6)):
        budget = Goals(*targets, table).budget(graph)
        chosen = select(norms, spaces, budget, Constraints())
        assert chosen.target_met and not budget.unmet()
        assert all(width % 16 == 0 for width in chosen.widths)
