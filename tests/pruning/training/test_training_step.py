"""One training step: the equations, and nothing altered but compactors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras.optimizers import SGD, Adam, AdamW, RMSprop

import resrep_tf
from support.checks import precision, randomise
from support.trainings import (
    CE,
    EAGER,
    GRAPH,
    JIT,
    NOTHING,
    assert_equal,
    compiled,
    cosine,
    data,
    fit,
    mask_all,
    network,
    values,
)

# === One step, by hand ===


def reference_loss(w, x, y):
    """The same network in plain TensorFlow."""

    def compact(x, q):
        return x @ q if q.ndim == 2 else x * q

    for conv in ("first", "second"):
        x = tf.nn.conv2d(x, w[conv], 1, "VALID") + w[conv + "/bias"]
        x = tf.tanh(compact(x, w[conv + "/q"]))
    logits = tf.reduce_mean(x, (1, 2)) @ w["head"] + w["head/bias"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


class Reference:
    """Both optimizers in NumPy, after the documented formulas."""

    def __init__(self, pruner, strength, momentum):
        self.w = {"head": pruner.get_layer("head").kernel}
        self.w["head/bias"] = pruner.get_layer("head").bias
        self.masks = {}
        for conv, compactor in zip(("first", "second"), pruner.compactors, strict=True):
            self.w[conv] = pruner.get_layer(conv).kernel
            self.w[conv + "/bias"] = pruner.get_layer(conv).bias
            self.w[conv + "/q"] = compactor.kernel
            self.masks[conv + "/q"] = np.asarray(compactor.mask)
        self.w = {name: np.asarray(v) for name, v in self.w.items()}
        self.velocity = {name: np.zeros_like(v) for name, v in self.w.items()}
        self.strength = strength
        # Keras takes these numbers through float32.
        self.momentum = float(np.float32(momentum))
        self.main_momentum = float(np.float32(0.9))

    def step(self, x, y, rate):
        tensors = {name: tf.constant(v) for name, v in self.w.items()}
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = reference_loss(tensors, x, y)
        for name, gradient in tape.gradient(loss, tensors).items():
            gradient, momentum = np.asarray(gradient), self.main_momentum
            if name in self.masks:
                q = self.w[name]
                norms = np.linalg.norm(q, axis=0) if q.ndim == 2 else np.abs(q)
                gradient = self.masks[name] * gradient + self.strength * q / norms
                momentum = self.momentum
            self.velocity[name] = momentum * self.velocity[name] - rate * gradient
            self.w[name] = self.w[name] + self.velocity[name]
        return float(loss)


@pytest.mark.parametrize(
    "kind, momentum, mode",
    [
        ("matrix", None, GRAPH),
        ("matrix", None, JIT),
        ("matrix", 0.5, EAGER),
        ("vector", None, EAGER),
    ],
    ids=["graph", "jit", "momentum", "vector"],
)
def test_steps_are_those_of_the_equations(kind, momentum, mode):
    rng = np.random.default_rng(1)
    with precision("float64"):
        pruner = compiled(
            SGD(0.05, momentum=0.9),
            kind=kind,
            compactor_optimizer=momentum,
            lasso_strength=0.03,
            **mode,
        )
        for compactor in pruner.compactors:
            noise = rng.normal(size=compactor.kernel.shape) * 0.3
            compactor.kernel.assign(np.asarray(compactor.kernel) + noise)
        pruner.set_masks([[1, 0, 0, 1], [0, 1, 0]])
        strength = float(pruner.state.lasso_strength)
        reference = Reference(pruner, strength, momentum or 0.99)
        for number in range(5):
            if number == 3:
                pruner.optimizer.learning_rate = 0.2
            x, y = data(seed=number)
            rate = float(pruner.optimizer.learning_rate)
            expected = reference.step(x, y, rate)
            logs = pruner.train_on_batch(x, y, return_dict=True)
            assert logs["loss"] == pytest.approx(expected, rel=1e-6)
            pruner.reset_metrics()
    compactors = dict(zip(("first", "second"), pruner.compactors, strict=True))
    for name, value in reference.w.items():
        layer, _, part = name.partition("/")
        if part == "q":
            actual = compactors[layer].kernel
        else:
            actual = getattr(pruner.get_layer(layer), part or "kernel")
        np.testing.assert_allclose(actual, value, rtol=1e-10, atol=1e-13, err_msg=name)


def test_masked_rows_have_a_strength_of_their_own():
    kernels = {}
    for masked_strength in (0.2, 0.4):
        with precision("float64"):
            pruner = compiled(
                SGD(0.1),
                compactor_optimizer=0,
                lasso_strength=0.01,
                masked_strength=masked_strength,
            )
            pruner.set_masks([[1, 0, 0, 1], [0, 1, 0]])
            before = np.array(pruner.compactors[0].kernel)
            pruner.train_on_batch(*data())
        after = np.array(pruner.compactors[0].kernel)
        stride = 0.1 * masked_strength  # Rows of the identity have norm 1.
        np.testing.assert_allclose(after[:, 1:3], (1 - stride) * before[:, 1:3], 1e-6)
        kernels[masked_strength] = after[:, [0, 3]]
    np.testing.assert_array_equal(kernels[0.2], kernels[0.4])


# === Everything else trains as in an ordinary model ===


def branched():
    """Two inputs, two outputs, BatchNorm, regularisers."""
    image, label = keras.Input((6, 6, 2), name="image"), keras.Input((3,), name="label")
    x = L.Conv2D(4, 3, kernel_regularizer="l2", name="first", use_bias=False)(image)
    x = L.ReLU()(L.BatchNormalization(name="bn")(x))
    x = L.GlobalAveragePooling2D()(x)
    x = L.Concatenate()([x, L.Dense(4, activation="tanh", name="second")(label)])
    a = L.Dense(3, activation="softmax", kernel_regularizer="l1", name="a")(x)
    b = L.Dense(1, name="b")(x)
    return randomise(keras.Model([image, label], {"a": a, "b": b}))


def branched_data(count=16):
    x, y = data(count)
    label = np.random.default_rng(5).normal(size=(count, 3))
    return {"image": x, "label": label}, {"a": y, "b": label[:, :1]}


WAYS = {
    "sgd": (lambda: SGD(0.1), {}, {}),
    "nesterov": (lambda: SGD(0.1, momentum=0.9, nesterov=True), {}, {}),
    "adam": (lambda: Adam(0.01), {}, {}),
    "adamw": (lambda: AdamW(0.01, weight_decay=0.1), {}, {}),
    "rmsprop": (lambda: RMSprop(0.01), {}, {}),
    "schedule": (lambda: SGD(cosine(), momentum=0.9), {}, {}),
    "clipnorm": (lambda: SGD(0.1, clipnorm=0.05), {}, {}),
    "global_clipnorm": (lambda: SGD(0.1, global_clipnorm=0.05), {}, {}),
    "clipvalue": (lambda: SGD(0.1, clipvalue=0.01), {}, {}),
    "accumulation": (
        lambda: SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
        {},
        {},
    ),
    "static_scale": (lambda: SGD(0.1, loss_scale_factor=64.0), {}, {}),
    "other_loss": (lambda: SGD(0.1), {"loss": keras.losses.Poisson()}, {}),
    "sample_weight": (
        lambda: SGD(0.1),
        {},
        {"sample_weight": np.linspace(0, 2, 16)},
    ),
    "class_weight": (lambda: SGD(0.1), {}, {"class_weight": {0: 1, 1: 5, 2: 0.5}}),
    "graph": (lambda: SGD(0.1, momentum=0.9), GRAPH, {}),
    "two_at_once": (
        lambda: SGD(0.1, momentum=0.9),
        {"steps_per_execution": 2, **GRAPH},
        {},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_rest_trains_as_in_an_ordinary_model(way):
    make_optimizer, compiling, fitting = WAYS[way]
    x, y = data(16)
    results = []
    with precision("float64"):
        for wrapped in (False, True):
            model = network()
            arguments = {"loss": CE, "weighted_metrics": ["accuracy"]}
            arguments |= {**EAGER, **compiling}
            if way == "other_loss":
                y = np.eye(3)[data(16)[1]]
            if wrapped:
                model = resrep_tf.wrap(model)
                arguments["lasso_strength"] = NOTHING
            model.compile(make_optimizer(), **arguments)
            if wrapped:
                mask_all(model)
            before = values(model.get_layer("first").weights)
            history = fit(model, x, y, batch_size=8, **fitting).history
            layers = [model.get_layer(n) for n in ("first", "second", "head")]
            weights = values(v for layer in layers for v in layer.weights)
            state = values(model.optimizer.variables)
            results.append((history, weights, state))
            assert not np.array_equal(before[0], weights[0])
    (plain, weights, state), (history, new_weights, new_state) = results
    assert_equal(weights, new_weights, 1e-12)
    assert_equal(state, new_state, 1e-12)
    for name in plain:
        np.testing.assert_allclose(plain[name], history[name], rtol=1e-6)
    assert set(history) - set(plain) == {"flops_removed", "forgotten"}


@pytest.mark.parametrize("loss_weights", [None, {"a": 0.3, "b": 2.0}])
def test_many_inputs_outputs_and_regularisers(loss_weights):
    x, y = branched_data()
    results = []
    with precision("float64"):
        for wrapped in (False, True):
            model = resrep_tf.wrap(branched()) if wrapped else branched()
            arguments = {"lasso_strength": NOTHING} if wrapped else {}
            model.compile(
                SGD(0.05, momentum=0.9),
                {"a": CE, "b": "mae"},
                loss_weights=loss_weights,
                metrics={"a": ["accuracy"], "b": ["mse"]},
                **EAGER,
                **arguments,
            )
            if wrapped:
                assert len(model.compactors) == 2
                mask_all(model)
            history = fit(model, x, y, batch_size=8).history
            layers = [model.get_layer(n) for n in ("first", "bn", "second", "a", "b")]
            results.append(
                (history, values(v for layer in layers for v in layer.weights))
            )
    (plain, weights), (history, new_weights) = results
    assert_equal(weights, new_weights, 1e-12)
    for name in plain:
        np.testing.assert_allclose(plain[name], history[name], rtol=1e-6)


# === Frozen layers ===


def test_a_frozen_layer_stays_and_its_compactor_trains():
    pruner = compiled(SGD(0.1), model=network(frozen=["first"]))
    first = pruner.get_layer("first")
    before = values(first.weights)
    pruner.train_on_batch(*data())
    assert_equal(before, values(first.weights))
    for compactor in pruner.compactors:
        assert np.abs(np.asarray(compactor.kernel) - np.eye(compactor.width)).max() > 0


def transfer():
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 3, use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn")(x))
    base = keras.Model(inputs, L.Conv2D(3, 3, name="second")(x), name="base")
    image = keras.Input((6, 6, 2))
    x = L.GlobalAveragePooling2D()(L.Activation("tanh")(base(image)))
    return randomise(keras.Model(image, L.Dense(3, "softmax", name="head")(x)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_base_stays_and_its_compactors_train(when):
    model = transfer()
    if when == "before":
        model.get_layer("base").trainable = False
        pruner = resrep_tf.wrap(model)
    else:
        pruner = resrep_tf.wrap(model)
        pruner.get_layer("base").trainable = False
    pruner.compile(SGD(0.1), CE, lasso_strength=NOTHING, **EAGER)
    base = pruner.get_layer("base")
    layers = [base.get_layer(name) for name in ("first", "bn", "second")]
    before = values(v for layer in layers for v in layer.weights)
    head = np.asarray(pruner.get_layer("head").kernel)
    assert len(pruner.compactors) == 2
    pruner.train_on_batch(*data())
    assert_equal(before, values(v for layer in layers for v in layer.weights))
    assert not np.array_equal(head, pruner.get_layer("head").kernel)
    for compactor in pruner.compactors:
        # By the objective: the Lasso is next to nothing here.
        moved = np.abs(np.asarray(compactor.kernel) - np.eye(compactor.width))
        assert moved.max() > 1e-6
