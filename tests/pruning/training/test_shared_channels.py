"""Grouped and partly shared channels through training, shrinking and baselines."""

import keras
import numpy as np
import pytest

import resrep_tf
from resrep_tf.baselines import criteria
from resrep_tf.budget.parameters import ParametersMeter
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.surgery.verify import compare
from support.checks import outputs, randomise
from support.models.shared_channels import (
    GRAPHS,
    grouped,
    padded_shortcuts,
    side_by_side,
)

SOME = [grouped, side_by_side, padded_shortcuts]


def trained(model, **targets):
    pruner = resrep_tf.wrap(randomise(model), "all")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pruner.compile(keras.optimizers.SGD(0.05), loss, snap=True)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 6, 6, 3)).astype("float32"), np.arange(160) % 3
    selection = resrep_tf.ChannelSelection(**targets, warmup_steps=2)
    pruner.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[selection])
    return pruner, selection, x


@pytest.mark.parametrize(
    "build", [grouped, *(pytest.param(b, marks=pytest.mark.slow) for b in SOME[1:])]
)
def test_training_reaches_the_target_that_conversion_keeps(build):
    pruner, _, x = trained(build(), flops_target=0.4, params_target=0.3)
    state = float(pruner.state.flops_removed)
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert not report.kept and report.difference < 1e-5
    assert report.flops_removed == pytest.approx(state, abs=1e-6) and state >= 0.4
    assert resrep_tf.count_flops(slim) == report.new_flops
    meter = ParametersMeter.of(pruner.graph)
    masks = [np.asarray(compactor.mask) for compactor in pruner.compactors]
    for channel in pruner.compactor_channels().masked(masks):
        meter.remove(channel)
    assert slim.count_params() == meter.current <= 0.7 * meter.total
    narrow, shrunk = resrep_tf.shrink(pruner, x[:32], return_report=True)
    assert shrunk.new_flops == report.new_flops and shrunk.difference < 1e-4
    assert compare(outputs(slim), outputs(narrow)) < 1e-4


@pytest.mark.parametrize("build", SOME)
@pytest.mark.parametrize("criterion", ["l1", "random", "bn_gamma"])
def test_criteria_remove_what_the_budget_predicts(build, criterion):
    model = randomise(build())
    scores = criteria.score(model, criterion, "all")
    assert {n: len(s) for n, s in scores.items()} == {
        n: getattr(model.get_layer(n), "filters", None) for n in scores
    }
    slim = criteria.prune_by_scores(model, scores, 0.5, "all")
    assert resrep_tf.count_flops(slim) <= 0.5 * resrep_tf.count_flops(model)
    assert np.isfinite(np.asarray(outputs(slim))).all()
    widths = {c.name: c.filters for c in slim.layers if hasattr(c, "filters")}
    assert all(width > 0 for width in widths.values())


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_gets_stuck_at_the_narrowest(name):
    """With all channels masked that may be, exactly what was predicted goes."""
    model = randomise(GRAPHS[name]())
    explained = resrep_tf.explain(model)
    target = 1 - explained.smallest_flops_all / explained.flops
    pruner = resrep_tf.wrap(model, "all")
    selection = resrep_tf.ChannelSelection(target - 1e-9, schedule="paper")
    selection.set_model(pruner)
    selection.set_params({"steps": 10, "epochs": 10})
    pruner.compile("sgd", "mse")
    selection.on_train_begin()
    pruner.state.selection_limit.assign(10**6)
    chosen = selection.select()
    assert chosen.target_met
    slim, report = resrep_tf.convert(
        pruner, drop_masked=True, verify=False, return_report=True
    )
    assert not report.kept
    assert report.new_flops == explained.smallest_flops_all
    assert resrep_tf.count_flops(slim) == report.new_flops


def test_a_compactor_with_groups_maps_each_to_itself(tmp_path):
    layer = Compactor(groups=3, axis=1)
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("float32")
    np.testing.assert_array_equal(layer(x), x)
    assert layer.kernel.shape == (2, 6) and layer.width == 6
    layer.kernel.assign(np.arange(12.0).reshape(2, 6))
    matrix = layer.matrix()
    assert np.count_nonzero(matrix) == 11
    np.testing.assert_array_equal(matrix[2:4, 2:4], [[2, 3], [8, 9]])
    expected = np.einsum("bcx,cd->bdx", x, matrix)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)
    again = Compactor.from_config(layer.get_config())
    assert again.groups == 3
    # Files of older versions say nothing about groups.
    assert "groups" not in Compactor().get_config()
    pruner = resrep_tf.wrap(randomise(grouped()), "all")
    pruner.save(tmp_path / "pruner.keras")
    loaded = keras.models.load_model(tmp_path / "pruner.keras")
    assert compare(outputs(pruner), outputs(loaded)) == 0.0
    assert [c.groups for c in loaded.compactors] == [
        c.groups for c in pruner.compactors
    ]
