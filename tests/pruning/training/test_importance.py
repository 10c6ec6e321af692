"""What gradients say about rows while the network trains."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.optimizers import SGD, LossScaleOptimizer

from resrep_tf import ChannelSelection
from support.checks import precision
from support.trainings import (
    EAGER,
    GRAPH,
    compiled,
    data,
    fit_selecting,
    pruner_of,
)


def gate_gradients(pruner, x, y):
    """The gradient of the loss for a scale of each row, by scales of its own."""
    kernels = [np.asarray(c.kernel) for c in pruner.compactors]
    scales = [
        tf.ones(c.width, k.dtype)
        for c, k in zip(pruner.compactors, kernels, strict=True)
    ]
    with tf.GradientTape() as tape:
        tape.watch(scales)
        h = tf.convert_to_tensor(x)
        for name, scale, kernel in zip(
            ("first", "second"), scales, kernels, strict=True
        ):
            conv = pruner.get_layer(name)
            h = tf.nn.conv2d(h, conv.kernel.value, 1, "VALID") + conv.bias.value
            h = tf.tanh(h @ (kernel * scale))
        h = pruner.get_layer("head")(tf.reduce_mean(h, (1, 2)))
        loss = keras.losses.sparse_categorical_crossentropy(y, h)
        loss = tf.reduce_mean(loss)
    return np.concatenate(tape.gradient(loss, scales))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("mode", [EAGER, GRAPH], ids=["eager", "graph"])
def test_importance_is_the_mean_square_of_what_scaling_a_row_does(mode, scaled):
    optimizer = SGD(0.05)
    if scaled:
        optimizer = LossScaleOptimizer(optimizer, initial_scale=1024.0)
    rng = np.random.default_rng(1)
    with precision("float64"):
        pruner = compiled(optimizer, **mode)
        pruner.state.rows_learn.assign(0.0)
        for compactor in pruner.compactors:
            noise = rng.normal(size=compactor.kernel.shape) * 0.3
            compactor.kernel.assign(np.asarray(compactor.kernel) + noise)
        expected = 0
        for seed in range(4):
            x, y = data(seed=seed)
            expected = 0.99 * expected + 0.01 * gate_gradients(pruner, x, y) ** 2
            pruner.train_on_batch(x, y)
    found = np.concatenate(pruner.row_importance())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert [len(rows) for rows in pruner.row_importance()] == [4, 3]


def test_a_step_that_overflows_leaves_importance_as_it_is():
    pruner = compiled(LossScaleOptimizer(SGD(0.05), initial_scale=4.0), **EAGER)
    pruner.state.rows_learn.assign(0.0)
    pruner.train_on_batch(*data())
    before = np.concatenate(pruner.row_importance())
    x, y = data()
    pruner.train_on_batch(np.full_like(x, np.inf), y)
    assert before.all()
    np.testing.assert_array_equal(np.concatenate(pruner.row_importance()), before)


@pytest.mark.parametrize("mode", [EAGER, GRAPH], ids=["eager", "graph"])
def test_importance_is_noted_only_where_rows_keep_still(mode):
    pruner = compiled(SGD(0.05), **mode)
    pruner.train_on_batch(*data())
    assert not np.concatenate(pruner.row_importance()).any()
    pruner.state.rows_learn.assign(0.0)
    pruner.train_on_batch(*data())
    assert np.concatenate(pruner.row_importance()).all()


def test_rows_that_are_not_masked_keep_still():
    """Until they are masked; with the other schedules they learn."""
    still = {}
    for schedule in ("informed", "auto"):
        pruner = pruner_of(snap=True)
        fit_selecting(pruner, ChannelSelection(0.5, schedule=schedule), epochs=4)
        still[schedule] = True
        for compactor in pruner.compactors:
            kept = np.asarray(compactor.mask) > 0.5
            kernel, start = np.asarray(compactor.kernel), np.eye(compactor.width)
            assert kept.any() and not kept.all() and not kernel[:, ~kept].any()
            still[schedule] &= np.array_equal(kernel[:, kept], start[:, kept])
    assert still == {"informed": True, "auto": False}


def test_channels_on_which_nothing_depends_go_first():
    """Norms, which are all equal, would take the first ones."""
    pruner = pruner_of(widths=(8,), snap=True)
    hidden, head = pruner.layers[1], pruner.layers[-1]
    idle = [1, 4, 6, 7]
    kernel = np.array(head.kernel)
    kernel[idle] *= 1e-3
    head.kernel.assign(kernel)
    selection = ChannelSelection(0.5, schedule="informed")
    fit_selecting(pruner, selection, batches=20, epochs=5)
    masked = np.flatnonzero(np.asarray(pruner.compactors[0].mask) < 0.5)
    assert hidden.name == "hidden_0" and masked.tolist() == idle
