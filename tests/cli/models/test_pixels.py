"""The pixels of a user's own model: its accuracy is that of Keras's own evaluate."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from resrep_tf import data
from resrep_tf.cli.errors import CommandError
from resrep_tf.evaluate import command as evaluate
from resrep_tf.train import pipeline
from support import runs
from support.runs import call

SIZE = 16
CLASSES = ("dark", "grey", "bright")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images whose classes differ in brightness, with much noise."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 21)):
        # Sorted by name, bright comes first.
        for number, name in enumerate(sorted(CLASSES)):
            parent = root / split / name
            parent.mkdir(parents=True)
            for index in range(count):
                level = random.normal(60 + 60 * number, 25)
                noise = random.normal(level, 40, (SIZE, SIZE + index % 3, 3))
                image = tf.constant(np.clip(noise, 0, 255), tf.uint8)
                path = str(parent / f"{index:02}.png")
                tf.io.write_file(path, tf.io.encode_png(image))
    return root


def read(folder, split):
    return keras.utils.image_dataset_from_directory(
        folder / split, image_size=(SIZE, SIZE), verbose=False, seed=0
    )


def trained(folder, kind, path) -> float:
    """Trains and saves a model; returns its accuracy by Keras's own evaluate."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((SIZE, SIZE, 3))
    if kind == "inside":
        x = layers.Rescaling(1 / 255)(x)
    x = layers.Conv2D(8, 3, name="first")(x)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    x = layers.Conv2D(8, 3, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x), name="mine")
    divisor = 255.0 if kind == "0..1" else 1.0
    train, held_out = (
        read(folder, split).map(lambda x, y: (x / divisor, y))
        for split in ("train", "val")
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.learning_rate = 0.01
    model.fit(train, epochs=20, verbose=0)
    model.save(path)
    return model.evaluate(held_out, verbose=0)[1]


@pytest.mark.parametrize(
    "kind",
    ["0..255", *(pytest.param(k, marks=pytest.mark.slow) for k in ("0..1", "inside"))],
)
def test_the_accuracy_of_the_base_is_that_of_keras(folder, kind, tmp_path):
    expected = trained(folder, kind, tmp_path / "mine.keras")
    assert expected > 0.6
    words = f"top-1 accuracy {expected:.2%} ("
    dataset = f"--dataset=folder:{folder}"
    model = f"{tmp_path / 'mine.keras'}"
    printed = call(evaluate.run, f"--model={model}", dataset, "--nolatency")
    assert words in printed and "WARNING" not in printed
    assert re.search(
        f"^Pixels: {'0..1' if kind == '0..1' else '0..255'}, since", printed, re.M
    )
    short = ["--epochs=1", "--steps_per_epoch=2", "--batch_size=16", "--drop_masked"]
    output = f"--output={tmp_path / 'run'}"
    call(pipeline.run, f"--arch={model}", dataset, *short, "--noexport", output)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["before"]["accuracy"] == pytest.approx(expected)


def test_a_model_with_wrong_pixels_is_warned_of(folder, tmp_path):
    trained(folder, "0..1", tmp_path / "mine.keras")
    printed = call(
        evaluate.run,
        f"--model={tmp_path / 'mine.keras'}",
        f"--dataset=folder:{folder}",
        "--pixels=0..255",
        "--nolatency",
    )
    assert "WARNING: an accuracy of " in printed


@pytest.mark.parametrize("command", [pipeline, evaluate])
def test_an_image_that_cannot_be_read_is_named(command, folder, tmp_path):
    photos = shutil.copytree(folder, tmp_path / "photos")
    broken = photos / "train" / "grey" / "00.png"
    broken.write_text("no image")
    model = runs.one_convolution((SIZE, SIZE, 3), len(CLASSES), "softmax")
    model.save(tmp_path / "mine.keras")
    flag = "arch" if command is pipeline else "model"
    flags = [f"--{flag}={tmp_path / 'mine.keras'}", f"--dataset=folder:{photos}"]
    with pytest.raises(
        CommandError, match="`--dataset`: Cannot read an image"
    ) as error:
        call(command.run, *flags)
    assert str(error.value).endswith(f"Received: path={broken}")


def test_sets_bring_images_to_a_scale(folder):
    name = f"folder:{folder}"
    usual = data.load(name, batch_size=8, image_size=SIZE)
    raw = data.load(name, batch_size=8, image_size=SIZE, pixels="0..255")
    assert (usual.pixels, raw.pixels) == ("imagenet", "0..255")
    (first, _), (second, _) = (next(iter(each.evaluation())) for each in (usual, raw))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(first, (second / 255 - mean) / std, atol=1e-5)
    digits = data.load("digits", batch_size=8)
    assert digits.pixels == "own statistics"
    with pytest.raises(ValueError, match=r"^`pixels` must be one of: 0\.\.255, "):
        data.load("digits", batch_size=8, pixels="raw")


def test_a_scale_for_colours_is_refused_for_others():
    with pytest.raises(CommandError, match=r"`--pixels`: .*imagenet.* 3 channels"):
        pipeline.run(["--dataset=digits", "--pixels=imagenet", "--output=none"])
