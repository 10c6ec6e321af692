"""The ablation's variants: what is trained, what is masked, what is left."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.baselines import ablation
from resrep_tf.report import figures


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


# === The layers' own filters ===


def filter_norms(model, name):
    kernel = np.asarray(model.get_layer(name).kernel)
    return np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]), axis=0)


def compiled_filters(loss=objective, model=None, **options):
    pruner = resrep_tf.wrap(model or toy_model(), compactor="filters")
    optimizer = keras.optimizers.SGD(0.1, momentum=options.pop("momentum", 0.0))
    pruner.compile(optimizer, loss, **options)
    return pruner


def test_rows_are_the_filters():
    model = toy_model()
    pruner = compiled_filters(model=model)
    for compactor, name in zip(pruner.compactors, ("conv1", "conv2"), strict=True):
        assert compactor.rows is pruner.get_layer(name).kernel
        np.testing.assert_allclose(
            compactor.row_norms(), filter_norms(model, name), rtol=1e-6
        )
    names = [v.path for v in pruner.compactor_optimizer._trainable_variables]
    assert names == ["conv1/kernel", "conv2/kernel"]
    assert not set(names) & {v.path for v in pruner.optimizer._trainable_variables}


def test_the_lasso_on_filters_shrinks_them_by_the_closed_form():
    pruner = compiled_filters(no_objective, lasso_strength=0.03)
    before = norms(pruner)
    fit(pruner, ablation.LassoOnly(), steps=8)
    for old, new in zip(before, norms(pruner), strict=True):
        np.testing.assert_allclose(new, old - 8 * 0.1 * 0.03, rtol=1e-4)


def test_without_a_lasso_worth_speaking_of_it_is_plain_training():
    """Filters have the main optimizer's momentum and learning rate."""
    model = toy_model()
    pruner = compiled_filters(model=model, momentum=0.9, lasso_strength=1e-12)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), objective)
    fit(pruner, ablation.LassoOnly(), shuffle=False)
    fit(model, [], shuffle=False)
    for layer in model.layers:
        for old, new in zip(
            layer.get_weights(), pruner.get_layer(layer.name).get_weights(), strict=True
        ):
            np.testing.assert_allclose(old, new, rtol=1e-4, atol=1e-6)


def test_masked_filters_are_forgotten_and_others_learn():
    pruner = compiled_filters(lasso_strength=1e-4, masked_strength=1.0, snap=True)
    selection = resrep_tf.ChannelSelection(0.5, warmup_steps=0, interval=1, step=14)
    fit(pruner, selection, steps=40)
    masks = [np.asarray(c.mask) > 0.5 for c in pruner.compactors]
    assert not all(mask.all() for mask in masks)
    for mask, after in zip(masks, norms(pruner), strict=True):
        np.testing.assert_array_equal(after[~mask], 0)
        assert after[mask].min() > 0.1
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert report.flops_removed >= 0.5
    assert [slim.get_layer(f"conv{i}").filters for i in (1, 2)] == [
        int(mask.sum()) for mask in masks
    ]
    # The BatchNorms' constants went with the filters.
    assert report.damage is not None and report.difference < 1e-4


def test_reset_filters_do_not_feel_the_objective():
    pruner = compiled_filters(masked_strength=1e-9)
    before = np.asarray(pruner.get_layer("conv1").kernel)
    mask = np.arange(8) % 2 == 0
    pruner.set_masks([mask, np.ones(6)])
    keras.Model.fit(pruner, *data(), verbose=0)
    moved = np.abs(np.asarray(pruner.get_layer("conv1").kernel) - before)
    assert moved[..., ~mask].max() < 1e-8 < 1e-5 < moved[..., mask].max()


def test_reload_binds_the_filters_again(tmp_path):
    pruner = compiled_filters(momentum=0.9, lasso_strength=0.01)
    fit(pruner, ablation.LassoOnly(), steps=4)
    pruner.save(tmp_path / "pruner.keras")
    loaded = keras.models.load_model(
        tmp_path / "pruner.keras", {"objective": objective}
    )
    assert loaded.compactor_momentum == 0.9
    for compactor, name in zip(loaded.compactors, ("conv1", "conv2"), strict=True):
        assert compactor.kind == "filters"
        assert compactor.rows is loaded.get_layer(name).kernel
    for old, new in zip(norms(pruner), norms(loaded), strict=True):
        np.testing.assert_array_equal(old, new)


def test_filters_that_cannot_be_trained_alone_are_refused():
    inputs = keras.Input((6, 6, 2))
    stem = L.Conv2D(4, 3, padding="same", name="stem")(inputs)
    x = L.Conv2D(4, 3, padding="same", name="branch")(L.ReLU()(stem))
    x = L.Conv2DTranspose(5, 2, name="transposed")(L.Add()([stem, x]))
    frozen = L.Conv2D(5, 1, name="frozen", trainable=False)
    x = L.GlobalAveragePooling2D()(L.ReLU()(frozen(L.ReLU()(x))))
    model = keras.Model(inputs, L.Dense(3)(x))
    for name, why in [
        ("stem", "shares its channels"),
        ("transposed", "on another axis"),
        ("frozen", "is frozen"),
    ]:
        with pytest.raises(ValueError, match=rf"`{name}` cannot .*{why}.*'filters'"):
            resrep_tf.wrap(model, [name], compactor="filters")


def test_filters_without_sgd_need_an_optimizer():
    pruner = resrep_tf.wrap(toy_model(), compactor="filters")
    with pytest.raises(ValueError, match=r"give `compactor_optimizer`.*Received"):
        pruner.compile("adam", objective)
    pruner.compile("adam", objective, compactor_optimizer=0.9)
    assert pruner.compactor_momentum == 0.9


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
