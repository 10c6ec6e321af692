"""Checks that a traced model is equal to the model it was traced from."""

import keras
import numpy as np
from keras import layers, ops

from resrep_tf.graph.keras_calls import all_layers
from resrep_tf.graph.tracing import trace
from support.checks import randomise


class Block(layers.Layer):
    """A convolution, a BatchNorm and an activation."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(filters, 3, padding="same", name="conv")
        self.bn = layers.BatchNormalization(name="bn")

    def call(self, x):
        return ops.relu(self.bn(self.conv(x)))


def names(model):
    """Returns the names of a model's layers, in its own order."""
    return [layer.name for layer in model.layers]


def images(*shape, batch=4, seed=0):
    values = np.random.default_rng(seed).normal(size=(batch, *(shape or (8, 8, 3))))
    return values.astype(keras.config.floatx())


def assert_traces(model, x, folder=None, opaque=0, rounding=0.0):
    """Traces a model that can be called on `x`, and checks that nothing differs.

    Only where `keras.ops` sum up gradients in another order than Python's operators,
    trained variables may differ by `rounding`.

    Returns:
        The traced model and the report.
    """
    model(x)
    names = [layer.name for layer in all_layers(model)]
    calls = [len(layer._inbound_nodes) for layer in all_layers(model)]
    traced, report = trace(model, return_report=True)
    assert len(report.opaque) == opaque, str(report)
    assert isinstance(traced, keras.Function)
    again = trace(model)
    assert [op.name for op in again.operations] == [op.name for op in traced.operations]
    # The user's model is not changed.
    assert [layer.name for layer in all_layers(model)] == names
    assert [len(layer._inbound_nodes) for layer in all_layers(model)] == calls
    assert_same_variables(model, traced)
    randomise(traced)
    assert_same_outputs(model, traced, x)
    assert_same_training(model, traced, x, rounding)
    if folder is not None:
        traced.save(folder / "traced.keras")
        loaded = keras.models.load_model(folder / "traced.keras")
        assert_same_outputs(traced, loaded, x)
        assert len(loaded.trainable_variables) == len(traced.trainable_variables)
    return traced, report


def assert_same_variables(model, traced):
    for kind in ("trainable_variables", "non_trainable_variables"):
        old = {id(v): v for v in getattr(model, kind)}
        new = {id(v): v for v in getattr(traced, kind)}
        assert len(new) == len(getattr(traced, kind))
        assert not new.keys() - old.keys(), kind
        # The seed of a dropout that is never called may be missing.
        missing = [v.name for key, v in old.items() if key not in new]
        assert set(missing) <= {"seed_generator_state"}, kind


def assert_same_outputs(one, two, x):
    for training in (False, None):
        values = [model(x, training=training) for model in (one, two)]
        values = [keras.tree.lists_to_tuples(value) for value in values]
        keras.tree.assert_same_structure(*values)
        for a, b in zip(*map(keras.tree.flatten, values), strict=True):
            np.testing.assert_array_equal(a, b)


def assert_same_training(model, traced, x, rounding=0.0, run_eagerly=True):
    """Asserts that a step of `fit` changes all variables alike, by default exactly."""
    before = [np.array(v) for v in model.variables]
    results = []
    for each in (model, traced):
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
        loss = _loss_like(each, x)
        each.compile(
            keras.optimizers.SGD(0.1),
            loss,
            # Else those of keras-hub stay, which want classes.
            metrics=[loss] if isinstance(loss, str) else loss,
            run_eagerly=run_eagerly,
            jit_compile=False,
            auto_scale_loss=False,
        )
        y = _targets(each, x)
        each.fit(x, y, batch_size=64, shuffle=False, verbose=0)
        results.append([np.array(v) for v in model.variables])
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    for variable, a, b in zip(model.variables, *results, strict=True):
        np.testing.assert_allclose(a, b, rounding, rounding, err_msg=variable.path)
    moved = [(a != b).any() for a, b in zip(before, results[0], strict=True)]
    assert any(moved) or not model.trainable_variables


def _targets(model, x):
    return keras.tree.map_structure(
        lambda y: np.zeros(y.shape, "float32"), model(x, training=False)
    )


def _loss_like(model, x):
    return keras.tree.map_structure(lambda _: "mse", model(x, training=False))
