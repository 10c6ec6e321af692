"""Runs that go as planned."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras.optimizers import SGD

import resrep_tf
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.selection import selection
from resrep_tf.selection.selection import Constraints
from support.checks import randomise

LOSS = "sparse_categorical_crossentropy"


BATCH = 16


def images(count=640, seed=0):
    """Which of three textures is it? Easy, but not without the channels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    stripes = np.indices((8, 8)) % 2
    textures = np.stack([stripes[0], stripes[1], stripes[0] ^ stripes[1]]) * 2.0 - 1
    noise = rng.normal(size=(count, 8, 8))
    return (textures[labels] + 1.5 * noise)[..., None].astype("float32"), labels


def cnn():
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    x = L.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, L.Dense(3, activation="softmax", name="head")(x))
    return randomise(model)


def compile_pruner(pruner, optimizer, **arguments):
    pruner.compile(
        optimizer, LOSS, metrics=["accuracy"], jit_compile=False, **arguments
    )


def train(pruner, selection, epochs):
    x, y = images()
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0}
    return pruner.fit(x, y, callbacks=[selection], **options).history


def assert_went_as_planned(pruner, selection, history, target):
    """Forgotten or not, nothing in between; and nothing is lost by conversion."""
    assert selection.plan.fits
    norms = np.concatenate([np.asarray(c.row_norms()) for c in pruner.compactors])
    kept = np.concatenate([np.asarray(c.mask) > 0.5 for c in pruner.compactors])
    assert 3 < (~kept).sum() < 13
    assert norms[~kept].max() < 1e-5 < 1e-2 < norms[kept].min()
    assert history["forgotten"][-1] == 1
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert report.flops_removed >= target
    assert report.flops_removed == pytest.approx(history["flops_removed"][-1])
    assert report.rows_dropped == (~kept).sum()
    x, y = images(seed=1)
    wide, narrow = pruner.predict(x, verbose=0), slim.predict(x, verbose=0)
    np.testing.assert_array_equal(wide.argmax(-1), narrow.argmax(-1))
    np.testing.assert_allclose(narrow, wide, atol=1e-4)
    accuracy = float((narrow.argmax(-1) == y).mean())
    scores = pruner.evaluate(x, y, verbose=0, return_dict=True)
    assert scores["accuracy"] == np.float32(accuracy)
    assert accuracy > 0.8


def test_a_run_with_snapping_and_a_schedule_of_its_own():
    pruner = resrep_tf.wrap(cnn())
    compile_pruner(pruner, SGD(0.02, momentum=0.9), snap=True)
    selection = resrep_tf.ChannelSelection(0.6, schedule="auto")
    history = train(pruner, selection, epochs=8)
    assert selection.plan.total_steps == 320
    assert_went_as_planned(pruner, selection, history, 0.6)
    for compactor in pruner.compactors:
        gone = np.asarray(compactor.mask) < 0.5
        assert (np.asarray(compactor.kernel)[:, gone] == 0).all()


def large_filters():
    """Filters of norms about 5, and a head that expects them."""
    model = cnn()
    for layer in (model.get_layer("first"), model.get_layer("second")):
        kernel = np.asarray(layer.kernel)
        sizes = np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]), axis=0)
        layer.kernel.assign(kernel / sizes * np.linspace(4.5, 5.5, len(sizes)))
    head = model.get_layer("head")
    head.kernel.assign(np.asarray(head.kernel) / 5)
    return model


@pytest.mark.slow
def test_a_run_that_forgets_large_filters():
    pruner = resrep_tf.wrap(large_filters(), compactor="filters")
    compile_pruner(pruner, SGD(0.02, momentum=0.9), snap=True)
    selection = resrep_tf.ChannelSelection(0.5, schedule="auto")
    history = train(pruner, selection, epochs=8)
    assert history["flops_removed"][-1] >= 0.5
    assert history["forgotten"][-1] == 1
    for compactor in pruner.compactors:
        kept = np.asarray(compactor.mask) > 0.5
        filters = np.asarray(compactor.rows)
        assert (filters[..., ~kept] == 0).all()
        assert (np.abs(filters[..., kept]).max(axis=(0, 1, 2)) > 0.1).all()
    assert selection.plan.fits and 4.5 < selection.plan.row_norm < 5.5


def test_a_run_as_in_the_paper():
    """No snapping: rows come to rest as the learning rate decays to zero.

    With the paper's momentum that takes some ten thousand steps; with less, hundreds.
    """
    pruner = resrep_tf.wrap(cnn())
    total, target = 640, 0.4
    rate = keras.optimizers.schedules.CosineDecay(0.1, total)
    compile_pruner(pruner, SGD(rate), compactor_optimizer=0.8, snap=False)
    plan = resrep_tf.plan(pruner, target, total)
    compile_pruner(
        pruner,
        SGD(rate),
        compactor_optimizer=0.8,
        masked_strength=plan.masked_strength,
        snap=False,
    )
    selection = resrep_tf.ChannelSelection(
        target, plan.warmup_steps, plan.interval, plan.step, schedule="paper"
    )
    history = train(pruner, selection, epochs=16)
    assert not pruner.snap and selection.plan.total_steps == total
    assert_went_as_planned(pruner, selection, history, target)


def test_filters_are_planned_by_the_norms_they_had_when_wrapped(tmp_path):
    model = large_filters()
    pruner = resrep_tf.wrap(model, compactor="filters")
    compile_pruner(pruner, SGD(0.02, momentum=0.9), snap=True)
    plan = resrep_tf.plan(pruner, 0.5, 1000)
    chosen = selection.select(
        pruner.norms_at_start(),
        pruner.compactor_channels(),
        FlopsMeter.of(pruner.graph),
        Constraints(0.5),
    )
    sizes = np.tile(np.linspace(4.5, 5.5, 8), 2)
    masked = np.concatenate(chosen.masks) < 0.5
    assert plan.rows_to_mask == masked.sum()
    assert plan.row_norm == pytest.approx(sizes[masked].max())
    assert (
        plan.masked_strength
        > 4
        * resrep_tf.plan(
            resrep_tf.wrap(model),
            0.5,
            1000,
            learning_rate=0.02,
            momentum=0.9,
            snap=True,
        ).masked_strength
    )
    # Training moves the filters, not the plan, nor does a restart.
    for compactor in pruner.compactors:
        compactor.rows.assign(compactor.rows * 0.5)
    assert resrep_tf.plan(pruner, 0.5, 1000) == plan
    pruner.save(tmp_path / "pruner.keras")
    loaded = keras.models.load_model(tmp_path / "pruner.keras")
    assert resrep_tf.plan(loaded, 0.5, 1000) == plan
