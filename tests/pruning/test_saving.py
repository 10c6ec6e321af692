"""Saving: a restart changes nothing, and older files are read."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers as L
from keras.optimizers import SGD, Adam, LossScaleOptimizer

import resrep_tf
from resrep_tf.pruning.compactor import KINDS
from support.checks import randomise
from support.trainings import (
    assert_equal,
    compiled,
    cosine,
    data,
    following,
    network,
    policy,
    shrinkage,
    values,
)

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


def whole_state(pruner, without=()):
    optimizers = pruner.optimizer.variables + pruner.compactor_optimizer.variables
    variables = [v for v in pruner.variables if v.name not in without]
    return values(variables + optimizers)


def train_batches(pruner, numbers):
    for number in numbers:
        pruner.train_on_batch(*data(seed=number))


@pytest.mark.parametrize("way", SAVED)
def test_a_restart_changes_nothing(way, tmp_path):
    """Every variable comes back to the bit, and training goes on as if unstopped."""
    pruner = compiled_as(way, seed=0)
    pruner.set_masks([[1, 0, 1, 1], [1, 1, 0]])
    train_batches(pruner, range(3))
    pruner.state.selection_limit.assign(8)
    pruner.state.lasso_strength.assign(0.25)
    pruner.state.masked_strength.assign(0.5)
    pruner.state.flops_removed.assign(0.375)
    pruner.state.epsilon.assign(1e-3)
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
        assert int(copy.state.selection_limit) == 8
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


# === Files of version 0.1.0 ===

FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize("kind", ["matrix", "filters"])
def test_files_of_the_first_version_are_read(kind):
    """They were saved by that version, together with all values, in mid-training."""
    pruner = keras.models.load_model(FILES / f"{kind}.keras")
    with np.load(FILES / f"{kind}.npz") as saved:
        x, y, outputs = (saved[name] for name in ("x", "y", "outputs"))
        state = [saved[name] for name in sorted(saved) if name.startswith("state")]
    assert type(pruner) is resrep_tf.ResRepModel
    assert all(type(c) is KINDS[kind] for c in pruner.compactors)
    # What came later is as in a new model.
    assert_equal(state, whole_state(pruner, without=("rows_learn", "importance")))
    assert pruner.state.rows_learn == 1 and not np.any(pruner.state.importance)
    assert pruner.snap and pruner.compiled_strength == 0.5
    assert int(pruner.state.selection_limit) == 8
    assert float(pruner.state.flops_removed) == 0.375
    assert float(pruner.state.epsilon) == np.float32(1e-3)
    # Training goes on as it did then.
    pruner.train_on_batch(x, y)
    np.testing.assert_allclose(pruner(x, training=False), outputs, rtol=1e-4, atol=1e-5)


def test_the_variables_that_are_the_wrapped_models_own():
    model = lively()
    pruner = resrep_tf.wrap(model)
    names = [variable.name for variable in pruner.own_variables]
    state = ["selection_limit", "lasso_strength", "masked_strength", "epsilon"]
    state += ["flops_removed", "rows_learn", "importance"]
    assert names == ["kernel", "mask", "kernel", "mask", *state]
    own = sum(int(np.prod(v.shape)) for v in pruner.own_variables)
    assert pruner.count_params() - own == model.count_params()
