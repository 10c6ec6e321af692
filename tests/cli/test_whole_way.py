"""A user's own images and own transfer-learned model, all the way to the device."""

import importlib.util
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import resrep_tf
from resrep_tf.evaluate import command as evaluate
from resrep_tf.train import pipeline
from support.runs import call

SIZE = 20
# Of the means of images; those of neighbouring classes overlap.
LEVELS = {"bright": 165, "dark": 90}
CLASSES = ("bright", "dark", "grey", "striped")
ONNX = all(
    importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "tf2onnx")
)
FORMATS = ["int8", *(["onnx"] if ONNX else [])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos of several sizes, JPEG and PNG, of classes that are not easy to tell."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 23)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                level = random.normal(LEVELS.get(name, 127), 20)
                image = random.normal(level, 45, (SIZE + index % 5, SIZE, 3))
                if name == "striped":
                    image[::4] += 60
                    image[2::4] -= 60
                image = tf.constant(np.clip(image, 0, 255), tf.uint8)
                jpeg = index % 2
                encode = tf.io.encode_jpeg if jpeg else tf.io.encode_png
                file = root / split / name / f"{index:02}.{'jpg' if jpeg else 'png'}"
                file.write_bytes(encode(image).numpy())
    return root


def read(folder, split, kind):
    images = keras.utils.image_dataset_from_directory(
        folder / split, image_size=(SIZE, SIZE), verbose=False, seed=0
    )
    divisor = 255.0 if kind == "0..1" else 1.0
    return images.map(lambda x, y: (x / divisor, y))


def transfer_learned(folder, kind) -> keras.Model:
    """Trains a new head on a body, then all of it, as Keras's guide does."""
    keras.utils.set_random_seed(1)
    shape = (SIZE, SIZE, 3)
    x = body_inputs = keras.Input(shape)
    for width in (8, 16, 16):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    body = keras.Model(body_inputs, x, name="body")
    x = inputs = keras.Input(shape)
    if kind == "inside":
        x = layers.Rescaling(1 / 127.5, offset=-1)(x)
    x = layers.GlobalAveragePooling2D()(body(x))
    model = keras.Model(inputs, layers.Dense(len(CLASSES), activation="softmax")(x))
    train = read(folder, "train", kind)
    for trainable, rate, epochs in ((False, 0.05, 1), (True, 0.01, 12)):
        body.trainable = trainable
        optimizer = keras.optimizers.Adam(rate)
        model.compile(
            optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        model.fit(train, epochs=epochs, verbose=0)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["0..255", "0..1", "inside"])
def test_with_the_command(folder, kind, tmp_path):
    model = transfer_learned(folder, kind)
    model.save(tmp_path / "mine.keras")
    expected = model.evaluate(read(folder, "val", kind), verbose=0)[1]
    printed = call(
        pipeline.run,
        f"--arch={tmp_path / 'mine.keras'}",
        f"--dataset=folder:{folder}",
        "--flops_target=0.5",
        "--epochs=20",
        f"--export={','.join(FORMATS)}",
        f"--output={tmp_path / 'run'}",
    )
    assert "WARNING" not in printed
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["before"]["accuracy"] == pytest.approx(expected, abs=1e-7)
    assert report["conversion"]["flops_removed"] >= 0.5
    assert report["after"]["accuracy"] > expected - 0.1 > 0.5
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    page = page.replace("<wbr>", "")
    assert [each["format"] for each in report["exports"]] == ["keras", *FORMATS]
    for file in report["exports"][1:]:
        assert file["accuracy"] == pytest.approx(report["after"]["accuracy"], abs=0.05)
        assert f"{file['accuracy']:.2%}" in page and file["file"] in page


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["0..255", "0..1", "inside"])
def test_in_python(folder, kind, tmp_path):
    model = transfer_learned(folder, kind)
    train, validation = (read(folder, split, kind) for split in ("train", "val"))
    expected = model.evaluate(validation, verbose=0)[1]
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    slim, report = resrep_tf.prune(
        *(model, train, validation, 0.5), epochs=20, verbose=0, return_report=True
    )
    assert report.before["accuracy"] == expected
    assert report.after["accuracy"] == slim.evaluate(validation, verbose=0)[1]
    assert report.after["accuracy"] > expected - 0.1 > 0.5
    removed = 1 - resrep_tf.count_flops(slim) / resrep_tf.count_flops(model)
    assert removed == report.conversion.flops_removed >= 0.5
    slim.save(tmp_path / "slim.keras")
    for format in FORMATS:
        path = tmp_path / ("slim.onnx" if format == "onnx" else "slim.tflite")
        images = train.map(lambda image, label: image)
        exported = resrep_tf.export(slim, path, format, calibration=images)
        assert exported.class_agreement > 0.9
        printed = call(
            evaluate.run,
            *(f"--model={path}", f"--dataset=folder:{folder}", "--nolatency"),
            f"--pixels={'0..1' if kind == '0..1' else '0..255'}",
        )
        found = float(re.search(r"top-1 accuracy ([\d.]+)%", printed)[1]) / 100
        assert found == pytest.approx(report.after["accuracy"], abs=0.05)
