"""The two optimizers: learning rates, momentum, clipping, and what is refused."""

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, Adam, AdamW, LossScaleOptimizer

import resrep_tf
from support.checks import precision
from support.trainings import (
    CE,
    EAGER,
    GRAPH,
    NOTHING,
    compiled,
    cosine,
    data,
    fit,
    following,
    half,
    mask_all,
    network,
    shrinkage,
    values,
)


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
    assert float(pruner.state.lasso_strength) == pytest.approx(1e-4)
    assert pruner.snap is True and pruner.leading_optimizer is pruner.optimizer
    pruner.compile("adam", CE, compactor_optimizer=0.5)
    assert pruner.compactor_momentum == 0.5
    pruner.compile("adam", CE, compactor_optimizer="adam", snap=False)
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
