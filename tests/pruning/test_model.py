"""Training a wrapped model: two optimizers, and nothing altered but compactors."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras.optimizers import SGD, Adam, AdamW, LossScaleOptimizer, RMSprop

import resrep_tf
from support.checks import precision, randomise

CE = "sparse_categorical_crossentropy"
# For a few steps, tracing takes far longer than training. Where graphs could make a
# difference, they are tested too.
EAGER = {"run_eagerly": True, "jit_compile": False}
GRAPH = {"run_eagerly": False, "jit_compile": False}
JIT = {"run_eagerly": False, "jit_compile": True}
# So weak that a compactor whose rows are all masked stays the identity to the bit.
NOTHING = 1e-30


def network(frozen=(), seed=0):
    inputs = keras.Input((6, 6, 2), name="image")
    x = L.Conv2D(4, 3, activation="tanh", name="first")(inputs)
    x = L.Conv2D(3, 3, activation="tanh", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, L.Dense(3, activation="softmax", name="head")(x))
    for name in frozen:
        model.get_layer(name).trainable = False
    return randomise(model, seed)


def compiled(optimizer, loss=CE, model=None, kind="matrix", **arguments):
    pruner = resrep_tf.wrap(model or network(), compactor=kind)
    pruner.compile(optimizer, loss, **{**EAGER, **arguments})
    return pruner


@contextlib.contextmanager
def policy(name):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def data(count=8, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 6, 6, 2)), rng.integers(0, 3, count)


def mask_all(pruner):
    pruner.set_masks([np.zeros(c.width) for c in pruner.compactors])


def values(variables):
    return [keras.ops.convert_to_numpy(v) for v in variables]


def fit(model, *args, **kwargs):
    """As `fit`, also without a selection of channels."""
    return keras.Model.fit(model, *args, shuffle=False, verbose=0, **kwargs)


def assert_equal(left, right, rtol=0.0):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


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
        strength = float(pruner.lasso_strength)
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


def cosine():
    return keras.optimizers.schedules.CosineDecay(0.1, 4)


# Each: the optimizer, what else `compile` is given, and what else `fit` is given.
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


def test_an_optimizer_sees_its_own_variables_only():
    pruner = resrep_tf.wrap(network())
    pruner.compile(Adam(), CE)
    kernels = {id(c.kernel) for c in pruner.compactors}
    built = pruner.compactor_optimizer._trainable_variables
    assert {id(v) for v in built} == kernels
    others = pruner.optimizer._trainable_variables
    assert len(others) == 6 and not kernels & {id(v) for v in others}


def test_training_goes_on_after_compiling_again_with_the_same_optimizer():
    optimizer = LossScaleOptimizer(SGD(0.1))
    pruner = half(optimizer)
    pruner.compile(optimizer, CE, **EAGER)
    pruner.train_on_batch(*data())
    assert (
        len(optimizer.variables) == 6
    )  # Of both, iterations and rate; scale and counter.
    assert int(optimizer.iterations) == 1


# === Compactors: learning rate, momentum, no decay ===


def shrinkage(pruner, steps=1):
    """By how much a step shortens masked rows; without momentum rate * strength."""
    compactor = pruner.compactors[0]
    ways = []
    for _ in range(steps):
        before = np.asarray(compactor.row_norms())
        pruner.train_on_batch(*data())
        ways.append(before - np.asarray(compactor.row_norms()))
    ways = np.array(ways) / float(pruner.lasso_strength)
    np.testing.assert_allclose(ways, ways[:, :1] * np.ones(4), rtol=1e-6)
    return ways[:, 0]


def following(optimizer, momentum=0, **arguments):
    pruner = compiled(
        optimizer, compactor_optimizer=momentum, lasso_strength=0.01, **arguments
    )
    mask_all(pruner)
    return pruner


def test_the_rate_follows_a_schedule():
    with precision("float64"):
        pruner = following(Adam(cosine()), **GRAPH)
        expected = [0.1 * 0.5 * (1 + np.cos(np.pi * t / 4)) for t in range(4)]
        np.testing.assert_allclose(shrinkage(pruner, 4), expected, rtol=1e-6)
    assert len(pruner.compactor_optimizer.variables) == 2


def test_the_rate_follows_an_assignment_and_any_type_of_optimizer():
    with precision("float64"):
        pruner = following(AdamW(0.1))
        np.testing.assert_allclose(shrinkage(pruner, 2), 0.1, rtol=1e-6)
        pruner.optimizer.learning_rate = 0.03
        np.testing.assert_allclose(shrinkage(pruner, 2), 0.03, rtol=1e-6)
        pruner.optimizer.learning_rate.assign(0.5)
        np.testing.assert_allclose(shrinkage(pruner), 0.5, rtol=1e-6)
    # The main optimizer's variable has not become one of the compactors'.
    assert len(pruner.compactor_optimizer.variables) == 2


def test_the_rate_follows_a_callback():
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.compactor_optimizer.learning_rate))

    pruner = following(SGD(1.0), momentum=None)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    fit(pruner, *data(), batch_size=4, epochs=3, callbacks=[scheduler, Watch()])
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.05, 0.05, 0.1 / 3, 0.1 / 3])


def test_a_given_optimizer_keeps_its_own_rate():
    with precision("float64"):
        pruner = following(SGD(0.1), momentum=SGD(0.7))
        np.testing.assert_allclose(shrinkage(pruner), 0.7, rtol=1e-6)
        pruner.optimizer.learning_rate = 0.01
        np.testing.assert_allclose(shrinkage(pruner), 0.7, rtol=1e-6)
    assert pruner.compactor_momentum == 0.0
    assert pruner.leading_optimizer is pruner.compactor_optimizer


def test_the_default_is_sgd_with_momentum_and_a_number_changes_the_momentum():
    pruner = resrep_tf.wrap(network())
    assert pruner.compactor_momentum == 0.99
    pruner.compile("adam", CE)
    assert type(pruner.compactor_optimizer) is SGD
    assert pruner.compactor_momentum == 0.99 and not pruner.compactor_optimizer.nesterov
    assert float(pruner.lasso_strength) == pytest.approx(1e-4)
    assert pruner.snap is False and pruner.leading_optimizer is pruner.optimizer
    pruner.compile("adam", CE, compactor_optimizer=0.5)
    assert pruner.compactor_momentum == 0.5
    pruner.compile("adam", CE, compactor_optimizer="adam")
    assert pruner.compactor_momentum is None


def test_decay_never_touches_compactors():
    with precision("float64"):
        pruner = compiled(AdamW(0.5, weight_decay=0.9), lasso_strength=NOTHING)
        mask_all(pruner)
        head = np.linalg.norm(pruner.get_layer("head").kernel)
        for _ in range(3):
            pruner.train_on_batch(*data())
    for compactor in pruner.compactors:
        np.testing.assert_array_equal(compactor.kernel, np.eye(compactor.width))
    assert np.linalg.norm(pruner.get_layer("head").kernel) != pytest.approx(head)


@pytest.mark.parametrize("optimizer", ["optimizer", "compactor_optimizer"])
def test_clipping_is_the_business_of_the_optimizer_that_has_it(optimizer):
    arguments = {"optimizer": SGD(0.1), "compactor_optimizer": SGD(0.1)}
    arguments[optimizer] = SGD(0.1, clipnorm=1e-9)
    pruner = compiled(**arguments)
    before = values(pruner.optimizer._trainable_variables)
    pruner.train_on_batch(*data())
    moved = [
        np.abs(a - b).max()
        for a, b in zip(
            before, values(pruner.optimizer._trainable_variables), strict=True
        )
    ]
    turned = [
        np.abs(np.asarray(c.kernel) - np.eye(c.width)).max() for c in pruner.compactors
    ]
    small, large = (moved, turned) if optimizer == "optimizer" else (turned, moved)
    assert max(small) < 1e-7 < 1e-5 < min(large)


def test_accumulated_gradients_move_both_parts_at_once():
    with precision("float64"):
        optimizer = SGD(0.1, gradient_accumulation_steps=3)
        pruner = following(optimizer)
        np.testing.assert_allclose(
            shrinkage(pruner, 6), [0, 0, 0.1, 0, 0, 0.1], atol=1e-9
        )
    assert int(pruner.optimizer.iterations) == 2 and pruner.batches_per_step == 3


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


# === Low precision ===


def half(optimizer, kind="mixed_float16", **arguments):
    with policy(kind):
        return compiled(optimizer, **arguments)


@pytest.mark.parametrize("kind", ["mixed_float16", "mixed_bfloat16"])
def test_the_lasso_has_no_loss_scale(kind):
    pruner = half(SGD(0.1), kind, compactor_optimizer=0, lasso_strength=0.01)
    scaled = kind == "mixed_float16"
    assert isinstance(pruner.optimizer, LossScaleOptimizer) is scaled
    assert isinstance(pruner.compactor_optimizer, LossScaleOptimizer) is scaled
    mask_all(pruner)
    for _ in range(3):
        pruner.train_on_batch(*data())
    for compactor in pruner.compactors:
        np.testing.assert_allclose(compactor.row_norms(), 1 - 3e-3, rtol=1e-6)


def test_low_precision_gives_about_the_same_step():
    kernels = {}
    for kind in ("float32", "mixed_float16", "mixed_bfloat16"):
        pruner = half(SGD(0.5), kind, lasso_strength=0.01)
        pruner.set_masks([[1, 0, 1, 1], [1, 1, 0]])
        pruner.train_on_batch(*data())
        variables = [c.kernel for c in pruner.compactors]
        variables += pruner.optimizer._trainable_variables
        kernels[kind] = values(variables)
    for a, b, c in zip(*kernels.values(), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-3)
        np.testing.assert_allclose(c, a, atol=1e-2)


def scaling(pruner):
    main, compact = pruner.optimizer, pruner.compactor_optimizer
    scales = [float(o.dynamic_scale) for o in (main, compact)]
    counters = [int(o.step_counter) for o in (main, compact)]
    steps = [int(o.iterations) for o in (main, compact)]
    for pair in (scales, counters, steps):
        assert pair[0] == pair[1]
    return scales[0], counters[0], steps[0]


def test_a_scale_that_overflows_comes_down_for_both():
    pruner = half(LossScaleOptimizer(SGD(0.1), initial_scale=2.0**36), **GRAPH)
    pruner.set_masks([[1, 0, 1, 1], [1, 1, 0]])
    before = values(pruner.trainable_variables)
    skipped = 0
    while scaling(pruner)[2] == 0:
        assert_equal(before, values(pruner.trainable_variables))
        assert scaling(pruner)[0] == 2.0 ** (36 - skipped)
        skipped += 1
        assert skipped < 30
        pruner.train_on_batch(*data())
    assert skipped > 2
    after = values(pruner.trainable_variables)
    assert all(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(np.isfinite(v).all() for v in after)


def test_a_bad_batch_is_skipped_by_both():
    pruner = half(SGD(0.1, momentum=0.9))
    x, y = data()
    pruner.train_on_batch(x, y)
    state = pruner.trainable_variables + pruner.compactor_optimizer.variables[2:]
    before = values(state)
    assert scaling(pruner) == (2.0**15, 1, 1)
    pruner.train_on_batch(np.full_like(x, np.nan), y)
    assert scaling(pruner) == (2.0**14, 0, 1)
    names = [v.path for v in state]
    for name, a, v in zip(names, before, state, strict=True):
        if "dynamic_scale" not in name and "step_counter" not in name:
            np.testing.assert_array_equal(a, keras.ops.convert_to_numpy(v), name)
    pruner.train_on_batch(x, y)
    assert scaling(pruner) == (2.0**14, 1, 2)


def not_a_number(weights):
    """Adds nothing to the loss, and NaN to the gradient."""
    return keras.ops.sqrt(keras.ops.sum(weights * 0.0))


@pytest.mark.parametrize("culprit", ["head", "second_compactor"])
def test_a_bad_gradient_in_one_part_stops_both(culprit):
    pruner = half(SGD(0.1))
    pruner.get_layer(culprit).kernel.regularizer = not_a_number
    before = values(pruner.trainable_variables)
    logs = pruner.train_on_batch(*data(), return_dict=True)
    assert np.isfinite(logs["loss"])
    assert_equal(before, values(pruner.trainable_variables))
    assert scaling(pruner) == (2.0**14, 0, 0)


def test_the_scales_grow_together():
    pruner = half(LossScaleOptimizer(SGD(0.1), dynamic_growth_steps=2))
    for number in range(1, 5):
        pruner.train_on_batch(*data())
        assert scaling(pruner) == (2.0 ** (15 + number // 2), number % 2, number)


@pytest.mark.parametrize("given", [False, True])
def test_a_static_loss_scale_changes_nothing(given):
    results = []
    with precision("float64"):
        for scale in (None, 256.0):
            pruner = compiled(
                SGD(0.1, momentum=0.9, loss_scale_factor=scale),
                compactor_optimizer=SGD(0.2, loss_scale_factor=scale)
                if given
                else None,
                lasso_strength=0.1,
            )
            pruner.set_masks([[1, 0, 1, 1], [1, 1, 0]])
            for _ in range(3):
                pruner.train_on_batch(*data())
            results.append(values(pruner.trainable_variables))
    assert_equal(*results, 1e-12)


# === Saving ===


def lively(seed=0):
    """With moving statistics. (Keras saves no Dropout's random state, in any model.)"""
    inputs = keras.Input((6, 6, 2), name="image")
    x = L.BatchNormalization()(L.Conv2D(4, 3, use_bias=False, name="first")(inputs))
    x = L.Conv2D(3, 3, activation="tanh", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, L.Dense(3, "softmax", dtype="float32", name="head")(x))
    return randomise(model, seed)


def momentum_sgd(**arguments):
    return SGD(0.1, momentum=0.9, **arguments)


# Each: the dtype policy, the optimizer, and what else `compile` is given.
SAVED = {
    "sgd": ("float32", momentum_sgd, dict),
    "adam": ("float32", lambda: Adam(cosine()), dict),
    "accumulation": (
        "float32",
        lambda: momentum_sgd(gradient_accumulation_steps=2),
        dict,
    ),
    "number": ("float32", momentum_sgd, lambda: {"compactor_optimizer": 0.5}),
    "snap": ("float32", momentum_sgd, lambda: {"snap": True, "lasso_strength": 0.5}),
    "given_sgd": (
        "float32",
        momentum_sgd,
        lambda: {"compactor_optimizer": SGD(cosine(), momentum=0.7, nesterov=True)},
    ),
    "given_adam": ("float32", Adam, lambda: {"compactor_optimizer": Adam(0.02)}),
    "mixed_float16": ("mixed_float16", momentum_sgd, dict),
    "mixed_given": (
        "mixed_float16",
        lambda: LossScaleOptimizer(Adam(), initial_scale=64.0),
        lambda: {"compactor_optimizer": momentum_sgd()},
    ),
    "mixed_unscaled": (
        "mixed_float16",
        momentum_sgd,
        lambda: {"auto_scale_loss": False},
    ),
}


def compiled_as(way, seed):
    kind, make_optimizer, arguments = SAVED[way]
    with policy(kind):
        return compiled(make_optimizer(), model=lively(seed), **arguments())


def whole_state(pruner):
    optimizers = pruner.optimizer.variables + pruner.compactor_optimizer.variables
    return values(pruner.variables + optimizers)


def train_batches(pruner, numbers):
    for number in numbers:
        pruner.train_on_batch(*data(seed=number))


@pytest.mark.parametrize("way", SAVED)
def test_a_restart_changes_nothing(way, tmp_path):
    """Every variable comes back to the bit, and training goes on as if unstopped."""
    pruner = compiled_as(way, seed=0)
    pruner.set_masks([[1, 0, 1, 1], [1, 1, 0]])
    train_batches(pruner, range(3))
    pruner.selection_limit.assign(8)
    pruner.lasso_strength.assign(0.25)
    pruner.masked_strength.assign(0.5)
    pruner.flops_removed.assign(0.375)
    pruner.epsilon.assign(1e-3)
    pruner.save(tmp_path / "pruner.keras")
    pruner.save_weights(tmp_path / "pruner.weights.h5")
    # What was not scaled stays so where Keras would scale it, and the reverse.
    with policy("mixed_float16" if way == "mixed_unscaled" else "float32"):
        loaded = keras.models.load_model(tmp_path / "pruner.keras")
    refilled = compiled_as(way, seed=1)
    refilled.load_weights(tmp_path / "pruner.weights.h5")
    before = whole_state(pruner)
    assert len(before) > 20
    for copy in (loaded, refilled):
        assert type(copy) is resrep_tf.ResRepModel
        assert_equal(before, whole_state(copy))
        assert copy.snap == pruner.snap
        assert copy.compiled_strength == pruner.compiled_strength
        assert copy.compactor_momentum == pruner.compactor_momentum
        for name in ("optimizer", "compactor_optimizer"):
            assert type(getattr(copy, name)) is type(getattr(pruner, name))
        assert int(copy.selection_limit) == 8
        assert [list(np.asarray(c.mask)) for c in copy.compactors] == [
            [1, 0, 1, 1],
            [1, 1, 0],
        ]
    for model in (pruner, loaded):
        train_batches(model, range(3, 5))
    after = whole_state(pruner)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert_equal(after, whole_state(loaded))


def test_a_loaded_model_still_follows(tmp_path):
    following(SGD(0.1)).save(tmp_path / "pruner.keras")
    pruner = keras.models.load_model(tmp_path / "pruner.keras")
    np.testing.assert_allclose(shrinkage(pruner), 0.1, rtol=1e-3)
    pruner.optimizer.learning_rate = 0.02
    np.testing.assert_allclose(shrinkage(pruner), 0.02, rtol=1e-2)


def test_a_model_that_is_not_compiled_is_saved_too(tmp_path):
    pruner = resrep_tf.wrap(network())
    pruner.set_masks([[1, 0, 1, 1], [1, 1, 0]])
    pruner.save(tmp_path / "pruner.keras")
    loaded = keras.models.load_model(tmp_path / "pruner.keras")
    assert loaded.compactor_optimizer is None and not loaded.compiled
    assert_equal(values(pruner.variables), values(loaded.variables))
    config = keras.saving.serialize_keras_object(pruner)
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is resrep_tf.ResRepModel
    assert copy.get_config() == pruner.get_config()


# === Arguments ===


@pytest.mark.parametrize("strength", [0, -1.0, float("nan"), float("inf")])
def test_lasso_strength_must_be_positive(strength):
    pruner = resrep_tf.wrap(network())
    with pytest.raises(ValueError, match=f"Received: lasso_strength={strength}"):
        pruner.compile("sgd", CE, lasso_strength=strength)


@pytest.mark.parametrize("momentum", [1, -0.1, 1.5])
def test_momentum_must_be_a_fraction(momentum):
    pruner = resrep_tf.wrap(network())
    with pytest.raises(ValueError, match=f"Received: compactor_optimizer={momentum}"):
        pruner.compile("sgd", CE, compactor_optimizer=momentum)


def test_what_the_optimizers_may_not_do():
    pruner = resrep_tf.wrap(network())
    with pytest.raises(ValueError, match=r"no weight decay\. Received: .*decay=0\.25"):
        pruner.compile("sgd", CE, compactor_optimizer=SGD(weight_decay=0.25))
    with pytest.raises(ValueError, match=r"`optimizer` cannot .*use_ema=True"):
        pruner.compile(SGD(use_ema=True), CE)
    with pytest.raises(ValueError, match=r"`compactor_optimizer` .*use_ema=True"):
        pruner.compile("sgd", CE, compactor_optimizer=SGD(use_ema=True))


def test_something_must_be_left_to_learn():
    pruner = resrep_tf.wrap(network(frozen=["first", "second", "head"]))
    with pytest.raises(ValueError, match=r"All layers are frozen.*'functional"):
        pruner.compile("sgd", CE)


def test_fit_asks_for_a_selection_of_channels():
    pruner = compiled("sgd")
    x, y = data()
    with pytest.raises(
        ValueError, match=r"ChannelSelection\(.*Received: callbacks=None"
    ):
        pruner.fit(x, y, verbose=0)
    others = [keras.callbacks.TerminateOnNaN()]
    with pytest.raises(ValueError, match=r"Received: callbacks=\[.*TerminateOnNaN"):
        pruner.fit(x, y, callbacks=others, verbose=0)


@pytest.mark.filterwarnings("ignore:The last of")  # The run is too short, of course.
@pytest.mark.parametrize("given", ["alone", "in a list", "by position", "by Keras"])
def test_all_ways_to_hand_over_the_selection(given):
    pruner = compiled("sgd")
    x, y = data()
    selection = resrep_tf.ChannelSelection(0.3, warmup_steps=10**6)
    if given == "by position":
        pruner.fit(x, y, None, 1, 0, [selection])
    else:
        callbacks = selection
        if given == "in a list":
            callbacks = [keras.callbacks.TerminateOnNaN(), selection]
        elif given == "by Keras":
            callbacks = keras.callbacks.CallbackList(
                [selection], add_history=True, model=pruner, epochs=1, steps=1
            )
        pruner.fit(x, y, callbacks=callbacks, verbose=0)
    assert int(pruner.optimizer.iterations) == 1
    assert selection.plan.warmup_steps == 10**6
