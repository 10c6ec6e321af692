"""Loss scales: the Lasso has none, and both optimizers skip the same steps."""

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, LossScaleOptimizer

from support.checks import precision
from support.trainings import (
    GRAPH,
    assert_equal,
    compiled,
    data,
    half,
    mask_all,
    values,
)

# === Low precision ===


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
