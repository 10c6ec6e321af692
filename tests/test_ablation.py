"""The ablation's variants: what is trained, what is masked, what is left."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf import ablation, figures


def toy_model():
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn1")(x))
    x = L.Conv2D(6, 3, padding="same", name="conv2")(x)
    x = L.GlobalAveragePooling2D()(L.ReLU()(x))
    return keras.Model(inputs, L.Dense(3, name="logits")(x))


def no_objective(y_true, y_pred):
    """A loss without gradients: what is left is the Lasso."""
    return 0.0 * keras.ops.sum(y_pred, axis=-1)


def objective(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True)


def data(examples=64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, 6, 6, 2)).astype("float32")
    return x, rng.integers(0, 3, examples)


def fit(pruner, callback, steps=8, **options):
    """Trains for as many steps of 16 examples."""
    x, y = data()
    options = {"batch_size": 16, "epochs": steps // 4, "verbose": 0, **options}
    callbacks = callback if isinstance(callback, list) else [callback]
    return pruner.fit(x, y, callbacks=callbacks, **options)


def norms(pruner):
    return [np.asarray(c.row_norms()) for c in pruner.compactors]


# === Rep without Res ===


def test_rows_shrink_by_the_closed_form():
    """Without an objective and momentum, a norm falls by lr * lambda a step."""
    pruner = resrep_tf.wrap(toy_model())
    optimizer = keras.optimizers.SGD(0.1)
    pruner.compile(optimizer, no_objective, compactor_optimizer=0.0, lasso_strength=0.3)
    fit(pruner, ablation.LassoOnly(), steps=8)
    for after in norms(pruner):
        np.testing.assert_allclose(after, 1 - 8 * 0.1 * 0.3, rtol=1e-5)


def test_no_row_is_masked_and_all_go_on_learning():
    pruner = resrep_tf.wrap(toy_model())
    pruner.compile(keras.optimizers.SGD(0.1), objective)
    pruner.set_masks([np.zeros(c.width) for c in pruner.compactors])
    before = [np.asarray(c.kernel) for c in pruner.compactors]
    fit(pruner, ablation.LassoOnly(), steps=4)
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


def test_norms_are_recorded_and_can_be_drawn():
    pytest.importorskip("matplotlib")
    pruner = resrep_tf.wrap(toy_model())
    pruner.compile(keras.optimizers.SGD(0.1), objective)
    history = ablation.NormHistory(interval=3)
    fit(pruner, [ablation.LassoOnly(), history], steps=8)
    assert history.steps == [0, 3, 6]
    np.testing.assert_array_equal(history.norms[0], np.ones(14))
    assert not np.array_equal(history.norms[-1], np.ones(14))
    figure = figures.norms(history.steps, history.norms, [True] * 14)
    assert len(figure.axes) == 1
    with pytest.raises(ValueError, match="Received: interval=0"):
        ablation.NormHistory(0)
