"""Tests of models on two logical CPU devices; run by `test_replicas.py`.

The number of devices must be set before TensorFlow is used, so this is a process of its
own. Each function is a test.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import resrep_tf
from resrep_tf.surgery.slicing import slice_channels
from support.checks import precision
from support.latency import goals_of

STRATEGY = None
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 6)), RNG.integers(0, 3, 16)
KEEP = {"hidden": np.ones(5, bool)}
OPTIONS = {
    "loss": "sparse_categorical_crossentropy",
    "lasso_strength": 0.2,
    "snap": True,
    "compactor_optimizer": 0.5,
}


def build(batchnorm: bool = False) -> resrep_tf.ResRepModel:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    x = layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
    if batchnorm:
        x = layers.BatchNormalization(name="bn")(x)
    return resrep_tf.wrap(keras.Model(inputs, layers.Dense(3, "softmax")(x)))


def compiled(optimizer=None, **kwargs) -> resrep_tf.ResRepModel:
    with STRATEGY.scope():
        pruner = build(**kwargs)
        pruner.compile(optimizer or keras.optimizers.SGD(0.1, 0.9), **OPTIONS)
    return pruner


def parts(variable) -> list[np.ndarray]:
    """Returns the values of all replicas."""
    values = STRATEGY.experimental_local_results(variable.value)
    return [np.array(value) for value in values]


def fit(pruner: keras.Model, **kwargs) -> dict:
    options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0} | kwargs
    return keras.Model.fit(pruner, X, Y, **options).history


def train(scope) -> tuple[resrep_tf.ResRepModel, dict]:
    with scope:
        pruner = build()
        pruner.compile(keras.optimizers.SGD(0.1, momentum=0.9), **OPTIONS)
    pruner.set_masks([np.array([1, 0, 1, 0, 1])])
    pruner.compactors[0].kernel.assign(np.diag([1, 1, 1, 0.11, 1]))
    return pruner, fit(pruner)


def test_replicas_do_what_one_device_does() -> None:
    with precision("float64"):
        one, history = train(contextlib.nullcontext())
        two, histories = train(STRATEGY.scope())
    assert not np.allclose(one.compactors[0].kernel, np.eye(5), atol=0.05)
    assert one.compactors[0].row_norms()[3] == 0
    pairs = [(one.variables, two.variables)]
    pairs += [(one.compactor_optimizer.variables, two.compactor_optimizer.variables)]
    for left, right in pairs:
        for a, b in zip(left, right, strict=True):
            for part in parts(b):
                np.testing.assert_allclose(part, a.value, rtol=1e-10, atol=1e-13)
    for name in history:
        np.testing.assert_allclose(history[name], histories[name], rtol=1e-5)


def test_optimizers_must_be_made_in_the_scope() -> None:
    with STRATEGY.scope():
        pruner, inside = build(), keras.optimizers.SGD()
    outside = keras.optimizers.SGD()
    for name, optimizer, where in [
        ("optimizer", outside, STRATEGY.scope()),
        ("compactor_optimizer", inside, contextlib.nullcontext()),
    ]:
        try:
            with where:
                pruner.compile(optimizer, **OPTIONS)
        except ValueError as error:
            assert "within `strategy.scope()`" in str(error), error
            assert f"Received: {name}=<" in str(error), error
        else:
            raise AssertionError("replicas would drift apart")


def test_the_model_must_be_made_in_the_scope() -> None:
    pruner = build()
    try:
        with STRATEGY.scope():
            pruner.compile(keras.optimizers.SGD(), **OPTIONS)
    except ValueError as error:
        assert "Call `wrap` within `strategy.scope()`" in str(error), error
        assert f"Received: model={pruner.name!r}" in str(error), error
    else:
        raise AssertionError("there would be no replicas")


def test_channels_are_selected_on_all_replicas() -> None:
    for budget in ("flops", "params", "latency", "all"):
        select_on_all_replicas(budget)


def select_on_all_replicas(budget: str) -> None:
    pruner = compiled(batchnorm=True)
    selection = resrep_tf.ChannelSelection(
        **goals_of(pruner.graph, budget),
        warmup_steps=1,
        interval=1,
        step=1,
        schedule="paper",
    )
    pruner.fit(X, Y, 8, 20, 0, [selection], shuffle=False)
    masks = parts(pruner.compactors[0].mask)
    assert masks[0].sum() < 5
    np.testing.assert_array_equal(*masks)
    # And all that comes of them is the same, without a word about replicas.
    np.testing.assert_array_equal(*parts(pruner.get_layer("bn").moving_mean))
    slim = resrep_tf.convert(pruner)
    np.testing.assert_allclose(slim(X), pruner.predict(X, verbose=0), rtol=1e-5)


def test_every_budget_selects_what_it_does_on_one_device() -> None:
    def selected(scope, **goals) -> resrep_tf.ResRepModel:
        with scope:
            pruner = build()
            pruner.compile(keras.optimizers.SGD(0.1, 0.9), **OPTIONS, jit_compile=False)
        selection = resrep_tf.ChannelSelection(**goals, schedule="informed")
        pruner.fit(X, Y, 8, 20, 0, [selection], shuffle=False)
        return pruner

    with precision("float64"):
        for budget in ("flops", "params", "latency", "all"):
            goals = goals_of(build().graph, budget)
            one = selected(contextlib.nullcontext(), **goals)
            two = selected(STRATEGY.scope(), **goals)
            assert np.min(one.compactors[0].mask) == 0
            for a, b in zip(one.variables, two.variables, strict=True):
                for part in parts(b):
                    np.testing.assert_allclose(part, a.value, rtol=1e-9, atol=1e-12)


def test_pruning_in_one_call_comes_to_what_one_device_comes_to() -> None:
    def pruned(scope, synchronized: bool) -> tuple[keras.Model, dict]:
        with scope:
            keras.utils.set_random_seed(0)
            inputs = keras.Input((6,))
            x = layers.Dense(5, activation="tanh")(inputs)
            x = layers.BatchNormalization(synchronized=synchronized)(x)
            base = keras.Model(inputs, layers.Dense(3, "softmax")(x))
            base.compile(
                keras.optimizers.SGD(0.1, 0.9), OPTIONS["loss"], jit_compile=False
            )
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
        slim, report = resrep_tf.prune(
            base, data, None, 0.4, epochs=10, verbose=0, return_report=True
        )
        assert report.shrinking is not None
        return slim, report.history

    with precision("float64"):
        one, history = pruned(contextlib.nullcontext(), True)
        two, histories = pruned(STRATEGY.scope(), True)
        assert two.layers[1].units < 5
        for a, b in zip(one.variables, two.variables, strict=True):
            for part in parts(b):
                np.testing.assert_allclose(part, a.value, rtol=1e-9, atol=1e-12)
        for name in history:
            np.testing.assert_allclose(history[name], histories[name], rtol=1e-5)
        # Replicas with statistics of their own come to one network all the same.
        slim, _ = pruned(STRATEGY.scope(), False)
        assert np.isfinite(slim(X)).all()


def test_moving_statistics_are_averaged_before_they_are_read() -> None:
    folder = Path(tempfile.mkdtemp())
    pruner = compiled(batchnorm=True)

    def save(way) -> keras.Layer:
        way(pruner, folder / "pruner.keras")
        return keras.models.load_model(folder / "pruner.keras").get_layer("bn")

    for read in (
        lambda: pruner.evaluate(X, Y, verbose=0),
        lambda: pruner.predict(X, verbose=0),
        lambda: save(keras.Model.save),
        lambda: save(keras.saving.save_model),
        lambda: pruner.save_weights(folder / "pruner.weights.h5"),
        lambda: pruner.export(folder / "exported", verbose=False),
    ):
        expected = train_apart(pruner)
        found = read()
        for part in parts(pruner.get_layer("bn").moving_mean):
            np.testing.assert_allclose(part, expected, rtol=1e-6)
        if isinstance(found, keras.layers.BatchNormalization):
            np.testing.assert_allclose(found.moving_mean, expected, rtol=1e-6)


def test_conversion_reads_averages_and_changes_nothing() -> None:
    pruner = compiled(batchnorm=True)
    train_apart(pruner)
    before = parts(pruner.get_layer("bn").moving_mean)
    slim = resrep_tf.convert(pruner, verify=False)
    np.testing.assert_array_equal(parts(pruner.get_layer("bn").moving_mean), before)
    # Predicting averages.
    np.testing.assert_allclose(slim(X), pruner.predict(X, verbose=0), rtol=1e-5)


def test_copying_a_plain_model_reads_averages_and_changes_nothing() -> None:
    with STRATEGY.scope():
        inputs = keras.Input((6,))
        x = layers.BatchNormalization(name="bn")(layers.Dense(5, name="hidden")(inputs))
        base = keras.Model(inputs, layers.Dense(3, "softmax")(x))
        base.compile("sgd", OPTIONS["loss"])
    for copy in (resrep_tf.wrap, lambda model: slice_channels(model, KEEP)):
        expected = train_apart(base)
        before = parts(base.get_layer("bn").moving_mean)
        copied = copy(base).get_layer("bn").moving_mean
        np.testing.assert_allclose(copied, expected, rtol=1e-5)
        np.testing.assert_array_equal(parts(base.get_layer("bn").moving_mean), before)


def train_apart(model: keras.Model) -> np.ndarray:
    """Trains until replicas have statistics of their own; returns their average."""
    fit(model, epochs=1)
    first, second = parts(model.get_layer("bn").moving_mean)
    assert np.abs(first - second).max() > 1e-3
    return (first + second) / 2


def test_a_step_that_overflows_on_one_replica_is_skipped_on_both() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    pruner = compiled()
    keras.config.set_dtype_policy("float32")
    fit(pruner, epochs=1)
    before = [parts(v) for v in pruner.trainable_variables]
    scales = [o.dynamic_scale for o in (pruner.optimizer, pruner.compactor_optimizer)]
    old = [parts(scale) for scale in scales]
    x = X.copy()
    x[7] = np.inf  # In the second replica's share.
    keras.Model.fit(pruner, x[:8], Y[:8], batch_size=8, shuffle=False, verbose=0)
    for variable, values in zip(pruner.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(parts(variable), values)
    for scale, values in zip(scales, old, strict=True):
        np.testing.assert_array_equal(parts(scale), np.divide(values, 2))


if __name__ == "__main__":
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        device, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for name in sys.argv[1:]:
        globals()[name]()
