"""Res without Rep: the layers' own filters are trained to be forgotten."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.baselines import ablation
from support.trainings import (
    fit_toy,
    no_objective,
    objective,
    row_norms,
    toy_data,
    toy_model,
)


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
    before = row_norms(pruner)
    fit_toy(pruner, ablation.LassoOnly(), steps=8)
    for old, new in zip(before, row_norms(pruner), strict=True):
        np.testing.assert_allclose(new, old - 8 * 0.1 * 0.03, rtol=1e-4)


def test_without_a_lasso_worth_speaking_of_it_is_plain_training():
    """Filters have the main optimizer's momentum and learning rate."""
    model = toy_model()
    pruner = compiled_filters(model=model, momentum=0.9, lasso_strength=1e-12)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), objective)
    fit_toy(pruner, ablation.LassoOnly(), shuffle=False)
    fit_toy(model, [], shuffle=False)
    for layer in model.layers:
        for old, new in zip(
            layer.get_weights(), pruner.get_layer(layer.name).get_weights(), strict=True
        ):
            np.testing.assert_allclose(old, new, rtol=1e-4, atol=1e-6)


def test_masked_filters_are_forgotten_and_others_learn():
    pruner = compiled_filters(lasso_strength=1e-4, masked_strength=1.0, snap=True)
    selection = resrep_tf.ChannelSelection(
        0.5, warmup_steps=0, interval=1, step=14, schedule="paper"
    )
    fit_toy(pruner, selection, steps=40)
    masks = [np.asarray(c.mask) > 0.5 for c in pruner.compactors]
    assert not all(mask.all() for mask in masks)
    for mask, after in zip(masks, row_norms(pruner), strict=True):
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
    pruner = compiled_filters(masked_strength=1e-9, snap=False)
    before = np.asarray(pruner.get_layer("conv1").kernel)
    mask = np.arange(8) % 2 == 0
    pruner.set_masks([mask, np.ones(6)])
    keras.Model.fit(pruner, *toy_data(), verbose=0)
    moved = np.abs(np.asarray(pruner.get_layer("conv1").kernel) - before)
    assert moved[..., ~mask].max() < 1e-8 < 1e-5 < moved[..., mask].max()


def test_reload_binds_the_filters_again(tmp_path):
    pruner = compiled_filters(momentum=0.9, lasso_strength=0.01)
    fit_toy(pruner, ablation.LassoOnly(), steps=4)
    pruner.save(tmp_path / "pruner.keras")
    loaded = keras.models.load_model(
        tmp_path / "pruner.keras", {"objective": objective}
    )
    assert loaded.compactor_momentum == 0.9
    for compactor, name in zip(loaded.compactors, ("conv1", "conv2"), strict=True):
        assert compactor.kind == "filters"
        assert compactor.rows is loaded.get_layer(name).kernel
    for old, new in zip(row_norms(pruner), row_norms(loaded), strict=True):
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
