"""Shrinking: the same in inference, trainable, and going on where the pruner was."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.shrinking.shrinking import shrink
from resrep_tf.surgery.verify import compare
from support.checks import (
    TOLERANCE,
    alive,
    assert_plain,
    difference,
    example,
    leaves,
    outputs,
    perturb,
    precision,
    randomise,
)
from support.models.graphs import GRAPHS, chain, forgetful, residual
from support.models.networks import NETWORKS, SMALL
from support.models.random_models import BATCH, check_batch, random_model
from support.models.small import small_model

BATCHNORM = keras.layers.BatchNormalization

# Some random graphs have nothing that was forgotten.
pytestmark = [
    pytest.mark.filterwarnings("ignore::resrep_tf.convert.UnfinishedWarning"),
    pytest.mark.filterwarnings("ignore:The shrunk model is as wide as before"),
]


def batchnorms(model):
    return {layer.name for layer in leaves(model) if isinstance(layer, BATCHNORM)}


def assert_shrinks(model, targets="all", kind="matrix", seed=0, dtype="float32"):
    """Checks the whole path; returns the pruner, the narrower model and the report."""
    pruner = forgetful(model, targets, kind, seed)
    before = [np.array(v) for v in pruner.variables]
    expected = outputs(pruner)
    slim, report = shrink(pruner, example(model, 5), verify=False, return_report=True)
    assert difference(pruner, expected, slim, dtype) <= TOLERANCE[dtype]
    assert_plain(slim)
    drawn = resrep_tf.trace(model)
    assert batchnorms(slim) == batchnorms(drawn)
    lost = {layer.name for layer in drawn.layers} - {x.name for x in slim.layers}
    assert {layer.name for layer in slim.layers} <= {x.name for x in drawn.layers}
    for name in lost:  # A narrower shuffle picks channels by their numbers.
        assert isinstance(drawn.get_layer(name), (L.Reshape, L.Permute))
    plain = resrep_tf.convert(pruner, fuse_bn=False, verify=False)
    assert report.new_flops == resrep_tf.count_flops(slim)
    assert report.new_flops == resrep_tf.count_flops(plain)
    for old, new in zip(before, pruner.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    return pruner, slim, report


# === Graphs ===


@pytest.mark.parametrize("number, name", list(enumerate(GRAPHS)))
def test_shrinks_exactly(number, name):
    # Three of four random graphs below are in float32, too.
    dtype = "float32" if number % 3 == 0 else "float64"
    with precision(dtype):
        pruner, slim, report = assert_shrinks(GRAPHS[name](), dtype=dtype)
    assert alive(outputs(slim))
    assert report.new_flops < report.flops
    assert len(report.widths) == sum(len(c.targets) for c in pruner.compactors)


@pytest.mark.parametrize("kind", ["vector", "filters"])
def test_other_kinds_of_compactors(kind):
    model = randomise(chain())
    pruner = resrep_tf.wrap(model, None, kind)
    for compactor in pruner.compactors:
        compactor.rows.assign(
            np.asarray(compactor.rows) * (np.arange(compactor.width) > 1)
        )
    slim, report = shrink(pruner, example(model), return_report=True)
    assert slim.get_layer("conv1").filters == 4
    assert report.rows_dropped == 4 and report.difference < 1e-5
    # A filter that is zero still leaves the constant of its BatchNorm behind.
    assert (report.damage > 1e-3) == (kind == "filters")


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    pruner = forgetful(residual())
    keras.config.set_dtype_policy("float32")
    slim, report = shrink(pruner, example(pruner), return_report=True)
    assert report.difference < 0.05
    assert slim.layers[1].compute_dtype == "bfloat16"
    for layer in slim.layers[1:]:
        assert layer.dtype_policy == pruner.get_layer(layer.name).dtype_policy
    keras.config.set_dtype_policy("mixed_float16")
    slim.compile(keras.optimizers.SGD(0.01), "mse")
    slim.train_on_batch(example(pruner), np.zeros((8, 3)))
    assert all(np.isfinite(np.asarray(v)).all() for v in slim.variables)


def test_batchnorms_and_flags_are_those_of_the_model():
    model = chain(momentum=0.7, epsilon=0.02, gamma_regularizer="l2")
    model.get_layer("conv1").trainable = False
    model.get_layer("bn2").trainable = False
    model.get_layer("conv2").kernel_regularizer = keras.regularizers.L2(0.01)
    _, slim, report = assert_shrinks(model)
    assert report.restored == ("bn1", "bn2")
    assert slim.get_layer("conv1").trainable is False
    assert slim.get_layer("bn2").trainable is False
    assert slim.get_layer("bn1").trainable and slim.get_layer("conv2").trainable
    assert slim.get_layer("conv2").kernel_regularizer.l2 == pytest.approx(0.01)
    assert slim.get_layer("bn1").get_config() == model.get_layer("bn1").get_config()
    assert not slim.get_layer("conv1").use_bias


def test_other_batchnorms_stay():
    pruner, slim, report = assert_shrinks(chain(), targets=["conv2"])
    assert report.restored == ("bn2",)
    for name in ("conv1", "bn1"):
        old, new = pruner.get_layer(name), slim.get_layer(name)
        for a, b in zip(old.get_weights(), new.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_batchnorm_of_two_layers_stays():
    """The compactors stand in front of it, and are merged as by conversion."""
    inputs = keras.Input((8, 8, 3))
    norm = L.BatchNormalization(name="norm")
    x = L.Add()([norm(L.Conv2D(4, 1)(inputs)), norm(L.Conv2D(4, 1)(inputs))])
    x = L.GlobalAveragePooling2D()(L.Conv2D(3, 1)(L.ReLU()(x)))
    _, slim, report = assert_shrinks(keras.Model(inputs, x))
    assert report.restored == ()
    assert slim.get_layer("norm").moving_mean.shape[0] < 4


def test_a_channel_that_has_to_stay_keeps_its_filter():
    """The compactor was put by hand where wrap would have refused to."""
    inputs = keras.Input((8, 8, 3))
    x = L.BatchNormalization(name="bn")(L.Conv2D(4, 3, name="conv")(inputs))
    x = resrep_tf.Compactor(["conv"], name="compactor")(x)
    x = L.BatchNormalization()(x)
    x = L.Conv2D(3, 3, padding="same", name="reader")(x)
    pruner = randomise(resrep_tf.ResRepModel(inputs, L.GlobalMaxPooling2D()(x)))
    pruner.compactors[0].kernel.assign(np.diag([1.0, 0.0, 2.0, 0.0]))
    pruner.compactors[0].mask.assign([1.0, 0.0, 1.0, 0.0])
    slim, report = shrink(pruner, example(pruner), return_report=True)
    assert report.kept == {"`reader` (Conv2D) pads its input": 2}
    assert compare(outputs(pruner), outputs(slim)) < 1e-5
    np.testing.assert_array_equal(np.asarray(slim.get_layer("bn").gamma)[[1, 3]], 0)
    for row in (1, 3):
        np.testing.assert_array_equal(
            np.asarray(slim.get_layer("conv").kernel)[..., row],
            np.asarray(pruner.get_layer("conv").kernel)[..., row],
        )


# === Refusals ===


def test_masked_rows_must_be_forgotten():
    pruner = resrep_tf.wrap(small_model(), "all")
    perturb(pruner, np.random.default_rng(0))
    x = example(pruner)
    kernel = np.array(pruner.compactors[0].kernel)
    kernel[:, 1] = 0
    pruner.compactors[0].kernel.assign(kernel)
    pruner.compactors[0].mask.assign([1, 0, 0, 1, 0, 1])
    with pytest.raises(ValueError, match="Received: 2 of 3 masked channels are not"):
        shrink(pruner, x)
    slim, report = shrink(pruner, x, unforgotten="keep", return_report=True)
    assert report.widths["conv1"] == (6, 5)
    assert report.damage == 0 and compare(outputs(pruner), outputs(slim)) < 1e-5
    slim, report = shrink(pruner, x, unforgotten="drop", return_report=True)
    assert report.widths["conv1"] == (6, 3)
    assert report.damage > 1e-3 and "changed the outputs by" in str(report)
    assert report.largest_norm_dropped > 0.1
    with pytest.raises(ValueError, match="Received: unforgotten='leave'"):
        shrink(pruner, x, unforgotten="leave")


def test_nothing_to_shrink_is_said():
    model = randomise(chain())
    pruner = resrep_tf.wrap(model)
    with pytest.warns(UserWarning, match="as wide as before: nothing was removed"):
        slim = shrink(pruner, example(pruner))
    assert resrep_tf.count_flops(slim) == resrep_tf.count_flops(model)


def test_other_refusals():
    pruner = forgetful(chain())
    x = example(pruner)
    with pytest.raises(TypeError, match="Received: pruner=<Functional"):
        shrink(small_model(), x)
    with pytest.raises(ValueError, match=r"more than 1e-30.*Received: verify=1e-30"):
        shrink(pruner, x, verify=1e-30)
    with pytest.raises(ValueError, match=r"Received: data=\[\] without any"):
        shrink(pruner, [])
    with pytest.raises(TypeError, match="Received: data=None"):
        shrink(pruner, None)
    with pytest.raises(ValueError, match="Received: batches=0"):
        shrink(pruner, x, batches=0)
    with pytest.raises(ValueError, match="`bn1` does not get finite values"):
        shrink(pruner, np.full_like(x, np.nan))
    pruner.compactors[0].kernel.assign(np.full((6, 6), np.nan))
    with pytest.raises(ValueError, match="`conv1_compactor` with 6 NaN"):
        shrink(pruner, x)


def test_report():
    _, slim, report = assert_shrinks(chain())
    assert report.new_params == slim.count_params()
    assert f"{report.flops:,} -> {report.new_flops:,}" in str(report)
    assert "2 BatchNorms restored on 1 batches" in str(report)


# === Going on ===


def test_saving_and_exporting_without_custom_objects(tmp_path):
    _, slim, _ = assert_shrinks(residual())
    assert "resrep_tf" not in json.dumps(json.loads(slim.to_json()))
    slim.save(tmp_path / "slim.keras")
    again = keras.models.load_model(tmp_path / "slim.keras")
    np.testing.assert_array_equal(outputs(slim), outputs(again))
    slim.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(
        served.serve(example(slim)), outputs(slim), rtol=1e-5, atol=1e-6
    )


def test_it_trains_and_can_be_wrapped_again():
    _, slim, _ = assert_shrinks(chain())
    x = example(slim)
    y = np.random.default_rng(0).normal(size=(8, 3))
    slim.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    before = [np.array(v) for v in slim.trainable_variables]
    losses = slim.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    for old, new in zip(before, slim.trainable_variables, strict=True):
        assert np.abs(old - new).max() > 0
    again = resrep_tf.wrap(slim)
    assert compare(outputs(slim), outputs(again)) < 1e-5


# === Many graphs, and networks that people have ===


def check(seed):
    """Returns whether there was something to prune, and the outputs are alive."""
    dtype = "float64" if seed % 4 == 0 else "float32"
    with precision(dtype):
        model = random_model(seed)
        if not any(space.prunable for space in ChannelGraph(model).spaces):
            return False
        kind = "vector" if seed % 5 == 0 else "matrix"
        _, slim, _ = assert_shrinks(model, kind=kind, seed=seed, dtype=dtype)
    return alive(outputs(slim))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 220, BATCH))
def test_many_random_graphs(first):
    check_batch(check, first)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_networks(name):
    # In float32 deep networks amplify rounding beyond 1e-5. But this one computes its
    # norms in float32 whatever its precision is.
    dtype = "float32" if name == "keras_hub.MobileNetV5" else "float64"
    with precision(dtype):
        _, _, report = assert_shrinks(NETWORKS[name].build(), dtype=dtype)
    assert report.new_flops < 0.95 * report.flops
