"""Small wrapped networks, and functions that train them."""

import contextlib

import keras
import numpy as np
from keras import layers as L
from keras.optimizers import SGD

import resrep_tf
from support.checks import randomise

CE = "sparse_categorical_crossentropy"
# For a few steps, tracing takes far longer than training. Where graphs could make a
# difference, they are tested too.
EAGER = {"run_eagerly": True, "jit_compile": False}
GRAPH = {"run_eagerly": False, "jit_compile": False}
JIT = {"run_eagerly": False, "jit_compile": True}
# So small that a compactor whose rows are all masked stays exactly the identity.
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
    pruner.compile(optimizer, loss, **{**EAGER, "snap": False, **arguments})
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
    """Calls Keras's own `fit`, which needs no selection of channels."""
    return keras.Model.fit(model, *args, shuffle=False, verbose=0, **kwargs)


def assert_equal(left, right, rtol=0.0):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def cosine():
    return keras.optimizers.schedules.CosineDecay(0.1, 4)


# Each: the optimizer, what else `compile` is given, and what else `fit` is given.


def half(optimizer, kind="mixed_float16", **arguments):
    with policy(kind):
        return compiled(optimizer, **arguments)


def following(optimizer, momentum=0, **arguments):
    pruner = compiled(
        optimizer, compactor_optimizer=momentum, lasso_strength=0.01, **arguments
    )
    mask_all(pruner)
    return pruner


def shrinkage(pruner, steps=1):
    """Returns by how much steps shorten masked rows: rate * strength each."""
    compactor = pruner.compactors[0]
    ways = []
    for _ in range(steps):
        before = np.asarray(compactor.row_norms())
        pruner.train_on_batch(*data())
        ways.append(before - np.asarray(compactor.row_norms()))
    ways = np.array(ways) / float(pruner.state.lasso_strength)
    np.testing.assert_allclose(ways, ways[:, :1] * np.ones(4), rtol=1e-6)
    return ways[:, 0]


# === Selecting channels ===


def dense_network(widths=(8, 6)):
    inputs = keras.Input((5,))
    x = inputs
    for number, width in enumerate(widths):
        x = L.Dense(width, activation="tanh", name=f"hidden_{number}")(x)
    return randomise(keras.Model(inputs, L.Dense(3, activation="softmax")(x)))


def pruner_of(widths=(8, 6), optimizer=None, **arguments):
    pruner = resrep_tf.wrap(dense_network(widths))
    pruner.compile(
        optimizer or SGD(0.05, momentum=0.9),
        CE,
        **{**GRAPH, "snap": False, **arguments},
    )
    return pruner


def paper(flops_target, *args, **arguments):
    """Selects with the constants that are given, whether they fit the run or not."""
    return resrep_tf.ChannelSelection(
        flops_target, *args, schedule="paper", **arguments
    )


def vectors(batches=10, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4 * batches, 5)), rng.integers(0, 3, 4 * batches)


def fit_selecting(pruner, *callbacks, batches=10, **arguments):
    x, y = vectors(batches)
    arguments = {"batch_size": 4, "shuffle": False, "verbose": 0, **arguments}
    return pruner.fit(x, y, callbacks=list(callbacks), **arguments).history


def masked(pruner):
    return [int((np.asarray(c.mask) < 0.5).sum()) for c in pruner.compactors]


class Watch(keras.callbacks.Callback):
    """Records after each batch the step, the limit and the number of masked rows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        limit = int(self.model.state.selection_limit)
        self.seen.append((step, limit, sum(masked(self.model))))


class Never(keras.callbacks.Callback):
    """Fails when training begins."""

    def on_train_batch_begin(self, batch, logs=None):
        raise AssertionError("a batch has begun")


# === The ablation ===


def toy_model():
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn1")(x))
    x = L.Conv2D(6, 3, padding="same", name="conv2")(x)
    x = L.GlobalAveragePooling2D()(L.ReLU()(x))
    return keras.Model(inputs, L.Dense(3, name="logits")(x))


def no_objective(y_true, y_pred):
    """Returns a loss without gradients, so that only the Lasso acts."""
    return 0.0 * keras.ops.sum(y_pred, axis=-1)


def objective(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True)


def toy_data(examples=64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, 6, 6, 2)).astype("float32")
    return x, rng.integers(0, 3, examples)


def fit_toy(pruner, callback, steps=8, **options):
    """Trains for as many steps of 16 examples."""
    x, y = toy_data()
    options = {"batch_size": 16, "epochs": steps // 4, "verbose": 0, **options}
    callbacks = callback if isinstance(callback, list) else [callback]
    return pruner.fit(x, y, callbacks=callbacks, **options)


def row_norms(pruner):
    return [np.asarray(c.row_norms()) for c in pruner.compactors]
