"""With the defaults, any run, optimizer and data set ends in a pruned model."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras.optimizers import SGD, Adam, AdamW
from keras.optimizers.schedules import CosineDecay

import resrep_tf
from resrep_tf.selection.schedule import Schedule
from support.checks import compare, randomise
from support.trainings import CE, vectors

TARGET, BATCH, CLASSES = 0.5, 4, 3


def network():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, padding="same", use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Conv2D(5, 3, activation="relu", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    return randomise(keras.Model(inputs, L.Dense(CLASSES, activation="softmax")(x)))


def images(steps, seed=0):
    rng = np.random.default_rng(seed)
    count = steps * BATCH
    labels = rng.integers(0, CLASSES, count)
    noise = rng.normal(size=(count, 8, 8, 3))
    return (noise + labels[:, None, None, None]).astype("float32"), labels


def assert_pruned(pruner, selection, history):
    """The target is met, all masked rows are gone, and conversion drops just those."""
    assert selection.plan.fits
    assert history["flops_removed"][-1] >= TARGET
    assert history["forgotten"][-1] == 1
    masks = [np.asarray(c.mask) > 0.5 for c in pruner.compactors]
    for compactor, mask in zip(pruner.compactors, masks, strict=True):
        norms = np.asarray(compactor.row_norms())
        assert (norms[~mask] == 0).all() and np.isfinite(norms).all()
        assert norms[mask].min() > 0.1
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert report.rows_dropped == sum((~mask).sum() for mask in masks) > 0
    assert report.flops_removed >= TARGET
    widths = [slim.get_layer(name).filters for name in ("first", "second")]
    assert widths == [mask.sum() for mask in masks]
    x, _ = images(2, seed=1)
    assert compare(pruner(x, training=False), slim(x, training=False)) < 1e-4


OPTIMIZERS = {
    "sgd": lambda: SGD(),
    "sgd_high_rate": lambda: SGD(0.1, momentum=0.9),
    "sgd_schedule": lambda: SGD(CosineDecay(0.05, 300), momentum=0.9, nesterov=True),
    "adam": lambda: Adam(),
    "adam_schedule": lambda: Adam(CosineDecay(1e-3, 300)),
    "adamw": lambda: AdamW(1e-3, weight_decay=0.01),
    "accumulation": lambda: SGD(0.05, gradient_accumulation_steps=2),
}


def runs():
    """Every optimizer with every length of a run; some of them are slow tests."""
    for name in OPTIMIZERS:
        for batches, epochs in [(4, 1), (20, 1), (60, 3)]:
            quick = name in ("sgd", "adamw") or batches == 20
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(name, batches, epochs, marks=marks)


@pytest.mark.parametrize(("name", "batches", "epochs"), runs())
def test_every_run_and_optimizer(name, batches, epochs):
    pruner = resrep_tf.wrap(network())
    pruner.compile(OPTIMIZERS[name](), CE, jit_compile=False)
    selection = resrep_tf.ChannelSelection(TARGET)
    x, y = images(batches)
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0}
    history = pruner.fit(x, y, callbacks=[selection], **options).history
    assert_pruned(pruner, selection, history)


@pytest.mark.parametrize("steps", [2, 3])
def test_the_shortest_runs(steps):
    """Rows are masked behind the first step and gone after the second."""
    pruner = resrep_tf.wrap(network())
    pruner.compile("adam", CE, run_eagerly=True)
    selection = resrep_tf.ChannelSelection(TARGET)
    x, y = images(steps)
    history = pruner.fit(x, y, BATCH, verbose=0, callbacks=[selection]).history
    assert_pruned(pruner, selection, history)


def folder(path):
    x, y = images(20)
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        (path / str(label)).mkdir(exist_ok=True)
        keras.utils.save_img(path / str(label) / f"{number}.png", image)
    options = {"image_size": (8, 8), "batch_size": BATCH, "verbose": False}
    return keras.utils.image_dataset_from_directory(path, **options)


def generator():
    x, y = images(20)
    while True:
        for start in range(0, len(x), BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("data", ["folder", "generator", "endless"])
def test_every_data_set(data, optimizer, tmp_path):
    arguments = {"steps_per_epoch": 20}
    if data == "folder":
        arguments = {"x": folder(tmp_path)}
    elif data == "generator":
        arguments["x"] = generator()
    else:
        batches = tf.data.Dataset.from_tensor_slices(images(20)).batch(BATCH)
        arguments["x"] = batches.repeat()
    model = network()
    if data == "folder":
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, model(L.Rescaling(1 / 64, -2)(inputs)))
    pruner = resrep_tf.wrap(model)
    pruner.compile(optimizer, CE)
    selection = resrep_tf.ChannelSelection(TARGET)
    history = pruner.fit(callbacks=[selection], verbose=0, **arguments).history
    assert selection.plan.total_steps == 20 and selection.plan.fits
    assert history["flops_removed"] >= [TARGET] and history["forgotten"] == [1]
    _, report = resrep_tf.convert(pruner, return_report=True)
    assert report.flops_removed >= TARGET


def test_several_steps_in_an_execution():
    """Selections may come later than planned; rows are forgotten all the same."""
    pruner = resrep_tf.wrap(network())
    pruner.compile(SGD(0.1), CE, steps_per_execution=8, jit_compile=False)
    selection = resrep_tf.ChannelSelection(TARGET)
    x, y = images(24)
    history = pruner.fit(x, y, BATCH, verbose=0, callbacks=[selection]).history
    assert_pruned(pruner, selection, history)


def test_the_length_of_the_run_can_be_given():
    batches = tf.data.Dataset.from_generator(
        lambda: zip(*vectors(4), strict=True),
        output_signature=(tf.TensorSpec((5,)), tf.TensorSpec((), tf.int64)),
    )
    inputs = keras.Input((5,))
    x = L.Dense(8, activation="relu", name="hidden")(inputs)
    pruner = resrep_tf.wrap(keras.Model(inputs, L.Dense(3, activation="softmax")(x)))
    pruner.compile(SGD(0.1), CE, run_eagerly=True)
    selection = resrep_tf.ChannelSelection(TARGET, total_steps=40)
    options = {"steps_per_epoch": None, "epochs": 10, "verbose": 0}
    pruner.fit(batches.repeat().batch(4).take(4), callbacks=[selection], **options)
    assert selection.plan.total_steps == 40 and selection.plan.warmup_steps <= 2
    assert float(pruner.forgotten_share()) == 1
    assert float(pruner.state.flops_removed) >= TARGET


def test_a_run_that_is_too_short_says_so_before_it_begins():
    pruner = resrep_tf.wrap(network())
    pruner.compile("sgd", CE, run_eagerly=True)
    x, y = images(1)
    with pytest.warns(UserWarning, match=r"\(1 steps\).*No constants fit: train for"):
        pruner.fit(x, y, verbose=0, callbacks=[resrep_tf.ChannelSelection(TARGET)])


def test_all_defaults_are_those_of_the_schedule():
    names = {"schedule": "kind"}
    found = {}
    for function in (
        resrep_tf.ChannelSelection,
        resrep_tf.plan,
        resrep_tf.ResRepModel.compile,
    ):
        for name, parameter in inspect.signature(function).parameters.items():
            field = names.get(name, name)
            if parameter.default is not None and hasattr(Schedule, field):
                assert parameter.default == getattr(Schedule, field), name
                found[field] = parameter.default
    assert found == {
        "kind": "auto",
        "interval": 200,
        "step": 4,
        "epsilon": 1e-5,
        "lasso_strength": 1e-4,
        "snap": True,
    }
