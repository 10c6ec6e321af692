"""What half of the channels are worth in networks as people publish them."""

import pytest

import resrep_tf
from support.checks import assert_prunes_exactly, every_second
from support.models.published import PUBLISHED

QUICK = ("ResNeXt",)


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PUBLISHED],
)
def test_half_of_all_channels_are_half_of_the_flops_or_more(name):
    model = resrep_tf.trace(PUBLISHED[name](), (32, 32, 3))
    _, _, report = assert_prunes_exactly(model, choose=every_second)
    assert not report.kept
    assert report.new_flops <= 0.5 * report.flops
