"""Channels that stand at several positions, or are shared in part, prune exactly."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from support.checks import assert_prunes_exactly, precision
from support.models.shared_channels import GRAPHS, grouped, shuffled, side_by_side


@pytest.mark.parametrize("name", GRAPHS)
def test_every_layer_but_the_head_loses_channels_exactly(name):
    check(GRAPHS[name], "float32", "matrix")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["matrix", "vector"])
@pytest.mark.parametrize("name", GRAPHS)
def test_also_in_float64_with_both_kinds_and_once_more(name, kind):
    with precision("float64"):
        slim = check(GRAPHS[name], "float64", kind)
        assert_prunes_exactly(slim, seed=3, dtype="float64")


def check(build, dtype, kind):
    model = build()
    held = [s for s in ChannelGraph(model).spaces if not s.prunable]
    assert [s.reason for s in held] == ["it is an output of the model"]
    _, slim, report = assert_prunes_exactly(
        model, kind=kind, fuse_bn=kind == "matrix", dtype=dtype
    )
    assert report.new_flops < 0.85 * report.flops
    return slim


def test_groups_keep_equal_widths():
    model = grouped()
    _, before, behind, *_ = (p.channels.tolist() for p in ChannelGraph(model).producers)
    assert before == 3 * before[:4] and len(set(before)) == 4
    assert behind == 3 * behind[:6] and len(set(behind)) == 6
    pruner, slim, _ = assert_prunes_exactly(model)
    assert [c.groups for c in pruner.compactors] == [1, 1, 3, 1, 3]
    for layer in slim.layers:
        if getattr(layer, "groups", 1) > 1:
            assert layer.groups == 3 and layer.filters % 3 == 0
            assert layer.filters < 18 or layer.kernel.shape[-2] < 4


def test_flops_and_parameters_of_groups_are_counted_exactly():
    """Also where the number of positions cannot be divided by that of groups."""
    inputs = keras.Input((5, 5, 4))
    model = keras.Model(inputs, L.Conv2D(6, 3, padding="same", groups=2)(inputs))
    assert resrep_tf.count_flops(model) == 5 * 5 * 3 * 3 * 2 * 6
    assert resrep_tf.explain(model).params == model.count_params()


def test_a_compactor_belongs_to_layers_with_the_same_channels():
    model = side_by_side()
    pruner = resrep_tf.wrap(model, "all")
    assert all(len(compactor.targets) == 1 for compactor in pruner.compactors)
    (space,) = [s for s in ChannelGraph(model).spaces if len(s.layouts) > 1]
    assert not space.internal and space.width == 7


def test_a_channel_goes_when_all_its_rows_are_zero():
    pruner = resrep_tf.wrap(side_by_side(), "all")
    alone = next(c for c in pruner.compactors if c.width == 4)
    both = next(c for c in pruner.compactors if c.width == 7)
    keep = {alone.name: np.arange(4) > 0}
    slim = resrep_tf.convert(pruner, keep=keep)
    assert slim.get_layer(alone.targets[0]).filters == 4
    keep[both.name] = np.arange(7) > 0
    slim = resrep_tf.convert(pruner, keep=keep)
    assert slim.get_layer(alone.targets[0]).filters == 3
    assert slim.get_layer(both.targets[0]).filters == 6


def test_a_shuffle_stays_as_it_is_where_nothing_goes():
    model = shuffled()
    pruner = resrep_tf.wrap(model)
    keep = {c.name: np.ones(c.width, bool) for c in pruner.compactors}
    kinds = {
        type(op).__name__ for op in resrep_tf.convert(pruner, keep=keep).operations
    }
    assert "Take" not in kinds and {"Transpose", "Permute"} <= kinds
    keep[pruner.compactors[0].name][0] = False
    kinds = {
        type(op).__name__ for op in resrep_tf.convert(pruner, keep=keep).operations
    }
    assert "Take" in kinds and not {"Transpose", "Permute"} & kinds


def test_what_reads_channels_along_two_axes_is_pinned():
    inputs = keras.Input((4, 4, 3))
    x = L.Reshape((4, 4, 2, 3))(L.Conv2D(6, 1, name="target")(inputs))
    x = L.Reshape((4, 4, 6))(L.ReLU(name="between")(x))
    model = keras.Model(inputs, L.Conv2D(2, 1)(x))
    reason = ChannelGraph(model).spaces[0].reason
    assert "`between` (ReLU) reads channels that lie along several axes" in reason


def test_what_moves_more_than_channels_is_pinned():
    inputs = keras.Input((4, 4, 3))
    x = L.Reshape((4, 4, 2, 3))(L.Conv2D(6, 1, name="target")(inputs))
    x = L.Reshape((4, 4, 6))(L.Permute((2, 1, 4, 3), name="turn")(x))
    graph = ChannelGraph(keras.Model(inputs, L.Conv2D(2, 1)(x)))
    assert "do not stay apart in `turn`" in graph.spaces[0].reason


def test_channels_that_could_only_go_all_at_once_are_pinned():
    inputs = keras.Input((4, 4, 3))
    x = L.Conv2D(4, 1, name="target")(inputs)
    x = L.Concatenate()([x, x[..., 1:], x[..., :1]])  # Each tied to the next.
    graph = ChannelGraph(keras.Model(inputs, L.Conv2D(2, 1, groups=2)(x)))
    assert "could only go all at once" in graph.spaces[0].reason
