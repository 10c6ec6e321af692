"""Conversion: exact, plain, reported; or refused."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.convert.conversion import UnfinishedWarning
from resrep_tf.surgery.verify import compare, random_inputs
from support.checks import assert_prunes_exactly, outputs, perturb, randomise
from support.models.small import small_model


def wrapped(targets="all", **kwargs):
    pruner = resrep_tf.wrap(small_model(), targets, **kwargs)
    perturb(pruner, np.random.default_rng(0))
    return pruner


def zero_rows(compactor, rows, norm=0.0):
    kernel = np.array(compactor.kernel)
    for row in rows:
        kernel[:, row] *= norm / np.linalg.norm(kernel[:, row])
    compactor.kernel.assign(kernel)


def test_rows_below_epsilon_go_and_others_stay():
    pruner = wrapped()
    zero_rows(pruner.compactors[0], [1, 4])
    zero_rows(pruner.compactors[1], [0], norm=0.9e-5)
    zero_rows(pruner.compactors[1], [2], norm=1.1e-5)
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert slim.get_layer("conv1").filters == 4
    assert slim.get_layer("conv2").filters == slim.get_layer("conv3").filters == 4
    assert slim.get_layer("hidden").units == 4
    assert report.rows_dropped == 3
    assert report.largest_norm_dropped == pytest.approx(0.9e-5, rel=1e-4)
    assert report.difference < 1e-5
    wider = resrep_tf.convert(pruner, epsilon=2e-5)
    assert wider.get_layer("conv2").filters == 3


def test_the_pruner_is_not_changed():
    pruner = wrapped()
    before = [np.array(v) for v in pruner.variables]
    resrep_tf.convert(pruner, keep={"conv1": np.arange(6) < 3})
    for old, new in zip(before, pruner.variables, strict=True):
        np.testing.assert_array_equal(old, new)


def test_one_row_stays_even_if_all_are_zero():
    pruner = wrapped()
    pruner.compactors[0].kernel.assign(np.zeros((6, 6)))
    slim = resrep_tf.convert(pruner)
    assert slim.get_layer("conv1").filters == 1
    assert compare(outputs(pruner), outputs(slim)) < 1e-5


def test_keep_by_compactor_and_by_target():
    pruner = wrapped()
    keep = np.array([True, False, True, True, False, True])
    by_target = resrep_tf.convert(pruner, keep={"conv1": keep})
    by_name = resrep_tf.convert(pruner, keep={"conv1_compactor": keep})
    assert by_target.get_layer("conv1").filters == 4
    np.testing.assert_array_equal(outputs(by_target), outputs(by_name))


def test_drop_masked_reports_the_damage():
    pruner = wrapped()
    pruner.compactors[0].mask.assign([1, 1, 0, 1, 1, 1])
    with pytest.warns(UnfinishedWarning, match="1 of 1 masked channels"):
        assert resrep_tf.convert(pruner).get_layer("conv1").filters == 6
    slim, report = resrep_tf.convert(pruner, drop_masked=True, return_report=True)
    assert slim.get_layer("conv1").filters == 5
    norm = np.linalg.norm(np.asarray(pruner.compactors[0].kernel)[:, 2])
    assert report.largest_norm_dropped == pytest.approx(norm, rel=1e-5)
    x = random_inputs(pruner, pruner.graph.input_shapes, batch=64)
    change = compare(pruner(x, training=False), slim(x, training=False))
    assert report.damage == pytest.approx(change, rel=1e-4)
    assert report.damage > 1e-3
    assert "changed the outputs by" in str(report)


@pytest.mark.parametrize("fuse_bn", [True, False])
def test_fuse_bn(fuse_bn):
    model = small_model()
    pruner = resrep_tf.wrap(model, ["conv2"])
    with pytest.warns(UnfinishedWarning, match="nothing was removed"):
        slim = resrep_tf.convert(pruner, fuse_bn=fuse_bn)
    assert ("bn1" in {layer.name for layer in slim.layers}) != fuse_bn
    assert slim.get_layer("conv1").use_bias == fuse_bn
    assert compare(outputs(model), outputs(slim)) < 1e-5


def test_batchnorms_of_targets_are_always_merged():
    slim = resrep_tf.convert(wrapped(), keep={}, fuse_bn=False)
    assert "bn1" not in {layer.name for layer in slim.layers}


def test_output_layers_keep_their_names():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, activation="relu")(inputs)
    x = L.BatchNormalization(name="scores")(L.Conv2D(2, 1, name="last")(x))
    _, slim, _ = assert_prunes_exactly(keras.Model(inputs, x))
    assert slim.output_names == ["scores"]


@pytest.mark.parametrize("kind", ["matrix", "vector"])
def test_saving_and_exporting_without_custom_objects(kind, tmp_path):
    pruner = wrapped(compactor=kind)
    slim = resrep_tf.convert(pruner, keep={"conv1": np.arange(6) < 2})
    slim.save(tmp_path / "slim.keras")
    config = json.dumps(json.loads(slim.to_json()))
    assert "resrep_tf" not in config
    again = keras.models.load_model(tmp_path / "slim.keras")
    np.testing.assert_array_equal(outputs(slim), outputs(again))
    slim.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    x = np.random.default_rng(3).normal(size=(5, 8, 8, 3)).astype("float32")
    np.testing.assert_allclose(served.serve(x), slim(x), rtol=1e-5, atol=1e-6)


def test_a_reloaded_pruner_converts_alike(tmp_path):
    pruner = wrapped()
    zero_rows(pruner.compactors[0], [0, 5])
    pruner.save(tmp_path / "pruner.keras")
    again = keras.models.load_model(tmp_path / "pruner.keras")
    assert [c.targets for c in again.compactors] == [
        c.targets for c in pruner.compactors
    ]
    np.testing.assert_array_equal(
        outputs(resrep_tf.convert(pruner)), outputs(resrep_tf.convert(again))
    )


def test_a_channel_that_became_stuck_is_kept_and_named():
    """The compactor was put by hand where wrap would have refused to."""
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, name="conv")(inputs)
    x = resrep_tf.Compactor(["conv"], name="compactor")(x)
    x = L.BatchNormalization()(x)
    x = L.Conv2D(3, 3, padding="same", name="reader")(x)
    pruner = randomise(resrep_tf.ResRepModel(inputs, L.GlobalMaxPooling2D()(x)))
    zero_rows(pruner.compactors[0], [1, 2])
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert slim.get_layer("conv").filters == 4
    assert report.kept == {"`reader` (Conv2D) pads its input": 2}
    assert "2 channels had to stay" in str(report)
    assert compare(outputs(pruner), outputs(slim)) < 1e-5


def test_a_shared_reader_with_two_constants_is_refused():
    """One bias cannot hold two constants."""
    inputs = keras.Input((8, 8, 3))
    reader = L.Conv2D(3, 1, name="reader")
    x = L.Conv2D(4, 1, name="conv")(inputs)
    a, b = x + 1.0, x + 2.0
    x = L.Add()([reader(a), reader(b)])
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(L.Conv2D(2, 1)(x)))
    with pytest.raises(ValueError, match="is called more than once with one bias"):
        resrep_tf.wrap(model, ["conv"])


# === A run that could not finish ===


def test_masked_channels_that_are_not_forgotten_are_named():
    pruner = wrapped()
    pruner.compactors[0].mask.assign([0, 0, 0, 1, 1, 1])
    zero_rows(pruner.compactors[0], [0])
    zero_rows(pruner.compactors[0], [1], norm=0.25)
    zero_rows(pruner.compactors[0], [2], norm=0.5)
    with pytest.warns(UnfinishedWarning) as caught:
        slim, report = resrep_tf.convert(pruner, return_report=True)
    assert report.rows_dropped == 1 and slim.get_layer("conv1").filters == 5
    (warning,) = [w for w in caught if w.category is UnfinishedWarning]
    text = str(warning.message)
    assert "2 of 3 masked channels are not forgotten yet" in text
    assert "norm up to 0.5, epsilon 1e-05" in text
    assert "nothing was removed" not in text
    for advice in ('schedule="auto"', "snap=True", "drop_masked=True"):
        assert advice in text
    assert warning.filename == __file__


def test_a_model_that_stays_as_wide_as_it_was_is_named():
    with pytest.warns(
        UnfinishedWarning, match="nothing was removed. No channel is mas"
    ):
        resrep_tf.convert(wrapped())
    pruner = wrapped()
    pruner.compactors[0].mask.assign(np.zeros(6))
    with pytest.warns(UnfinishedWarning, match="nothing was removed. 6 of 6 masked"):
        resrep_tf.convert(pruner)


@pytest.mark.parametrize("arguments", [{"drop_masked": True}, {"keep": {}}])
def test_who_says_which_channels_go_is_not_warned(arguments):
    pruner = wrapped()
    pruner.compactors[0].mask.assign([0, 1, 1, 1, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfinishedWarning)
        resrep_tf.convert(pruner, **arguments)


# === Refusals ===


def test_a_compactor_that_no_layer_can_absorb():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = resrep_tf.Compactor(["conv"], name="odd")(x)
    pruner = resrep_tf.ResRepModel(inputs, L.GlobalMaxPooling2D()(x))
    with pytest.raises(ValueError, match=r"`odd` \(Compactor\) must stand directly"):
        resrep_tf.convert(pruner)


def test_verification_refuses_above_the_tolerance():
    with pytest.raises(ValueError, match=r"more than 1e-30.*Received: verify=1e-30"):
        resrep_tf.convert(wrapped(), verify=1e-30)


def test_unwrapped_models():
    with pytest.raises(TypeError, match="Received: pruner=<Functional"):
        resrep_tf.convert(small_model())


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"conv9": [True]}, "names no compactor or target layer: 'conv9'"),
        ({"conv1": [True, False]}, r"must be 6 booleans. Received: .*\(2,\)"),
        ({"conv1": np.ones(6)}, r"must be 6 booleans. Received: .*float64"),
    ],
)
def test_wrong_keep(keep, message):
    with pytest.raises(ValueError, match=message):
        resrep_tf.convert(wrapped(), keep=keep)


def test_diverged_pruner():
    pruner = wrapped()
    pruner.compactors[0].kernel.assign(np.full((6, 6), np.nan))
    with pytest.raises(ValueError, match="`conv1_compactor` with 6 NaN"):
        resrep_tf.convert(pruner)
