"""Shrinking: the same in inference, trainable, and going on where the pruner was."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.restoring import rescale
from resrep_tf.pruning.shrinking import shrink
from resrep_tf.surgery.verify import compare
from support.checks import (
    TOLERANCE,
    alive,
    assert_plain,
    example,
    forget_at_random,
    leaves,
    outputs,
    perturb,
    precision,
    randomise,
)
from support.networks import NETWORKS
from support.random_models import random_model
from support.small import small_model

BATCH = 20
BATCHNORM = keras.layers.BatchNormalization


def batchnorms(model):
    return {layer.name for layer in leaves(model) if isinstance(layer, BATCHNORM)}


def forgetful(model, targets="all", kind="matrix", seed=0):
    """A pruner of a randomised model about half of whose rows are zero."""
    pruner = resrep_tf.wrap(randomise(model, seed), targets, kind)
    forget_at_random(pruner, np.random.default_rng(seed))
    return pruner


def assert_shrinks(model, targets="all", kind="matrix", seed=0, dtype="float32"):
    """Checks the whole path; returns the pruner, the narrower model and the report."""
    pruner = forgetful(model, targets, kind, seed)
    before = [np.array(v) for v in pruner.variables]
    expected = outputs(pruner)
    slim, report = shrink(pruner, example(model, 5), verify=False, return_report=True)
    assert compare(expected, outputs(slim)) <= TOLERANCE[dtype]
    assert_plain(slim)
    assert batchnorms(slim) == batchnorms(model)
    assert {layer.name for layer in slim.layers} == {x.name for x in model.layers}
    plain = resrep_tf.convert(pruner, fuse_bn=False, verify=False)
    assert report.new_flops == resrep_tf.count_flops(slim)
    assert report.new_flops == resrep_tf.count_flops(plain)
    for old, new in zip(before, pruner.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    return pruner, slim, report


# === Graphs by hand ===


def chain(**options):
    """Two convolutions with BatchNorms, and a head; `options` are the BatchNorms'."""
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, use_bias=False, name="conv1")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn1", **options)(x))
    x = L.Conv2D(5, 3, use_bias=False, name="conv2")(x)
    x = L.ReLU()(L.BatchNormalization(name="bn2", **options)(x))
    return keras.Model(inputs, L.Dense(3, name="head")(L.GlobalMaxPooling2D()(x)))


def with_bias():
    inputs = keras.Input((8, 8, 3))
    x = L.BatchNormalization(epsilon=1.001e-5)(L.Conv2D(6, 3)(inputs))
    x = L.BatchNormalization()(L.Conv2D(5, 3)(L.ReLU()(x)))
    return keras.Model(inputs, L.GlobalAveragePooling2D()(L.Conv2D(3, 1)(x)))


def residual():
    inputs = keras.Input((8, 8, 3))
    x = stem = L.BatchNormalization()(L.Conv2D(6, 3, padding="same")(inputs))
    for _ in range(2):
        y = L.ReLU()(L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(x)))
        y = L.BatchNormalization()(L.Conv2D(6, 3, padding="same", use_bias=False)(y))
        x = L.ReLU()(L.Add()([x, y]))
    x = L.Add()([x, stem])
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def gates():
    inputs = keras.Input((8, 8, 3))
    x = L.Activation("silu")(L.BatchNormalization()(L.Conv2D(6, 3)(inputs)))
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(4, 1, activation="silu")(gate)
    x = L.Multiply()([x, L.Conv2D(6, 1, activation="sigmoid")(gate)])
    x = L.BatchNormalization()(L.Conv2D(5, 1, use_bias=False)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def depthwise():
    """Zeros become other constants behind the depthwise layers' BatchNorms."""
    inputs = keras.Input((8, 8, 3))
    x = inputs
    for width in (6, 5):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 1, use_bias=False)(x)))
        x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = L.ReLU(6.0)(L.BatchNormalization()(x))
    x = L.BatchNormalization()(L.Conv2D(4, 1, use_bias=False)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def shared():
    """A layer and its BatchNorm at three places."""
    inputs = keras.Input((8, 8, 3))
    conv, norm = L.Conv2D(5, 3, padding="same"), L.BatchNormalization()
    x = y = L.Conv2D(5, 3, padding="same")(inputs)
    for _ in range(3):
        y = L.ReLU()(norm(conv(y)))
    x = L.Concatenate()([x, y])
    return keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))


def nested():
    """A nested model, called twice, and a Sequential, with names met before."""
    inner_inputs = keras.Input((8, 8, 4))
    x = L.Conv2D(6, 3, padding="same", name="conv", use_bias=False)(inner_inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn")(x))
    x = L.Conv2D(4, 1, name="last")(x)
    inner = keras.Model(inner_inputs, L.Add()([inner_inputs, x]), name="inner")
    tail = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            L.Conv2D(6, 3, name="conv"),
            L.BatchNormalization(name="bn"),
            L.ReLU(),
            L.GlobalAveragePooling2D(),
        ],
        name="tail",
    )
    inputs = keras.Input((8, 8, 3))
    x = L.BatchNormalization(name="bn")(L.Conv2D(4, 1, name="conv")(inputs))
    return keras.Model(inputs, L.Dense(3)(tail(inner(inner(x)))))


def channels_first():
    """BatchNorms on axis 1; convolutions of this layout do not run on CPUs."""
    inputs = keras.Input((3, 8, 8))
    x = L.Conv2D(6, 3)(L.Permute((2, 3, 1))(inputs))
    x = L.BatchNormalization(axis=1)(L.Permute((3, 1, 2))(x))
    x = L.GlobalAveragePooling2D(data_format="channels_first")(x)
    x = L.BatchNormalization(axis=1)(L.Dense(5)(x))
    return keras.Model(inputs, L.Dense(3)(L.Activation("tanh")(x)))


def separable_and_transpose():
    inputs = keras.Input((8, 8, 3))
    x = L.SeparableConv2D(6, 3, depth_multiplier=2, use_bias=False)(inputs)
    x = L.ReLU()(L.BatchNormalization(center=False)(x))
    x = L.Conv2DTranspose(5, 3, strides=2, use_bias=False)(x)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.BatchNormalization()(L.SeparableConv2D(4, 3)(x))
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def without_batchnorms():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, activation="relu")(inputs)
    x = L.Flatten()(L.Conv2D(4, 3, activation="tanh")(x))
    return keras.Model(inputs, L.Dense(3)(L.Dense(5, activation="relu")(x)))


def dense():
    inputs = keras.Input((7,))
    x = L.ReLU()(L.BatchNormalization()(L.Dense(6, use_bias=False)(inputs)))
    x = L.BatchNormalization(scale=False)(L.Dense(5)(x))
    return keras.Model(inputs, L.Dense(3)(L.Activation("tanh")(x)))


def two_inputs():
    inputs = [keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 2), name="b")]
    x = [L.BatchNormalization()(L.Conv2D(4, 3)(tensor)) for tensor in inputs]
    x = L.BatchNormalization()(L.Conv2D(5, 3)(L.ReLU()(L.Concatenate()(x))))
    return keras.Model(inputs, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def conv1d_and_3d():
    inputs = [keras.Input((9, 3)), keras.Input((5, 5, 5, 2))]
    x = L.BatchNormalization()(L.Conv1D(5, 3, padding="causal")(inputs[0]))
    x = L.GlobalMaxPooling1D()(L.ReLU()(x))
    y = L.BatchNormalization()(L.Conv3D(4, 3)(inputs[1]))
    y = L.GlobalMaxPooling3D()(L.ReLU()(y))
    return keras.Model(inputs, L.Dense(3)(L.Concatenate()([x, y])))


GRAPHS = {
    **{"chain": chain, "with_bias": with_bias, "residual": residual, "gates": gates},
    **{"depthwise": depthwise, "shared": shared, "nested": nested, "dense": dense},
    **{"without_batchnorms": without_batchnorms, "channels_first": channels_first},
    **{"two_inputs": two_inputs, "conv1d_and_3d": conv1d_and_3d},
    "separable_and_transpose": separable_and_transpose,
    "without_scale": lambda: chain(scale=False),
    "without_center": lambda: chain(center=False),
    "without_both": lambda: chain(scale=False, center=False),
}


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


# === Statistics ===


def test_filters_have_the_norms_of_the_model():
    pruner, slim, _ = assert_shrinks(chain())
    kept = [np.asarray(c.row_norms()) > 0 for c in pruner.compactors]
    for name, ins, outs in [
        ("conv1", np.ones(3, bool), kept[0]),
        ("conv2", kept[0], kept[1]),
    ]:
        old = np.asarray(pruner.get_layer(name).kernel)[:, :, ins][..., outs]
        new = np.asarray(slim.get_layer(name).kernel)
        assert old.shape == new.shape
        np.testing.assert_allclose(
            np.sqrt((new**2).sum((0, 1, 2))),
            np.sqrt((old**2).sum((0, 1, 2))),
            rtol=1e-5,
        )


def test_rescaling():
    own = np.array([[3.0, 0.0, 1.0, 0.0], [4.0, 0.0, 0.0, 0.0]])
    merged = np.array([[0.0, 5.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0]])
    filters, scale = rescale(merged, own, -1)
    floor = 0.01 * (5 + 1) / 4
    np.testing.assert_allclose(scale, [2, 5 / floor, 0, 0])
    np.testing.assert_allclose(filters, [[0, floor, 1, 0], [5, 0, 0, 0]])
    transposed, again = rescale(merged.T, own.T, 0)
    np.testing.assert_array_equal(transposed.T, filters)
    np.testing.assert_array_equal(again, scale)
    _, scale = rescale(merged, np.zeros((2, 4)), -1)
    np.testing.assert_allclose(scale, [10, 5, 0, 0])


@pytest.mark.parametrize("name", ["chain", "residual", "dense", "two_inputs"])
def test_training_and_inference_agree_on_the_measured_batch(name):
    with precision("float64"):
        pruner = forgetful(GRAPHS[name]())
        x = example(pruner, 5)
        slim = shrink(pruner, keras.tree.map_structure(np.array, x))
        before = slim.get_weights()
        assert compare(slim(x, training=False), slim(x, training=True)) < 1e-9
    # Moving averages stand where the batch's own statistics are.
    for old, new in zip(before, slim.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-9, atol=1e-12)


def test_statistics_are_pooled_over_batches_and_calls():
    with precision("float64"):
        pruner = forgetful(shared())
        x = example(pruner, 5)
        whole = shrink(pruner, x, verify=False)
        parts = shrink(pruner, [x[:3], x[3:4], x[4:]], verify=False)
    for a, b in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_data_of_many_kinds():
    pruner = forgetful(two_inputs())
    a, b = example(pruner, 5)
    y = np.zeros(8)
    expected = shrink(pruner, [a, b], batch_size=8, verify=False).get_weights()
    for data in (
        ([a, b], y),
        [([a, b], y)],
        iter([([a, b], y)]),
        {"a": a, "b": b},
        [{"a": a, "b": b}],
        tf.data.Dataset.from_tensors(({"a": a, "b": b}, y)),
        tf.data.Dataset.from_tensors(({"a": a, "b": b}, y)).repeat(),
        [tf.constant(a), tf.constant(b)],
    ):
        for old, new in zip(
            expected,
            shrink(pruner, data, 1, 8, verify=False).get_weights(),
            strict=True,
        ):
            np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)


def test_only_so_many_batches_are_read():
    pruner, read = forgetful(chain()), []

    def batches():
        while True:
            read.append(None)
            yield example(pruner, len(read))

    _, report = shrink(pruner, batches(), batches=3, return_report=True)
    assert len(read) == report.batches == 3
    _, report = shrink(pruner, example(pruner), batch_size=3, return_report=True)
    assert report.batches == 3  # Of 3, 3 and 2 examples.


def test_no_data_where_there_is_nothing_to_measure():
    pruner = forgetful(without_batchnorms())
    assert shrink(pruner, None).count_params() < pruner.count_params()


# === Refusals ===


def test_masked_rows_must_be_forgotten():
    pruner = resrep_tf.wrap(small_model(), "all")
    perturb(pruner, np.random.default_rng(0))
    x = example(pruner)
    kernel = np.array(pruner.compactors[0].kernel)
    kernel[:, 1] = 0
    pruner.compactors[0].kernel.assign(kernel)
    pruner.compactors[0].mask.assign([1, 0, 0, 1, 0, 1])
    with pytest.raises(ValueError, match="1e-05 or more: 2 of `conv1_compactor`"):
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9
        ),
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.Nadam(0.01),
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
        lambda: keras.optimizers.AdamW(0.01, amsgrad=True),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    ],
)
def test_the_optimizer_goes_on(make):
    """On weights that nothing was merged into, its next step is the pruner's."""
    pruner = resrep_tf.wrap(randomise(depthwise()), ["conv2d", "conv2d_2"])
    pruner.compile(make(), "mse", snap=False)
    x, rng = example(pruner), np.random.default_rng(0)
    keras.Model.fit(pruner, x, rng.normal(size=(8, 3)), epochs=3, verbose=0)
    for compactor in pruner.compactors:
        compactor.kernel.assign(
            np.asarray(compactor.kernel) * (np.arange(compactor.width) > 1)
        )
    optimizer = make()
    slim = shrink(pruner, x, optimizer=optimizer)
    assert int(np.asarray(optimizer.iterations)) == 3

    old = {v.path: v for v in pruner.trainable_variables if "compactor" not in v.path}
    new = {v.path: v for v in slim.trainable_variables}
    same = ["batch_normalization_2/gamma", "batch_normalization_3/beta", "dense/bias"]
    kept = {
        "conv2d_1/kernel": np.s_[:, :, 2:],
        "depthwise_conv2d/kernel": np.s_[:, :, 2:],
        "batch_normalization_1/beta": np.s_[2:],
        "dense/kernel": np.s_[2:],
    }
    assert not set(same) - set(new)
    cuts = {name: np.s_[...] for name in same} | kept
    gradients = {path: rng.normal(size=v.shape) for path, v in old.items()}
    narrow = {
        path: gradients[path][cuts[path]] if path in cuts else np.zeros(v.shape)
        for path, v in new.items()
    }
    scale = 2.0**15 if hasattr(optimizer, "inner_optimizer") else 1.0
    for trainer, values, variables in [
        (pruner.optimizer, gradients, old),
        (optimizer, narrow, new),
    ]:
        grads = [tf.constant(scale * values[p], "float32") for p in variables]
        trainer.apply(grads, list(variables.values()))
    for name, part in cuts.items():
        np.testing.assert_allclose(
            np.asarray(new[name]), np.asarray(old[name])[part], rtol=1e-6
        )


def test_merged_weights_start_from_rest():
    pruner = resrep_tf.wrap(randomise(chain()))
    pruner.compile(keras.optimizers.Adam(0.01), "mse")
    x = example(pruner)
    keras.Model.fit(pruner, x, np.zeros((8, 3)), epochs=3, verbose=0)
    optimizer = keras.optimizers.Adam(0.01)
    shrink(pruner, x, optimizer=optimizer)
    slots = {v.path.split("/")[-1]: np.asarray(v) for v in optimizer.variables}
    old = {v.path.split("/")[-1]: np.asarray(v) for v in pruner.optimizer.variables}
    for name in ("conv1_kernel", "bn1_gamma", "bn2_beta"):
        assert not slots[f"{name}_momentum"].any()
        # Divided by nothing, the first steps would be several times too large.
        np.testing.assert_allclose(
            slots[f"{name}_velocity"], old[f"{name}_velocity"].mean(), rtol=1e-5
        )
    for name in ("momentum", "velocity"):
        np.testing.assert_array_equal(
            slots[f"head_kernel_{name}"], old[f"head_kernel_{name}"]
        )
        assert old[f"head_kernel_{name}"].any()


def test_optimizers_that_cannot_go_on():
    pruner = forgetful(chain())
    x = example(pruner)
    with pytest.raises(ValueError, match="and a model that is not compiled"):
        shrink(pruner, x, optimizer=keras.optimizers.SGD())
    pruner.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match=r"SGD\. Received: .*of another type"):
        shrink(pruner, x, optimizer=keras.optimizers.Adam())
    with pytest.raises(ValueError, match="built already"):
        shrink(pruner, x, optimizer=pruner.optimizer)
    pruner.compile(keras.optimizers.Adafactor(), "mse")
    with pytest.raises(ValueError, match="state of Adafactor cannot be carried over"):
        shrink(pruner, x, optimizer=keras.optimizers.Adafactor())


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


def check_batch(first):
    shrunk = 0
    for seed in range(first, first + BATCH):
        try:
            shrunk += check(seed)
        except Exception as error:
            error.add_note(f"Reproduce with `check({seed})`.")
            raise
    assert shrunk > 0.7 * BATCH


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_random_graphs(first):
    check_batch(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 660, BATCH))
def test_many_random_graphs(first):
    check_batch(first)


QUICK = ("MobileNetV2",)
OTHERS = ("ResNet50", "EfficientNetB0", "DenseNet121", "MobileNetV3Small", "VGG16")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)
@pytest.mark.parametrize("targets", ["all", None])
def test_networks(name, targets):
    # In float32 deep networks amplify rounding beyond 1e-5.
    with precision("float64"):
        _, _, report = assert_shrinks(NETWORKS[name].build(), targets, dtype="float64")
    assert report.new_flops < 0.95 * report.flops
