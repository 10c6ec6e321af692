"""Accuracy: every image counts once, and those that cannot be read are named."""

import contextlib
import io

import numpy as np
import pytest
import tensorflow as tf

from resrep_tf import data
from resrep_tf.cli.errors import CommandError
from resrep_tf.data.splits import RecordSplit
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train.loop import build_state
from support.runs import SHAPE, one_convolution


def test_accuracy_counts_every_image_once():
    digits = data.load("digits", batch_size=100)
    labels = np.concatenate([y.numpy() for _, y in digits.evaluation()])

    def always_three(images):
        return tf.one_hot(tf.fill([len(images)], 3), 10)

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        scores = evaluation.evaluate(always_three, digits, "a constant")
        few = evaluation.evaluate(always_three, digits, "a constant", steps=2)
    assert scores.examples == 360
    assert scores.accuracy == np.mean(labels == 3)
    assert few.examples == 200
    assert "Evaluating a constant on digits" in printed.getvalue()
    assert str(scores).startswith(f"top-1 accuracy {scores.accuracy:.2%}")


def test_many_models_are_evaluated_without_warnings(caplog):
    """TensorFlow warns of functions that are traced often, as a study's would be."""
    images = np.ones((2, *SHAPE), "float32")
    for number in range(7):
        model = one_convolution(name=f"model{number}")
        model.compile("sgd", "mse")
        build_state(model, tf.distribute.get_strategy())
        predict, expected = evaluation.predictor(model), model(images)
        del model
        for count in (2, 1):  # Batches of any size.
            np.testing.assert_allclose(
                predict(images[:count]), expected[:count], rtol=1e-5
            )
    assert "retracing" not in caplog.text


def test_a_corrupt_image_is_named(tmp_path):
    for name in ("train/one", "train/two", "val/one"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for number in range(4):
            (folder / f"{number}.jpg").write_bytes(b"not a JPEG")
    photos = data.load(f"folder:{tmp_path}", batch_size=2, image_size=8)
    with (
        pytest.raises(CommandError, match=r"^`--dataset`: Cannot read.*0\.jpg"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        evaluation.evaluate(lambda images: images, photos, "nothing")


def test_a_corrupt_image_in_a_record_is_named(monkeypatch, capsys):
    digits = data.load("digits", batch_size=100)
    asked = []

    def find(dataset, after_image):
        asked.append(dataset.name)
        for _ in range(dataset.train_examples + dataset.eval_examples):
            after_image()
        return "Cannot read an image. Received: path=a, record 3"

    monkeypatch.setattr(data.Dataset, "find_unreadable", find)

    def failing(message):
        def fail(images):
            raise tf.errors.InvalidArgumentError(None, None, message)

        return fail

    with pytest.raises(CommandError, match=r"^`--dataset`: .* path=a, record 3$"):
        evaluation.score(failing("Invalid JPEG data [Op:IteratorGetNext]"), digits)
    # Other failures have nothing to do with images.
    with pytest.raises(tf.errors.InvalidArgumentError):
        evaluation.score(failing("Matrix size-incompatible"), digits)
    assert asked == ["digits"]
    printed = capsys.readouterr().out.split("Looking for an image that cannot be read")
    # Progress; in a file, one line when all images have been read.
    assert "1797/1797" in printed[1] and len(printed[1].splitlines()) <= 3


def test_a_lost_file_of_records_is_named(tmp_path):
    path = tmp_path / "train.tfrecord"
    records = RecordSplit([str(path)], [3], shuffle_buffer=1).ordered()
    with (
        pytest.raises(CommandError, match=r"`--dataset`.*Received: .*train\.tfrecord"),
        evaluation.blame_images(data.load("digits", batch_size=50)),
    ):
        next(iter(records))
