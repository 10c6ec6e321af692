"""Models and data as users have them: open sizes, own layers, one output, grey."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.models import architectures
from resrep_tf.data import load
from resrep_tf.data.heads import Head, OneOfLabels
from resrep_tf.evaluate import command as evaluate
from resrep_tf.explain import command as explain
from resrep_tf.train import pipeline, training
from resrep_tf.train.settings import parse
from support.runs import call

SIZE = 12
OWN = """
import keras

class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs
"""


def write_images(root, counts, channels=3):
    """Images of two classes, dark and bright, named a and b."""
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for number, name in enumerate("ab"):
            parent = root / split / name
            parent.mkdir(parents=True)
            for index in range(count):
                level = 70 + 100 * number
                image = random.normal(level, 40, (SIZE, SIZE, channels))
                image = tf.constant(np.clip(image, 0, 255), tf.uint8)
                path = str(parent / f"{index}.png")
                tf.io.write_file(path, tf.io.encode_png(image))
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("rgb"), {"train": 32, "val": 10})


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("grey"), {"train": 16, "val": 10}, 1)


def network(shape, outputs=1, activation="sigmoid", own=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape)
    x = L.Rescaling(1 / 255)(inputs)
    x = L.Conv2D(8, 3, activation="relu", name="first")(x if own is None else own(x))
    x = L.Conv2D(8, 3, activation="relu", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(outputs, activation=activation)(x), name="mine")


def read(folder, split, mode="rgb"):
    return keras.utils.image_dataset_from_directory(
        folder / split, image_size=(SIZE, SIZE), color_mode=mode, verbose=False, seed=0
    )


def evaluated(model, folder):
    flags = f"--model={model}", f"--dataset=folder:{folder}", "--nolatency"
    return call(evaluate.run, *flags)


def test_one_output_of_an_open_size_is_pruned_as_it_is(folder, tmp_path):
    model = network((None, None, 3))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.optimizer.learning_rate = 0.02
    model.fit(read(folder, "train"), epochs=8, verbose=0)
    model.get_layer("first").trainable = False
    model.save(tmp_path / "mine.keras")
    expected = model.evaluate(read(folder, "val"), verbose=0)[1]
    output = call(
        pipeline.run,
        f"--arch={tmp_path}/mine.keras",
        f"--dataset=folder:{folder}",
        f"--image_size={SIZE}",
        "--epochs=8",
        "--noaugment",
        f"--output={tmp_path}/run",
    )
    assert "NOTE: frozen layers: 1 (first)." in output
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    found = report["before"]["accuracy"]
    assert found == pytest.approx(expected) and found > 0.9
    slim = keras.models.load_model(tmp_path / "run" / "pruned.keras")
    assert slim.output_shape == (None, 1)
    assert slim.input_shape == (None, SIZE, SIZE, 3)
    output = evaluated(tmp_path / "run" / "pruned.tflite", folder)
    shown = float(re.search(r"top-1 accuracy ([\d.]+)%", output)[1])
    assert shown == pytest.approx(100 * report["after"]["accuracy"], abs=0.01)


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_output_of_one_channel_is_evaluated_as_keras_does(
    grey, tmp_path, activation
):
    model = network((SIZE, SIZE, 1), activation=activation)
    loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
    threshold = 0.5 if activation else 0.0
    metric = keras.metrics.BinaryAccuracy(threshold=threshold)
    model.compile("adam", loss, metrics=[metric])
    model.optimizer.learning_rate = 0.02
    model.fit(read(grey, "train", "grayscale"), epochs=4, verbose=0)
    expected = model.evaluate(read(grey, "val", "grayscale"), verbose=0)[1]
    model.save(tmp_path / "mine.keras")
    output = evaluated(tmp_path / "mine.keras", grey)
    assert f"top-1 accuracy {expected:.2%}" in output


def test_a_wrapped_model_is_no_base(folder, tmp_path):
    resrep_tf.wrap(network((SIZE, SIZE, 3))).save(tmp_path / "pruner.keras")
    with pytest.raises(CommandError, match=r"plain model.*shrunk\.keras"):
        call(
            pipeline.run,
            f"--arch={tmp_path / 'pruner.keras'}",
            f"--dataset=folder:{folder}",
        )


@pytest.mark.parametrize("command", [pipeline, evaluate])
def test_the_softmax_of_one_output_is_refused(command, folder, tmp_path):
    path = tmp_path / "mine.keras"
    network((SIZE, SIZE, 3), activation="softmax").save(path)
    flag = "arch" if command is pipeline else "model"
    with pytest.raises(CommandError, match=f"`--{flag}` must not end with the softmax"):
        call(command.run, f"--{flag}={path}", f"--dataset=folder:{folder}")


def test_images_of_a_folder_get_the_size_that_a_network_was_made_for(folder):
    for arch, size in (("resnet20", 32), ("resnet50", 224)):
        settings, _ = parse([f"--arch={arch}", f"--dataset=folder:{folder}"])
        assert training.load_data(settings).input_shape == (size, size, 3)


def test_images_of_one_channel_are_those_that_keras_reads(grey):
    ours = load(f"folder:{grey}", batch_size=32, image_size=SIZE).grey().whole()
    images, labels = next(iter(ours.with_pixels("0..255").evaluation()))
    theirs = keras.utils.image_dataset_from_directory(
        grey / "val",
        image_size=(SIZE, SIZE),
        color_mode="grayscale",
        shuffle=False,
        verbose=False,
    )
    expected, classes = next(iter(theirs))
    np.testing.assert_allclose(images, expected, atol=1e-3)
    np.testing.assert_array_equal(labels, classes)
    assert ours.input_shape == (SIZE, SIZE, 1)


def test_classes_without_held_out_images_are_said(folder, tmp_path):
    write_images(tmp_path, {"train": 8, "val": 4})
    for path in (tmp_path / "val" / "b").iterdir():
        path.unlink()
    (tmp_path / "val" / "b").rmdir()
    model = network((SIZE, SIZE, 3), 2, "softmax")
    model.save(tmp_path / "mine.keras")
    output = evaluated(tmp_path / "mine.keras", tmp_path)
    assert "NOTE: 1 of 2 classes have no held-out images (b)" in output


def test_layers_of_the_users_come_along(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(OWN)
    names = {"__name__": "elsewhere"}
    exec(OWN, names)
    network((SIZE, SIZE, 3), own=names["Doubled"]()).save(tmp_path / "mine.keras")
    model = f"--model={tmp_path}/mine.keras"
    with pytest.raises(CommandError, match="Doubled"):
        call(explain.run, model)
    before = dict(keras.saving.get_custom_objects())
    try:
        output = call(explain.run, model, f"--import={tmp_path}/own_layers.py")
        assert "first" in output
        settings, text = parse([f"--import={tmp_path}/own_layers.py"])
        assert settings.imports == (f"{tmp_path}/own_layers.py",)
        assert f"--imports={tmp_path}/own_layers.py" in text
        monkeypatch.syspath_prepend(tmp_path)
        assert parse(["--import=own_layers"])[0].imports == ("own_layers",)
    finally:
        keras.saving.get_custom_objects().clear()
        keras.saving.get_custom_objects().update(before)


@pytest.mark.parametrize("name", ["no_such_module", "/no/such/file.py"])
def test_a_module_that_is_not_there_is_named(name):
    with pytest.raises(CommandError, match=f"`--import`.*Received: --import={name}"):
        parse([f"--import={name}"])


def test_outputs_that_do_not_say_what_they_are_are_noted():
    notes = architectures.notes(network((SIZE, SIZE, 3), 3, "softplus"))
    assert len(notes) == 1 and "ends with softplus" in notes[0]
    assert architectures.notes(network((SIZE, SIZE, 3), 3, "softmax")) == []


def test_a_sigmoid_for_each_class_is_trained_as_such(tmp_path):
    model = network((SIZE, SIZE, 3), 3, "sigmoid")
    head = architectures.head(model, 3)
    assert head == Head("labels", 3, from_logits=False)
    outputs = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3)).astype("float32")
    labels = np.array([2, 0, 1, 1])
    expected = keras.losses.BinaryCrossentropy()(np.eye(3)[labels], outputs)
    assert float(head.loss()(labels, outputs)) == pytest.approx(float(expected))
    model.compile("sgd", head.loss())
    model.save(tmp_path / "mine.keras")
    loaded = keras.models.load_model(tmp_path / "mine.keras")
    assert isinstance(loaded.loss, OneOfLabels)


def test_a_model_of_open_size_gets_that_of_the_data(tmp_path):
    body = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_shape=(None, None, 3), alpha=0.35
    )
    for layer in body.layers[:20]:
        layer.trainable = False
    inputs = keras.Input((None, None, 3))
    x = L.GlobalAveragePooling2D()(body(inputs))
    model = keras.Model(inputs, L.Dense(2, name="new")(x))
    model.save(tmp_path / "mine.keras")
    arch = f"{tmp_path}/mine.keras"
    sized = architectures.build(arch, (32, 32, 3), 2, options={})
    assert sized.input_shape == (None, 32, 32, 3)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3))
    np.testing.assert_allclose(model(images), sized(images), rtol=1e-5)
    old, new = (m.get_layer(body.name).layers for m in (model, sized))
    assert [a.trainable for a in old[1:]] == [b.trainable for b in new[1:]]


@pytest.mark.parametrize(
    ("images", "batch", "epochs"), [(360, 16, 46), (50, 8, 167), (5000, 64, 20)]
)
def test_runs_on_few_images_are_long_enough(tmp_path, images, batch, epochs):
    np.savez(
        tmp_path / "few.npz",
        x_train=np.zeros((images, 2, 2), "uint8"),
        y_train=np.eye(2, dtype="uint8")[np.arange(images) % 2],
        x_test=np.zeros((2, 2, 2), "uint8"),
        y_test=np.arange(2),
    )
    settings = parse(["--arch=resnet20", f"--dataset=npz:{tmp_path}/few.npz"])[0]
    assert settings.batch_size == batch and settings.epochs == epochs
    assert settings.base_epochs == epochs
    assert load(settings.dataset, batch_size=batch).classes == 2
