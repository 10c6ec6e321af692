"""The ablation's variants: what is trained, what is masked, what is left."""

import keras
import numpy as np
import pytest

import resrep_tf
from resrep_tf.baselines import ablation
from resrep_tf.budget.parameters import ParametersMeter
from support.trainings import (
    fit_toy,
    no_objective,
    objective,
    row_norms,
    toy_model,
)

# === Rep without Res ===


def test_rows_shrink_by_the_closed_form():
    """Without an objective and momentum, a norm falls by lr * lambda a step."""
    pruner = resrep_tf.wrap(toy_model())
    optimizer = keras.optimizers.SGD(0.1)
    pruner.compile(optimizer, no_objective, compactor_optimizer=0.0, lasso_strength=0.3)
    fit_toy(pruner, ablation.LassoOnly(), steps=8)
    for after in row_norms(pruner):
        np.testing.assert_allclose(after, 1 - 8 * 0.1 * 0.3, rtol=1e-5)


def test_no_row_is_masked_and_all_go_on_learning():
    pruner = resrep_tf.wrap(toy_model())
    pruner.compile(keras.optimizers.SGD(0.1), objective)
    pruner.set_masks([np.zeros(c.width) for c in pruner.compactors])
    before = [np.asarray(c.kernel) for c in pruner.compactors]
    fit_toy(pruner, ablation.LassoOnly(), steps=4)
    for old, compactor in zip(before, pruner.compactors, strict=True):
        assert np.asarray(compactor.mask).all()
        # The objective moves them off the diagonal; the Lasso would not.
        off = ~np.eye(compactor.width, dtype=bool)
        assert np.abs(np.asarray(compactor.kernel) - old)[off].max() > 1e-5


def test_rows_are_chosen_at_the_end_by_norm():
    model = toy_model()
    pruner = resrep_tf.wrap(model)
    sizes = np.linspace(0.1, 1.4, 14)
    for compactor, part in zip(pruner.compactors, (sizes[:8], sizes[8:]), strict=True):
        compactor.kernel.assign(np.diag(part))
    keep = ablation.keep_largest(pruner, 0.5)
    kept = np.concatenate(list(keep.values()))
    assert (np.diff(kept.astype(int)) >= 0).all() and not kept[0]
    slim = resrep_tf.convert(pruner, keep=keep)
    total = resrep_tf.count_flops(model)
    assert resrep_tf.count_flops(slim) <= 0.5 * total
    kept[np.flatnonzero(~kept)[-1]] = True
    wider = dict(zip(keep, (kept[:8], kept[8:]), strict=True))
    assert resrep_tf.count_flops(resrep_tf.convert(pruner, keep=wider)) > 0.5 * total


def test_an_unreachable_target_is_refused():
    pruner = resrep_tf.wrap(toy_model())
    with pytest.raises(ValueError, match=r"At most .* Received: flops_target=0.99"):
        ablation.keep_largest(pruner, 0.99)


# === Records ===


def test_quadratic_sums_are_those_of_the_structure():
    pruner = resrep_tf.wrap(toy_model())
    first, _ = pruner.compactors
    first.kernel.assign(2 * np.eye(8))
    keep = {first.name: np.arange(8) < 5}
    assert ablation.quadratic_sums(pruner, keep) == (5 * 4 + 6, 3 * 4)
    keep = {"conv1": np.arange(8) < 5, "conv2": np.arange(6) < 1}
    assert ablation.quadratic_sums(pruner, keep) == (5 * 4 + 1, 3 * 4 + 5)


def test_rows_are_chosen_by_their_parameters_too():
    pruner = resrep_tf.wrap(toy_model())
    whole = ParametersMeter.of(pruner.graph).total
    keep = ablation.keep_largest(pruner, params_target=0.4)
    assert resrep_tf.convert(pruner, keep=keep).count_params() <= 0.6 * whole
