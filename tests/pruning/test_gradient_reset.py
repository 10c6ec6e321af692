"""The gradient of forgetting, and what it does to masked rows while training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.pruning.gradient_reset import lasso_gradient, reset_gradient, row_norms
from support.checks import precision

# Matrix and vector compactors, and kernels of convolutions (height, width, in, out).
SHAPES = [(5, 4), (4,), (3, 3, 2, 4), (2, 2, 2, 3, 4)]


def draw(shape, seed=0):
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=shape)
    kernel[..., 1] = 0
    mask = np.array([1.0, 1.0, 0.0, 0.0])
    return rng.normal(size=shape), kernel, mask


def equation_14(gradient, kernel, mask, strength):
    """The paper's equation, row by row and number by number."""
    result = np.empty_like(gradient)
    for row in range(kernel.shape[-1]):
        squares = 0.0
        for value in kernel[..., row].flat:
            squares += float(value) ** 2
        norm = squares**0.5
        for index in np.ndindex(kernel.shape[:-1]):
            place = (*index, row)
            pull = strength * kernel[place] / norm if norm > 0 else 0.0
            result[place] = mask[row] * gradient[place] + pull
    return result


# === The equation ===


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("strength", [1e-4, 3.0])
def test_reset_gradient_is_the_papers_equation(shape, strength):
    gradient, kernel, mask = draw(shape)
    reset = np.asarray(reset_gradient(gradient, tf.constant(kernel), mask, strength))
    expected = equation_14(gradient, kernel, mask, strength)
    assert reset.dtype == np.float64
    np.testing.assert_allclose(reset, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_row_norms_are_those_of_output_channels(shape):
    _, kernel, _ = draw(shape)
    rows = kernel.reshape(-1, kernel.shape[-1])
    expected = [np.linalg.norm(row) for row in rows.T]
    np.testing.assert_allclose(row_norms(tf.constant(kernel)), expected, rtol=1e-14)


def test_the_lasso_of_a_vector_is_the_sign():
    kernel = tf.constant([-2.0, 0.0, 1e-12, 7.0], tf.float64)
    pull = lasso_gradient(kernel, 0.5)
    np.testing.assert_allclose(pull, [-0.5, 0.0, 0.5, 0.5], rtol=1e-14)


def test_the_lasso_of_a_row_has_the_norm_of_the_strength():
    _, kernel, _ = draw((6, 4))
    norms = row_norms(lasso_gradient(tf.constant(kernel), 0.25))
    np.testing.assert_allclose(norms, [0.25, 0.0, 0.25, 0.25], rtol=1e-14)


def test_the_mask_never_touches_the_lasso():
    gradient, kernel, _ = draw((5, 4))
    kernel = tf.constant(kernel)
    masked = reset_gradient(gradient, kernel, np.zeros(4), 0.1)
    np.testing.assert_array_equal(masked, lasso_gradient(kernel, 0.1))
    free = reset_gradient(gradient, kernel, np.ones(4), 0.1)
    np.testing.assert_allclose(free - masked, gradient, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (3,), (1, 1, 3, 3)], ids=str)
def test_zero_rows_are_left_alone(dtype, jit, shape):
    """At zero the Lasso has no direction: not NaN, and not a push either."""

    @tf.function(jit_compile=jit)
    def step(kernel, inputs):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = tf.reduce_sum(kernel * inputs)
        gradient = tape.gradient(loss, kernel)
        return reset_gradient(gradient, kernel, tf.constant([1.0, 0.0, 0.0]), 0.5)

    reset = step(tf.zeros(shape, dtype), tf.ones(shape, dtype))
    assert reset.dtype == dtype
    expected = np.zeros(shape)
    expected[..., 0] = 1  # What the objective asks for, and nothing else.
    np.testing.assert_array_equal(tf.cast(reset, "float32"), expected)


def test_variables_are_read_as_well_as_tensors():
    _, kernel, mask = draw((5, 4))
    gradient = np.zeros_like(kernel)
    reset = reset_gradient(
        tf.constant(gradient),
        keras.Variable(kernel, dtype="float64"),
        keras.Variable(mask),
        keras.Variable(0.125),
    )
    expected = equation_14(gradient, kernel, mask, 0.125)
    np.testing.assert_allclose(reset, expected, rtol=1e-14, atol=0)


# === Snapping to zero ===

RATE, STRENGTH, MOMENTUM = 0.1, 0.05, 0.5
REACH = RATE * STRENGTH / (1 - MOMENTUM)  # 0.01


def one_compactor(snap, momentum=MOMENTUM, kind="matrix", **arguments):
    inputs = keras.Input((6,))
    x = L.Dense(4, activation="tanh", name="hidden")(inputs)
    model = keras.Model(inputs, L.Dense(2)(x))
    pruner = resrep_tf.wrap(model, compactor=kind)
    pruner.compile(
        keras.optimizers.SGD(RATE),
        "mse",
        compactor_optimizer=momentum,
        lasso_strength=STRENGTH,
        snap=snap,
        **arguments,
    )
    return pruner, pruner.compactors[0]


def set_rows(compactor, norms):
    rows = np.eye(4) if compactor.kind == "matrix" else np.ones(4)
    compactor.kernel.assign(rows * np.array(norms))


def train(pruner, steps=1):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(8, 6)), rng.normal(size=(8, 2))
    for _ in range(steps):
        pruner.train_on_batch(x, y)


@pytest.mark.parametrize("kind", ["matrix", "vector"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_only_masked_rows_within_reach_snap(kind, jit_compile):
    with precision("float64"):
        pruner, compactor = one_compactor(True, kind=kind, jit_compile=jit_compile)
    pull = RATE * float(pruner.state.lasso_strength)  # Of the first step, from rest.
    pruner.set_masks([[1, 0, 0, 1]])
    set_rows(compactor, [0.9 * REACH, REACH + 0.9 * pull, REACH + 1.1 * pull, 1])
    # Without an objective, so that the Lasso alone moves the rows.
    pruner.train_on_batch(np.ones((8, 6)), np.ones((8, 2)), np.zeros(8))
    expected = [0.9 * REACH - pull, 0, REACH + 0.1 * pull, 1 - pull]
    norms = np.asarray(compactor.row_norms())
    np.testing.assert_allclose(norms, expected, rtol=1e-6, atol=0)
    (velocity,) = pruner.compactor_optimizer.momentums
    velocity = np.asarray(velocity)
    assert (velocity[..., 1] == 0).all()
    np.testing.assert_allclose(np.abs(velocity[..., 2]).sum(), pull, rtol=1e-6)
    assert np.abs(velocity[..., 0]).sum() > 0


def test_a_snapped_row_stays_zero_while_masked_and_may_come_back():
    pruner, compactor = one_compactor(True)
    pruner.set_masks([[1, 0, 1, 1]])
    set_rows(compactor, [1, REACH / 2, 1, 1])
    for _ in range(5):
        train(pruner)
        assert (np.asarray(compactor.kernel)[:, 1] == 0).all()
    pruner.set_masks([[1, 1, 1, 1]])
    train(pruner, 2)
    assert (np.asarray(compactor.kernel)[:, 1] != 0).any()


def test_without_snap_a_masked_row_passes_zero():
    with precision("float64"):
        pruner, compactor = one_compactor(False)
    strength = float(pruner.state.lasso_strength)
    pruner.set_masks([[1, 0, 1, 1]])
    set_rows(compactor, [1, 0.004, 1, 1])
    position, velocity = 0.004, 0.0
    signs = set()
    for _ in range(6):
        velocity = MOMENTUM * velocity - RATE * strength * np.sign(position)
        position += velocity
        signs.add(np.sign(position))
        train(pruner)
        row = np.asarray(compactor.kernel)[:, 1]
        np.testing.assert_allclose(row, [0, position, 0, 0], rtol=1e-9)
    assert signs == {1, -1}


def test_newly_masked_rows_start_from_rest_with_snap():
    pruner, compactor = one_compactor(True)
    (velocity,) = pruner.compactor_optimizer.momentums
    pruner.set_masks([[1, 1, 1, 0]])
    velocity.assign(np.ones((4, 4)))
    pruner.set_masks([[1, 1, 0, 0]])
    # Row 2 is new. Row 3 was masked before: what it has is forgetting's own speed.
    np.testing.assert_array_equal(velocity, np.ones((4, 4)) * [1, 1, 0, 1])
    pruner.set_masks([[1, 1, 1, 0]])
    np.testing.assert_array_equal(velocity, np.ones((4, 4)) * [1, 1, 0, 1])
    np.testing.assert_array_equal(compactor.mask, [1, 1, 1, 0])


def test_without_snap_velocities_are_left_alone():
    pruner, _ = one_compactor(False)
    (velocity,) = pruner.compactor_optimizer.momentums
    velocity.assign(np.ones((4, 4)))
    pruner.set_masks([[1, 0, 0, 1]])
    np.testing.assert_array_equal(velocity, np.ones((4, 4)))


def test_snap_works_without_momentum():
    pruner, compactor = one_compactor(True, momentum=0)
    assert pruner.compactor_optimizer.momentums == []
    pruner.set_masks([[0, 1, 1, 1]])
    set_rows(compactor, [1.5 * RATE * STRENGTH, 1, 1, 1])
    train(pruner)
    norms = np.asarray(compactor.row_norms())
    assert norms[0] == 0 and (norms[1:] > 0.5).all()


def test_snap_needs_sgd():
    pruner, _ = one_compactor(False)
    adam = keras.optimizers.Adam()
    pruner.compile("sgd", "mse", compactor_optimizer=adam, snap=False)
    arguments = {"compactor_optimizer": keras.optimizers.Adam(), "snap": True}
    with pytest.raises(ValueError, match=r"needs SGD.*Received: .*Adam"):
        pruner.compile("sgd", "mse", **arguments)


def test_a_crossing_row_is_seen_at_any_speed():
    """From any start, a masked row reaches zero exactly and never turns over."""
    pruner, compactor = one_compactor(True)
    starts = np.array([0.3, 0.1234, 0.05, 0.0201])
    pruner.set_masks([[0, 0, 0, 0]])
    set_rows(compactor, starts)
    for _ in range(40):
        train(pruner)
        diagonal = np.diagonal(np.asarray(compactor.kernel))
        assert (diagonal >= 0).all()
    assert (diagonal == 0).all()


def test_masks_must_fit():
    pruner, _ = one_compactor(False)
    with pytest.raises(ValueError, match=r"each of 1 compactors\. Received: 2 arrays"):
        pruner.set_masks([np.ones(4), np.ones(4)])
    with pytest.raises(ValueError, match=r"\(4,\).*\(3,\)"):
        pruner.set_masks([np.ones(3)])


def test_forgotten_is_the_share_of_masked_rows_below_epsilon():
    pruner, compactor = one_compactor(False)
    assert float(pruner.forgotten_share()) == 0
    pruner.set_masks([[1, 0, 0, 0]])
    set_rows(compactor, [1e-9, 1e-9, 1e-6, 1e-4])
    assert float(pruner.forgotten_share()) == pytest.approx(2 / 3)
    pruner.state.epsilon.assign(1e-7)
    assert float(pruner.forgotten_share()) == pytest.approx(1 / 3)
