"""What `resrep_tf.data` says when a set cannot be loaded."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from resrep_tf import data
from support.tfds import FEATURES, labelled, pictures, write_tfds

ROOT = Path(__file__).resolve().parents[2]


def complaint(error, *args, **options):
    with pytest.raises(error) as caught:
        data.load(*args, **{"batch_size": 2, **options})
    return str(caught.value)


@pytest.mark.parametrize("name, hint", [
    ("digit", "Did you mean 'digits'?"),
    ("cifar-10", "Did you mean 'cifar10'?"),
    ("CIFAR10", "Did you mean 'cifar10'?"),
    ("tfds:cifar1000", "Did you mean 'cifar10'?"),
    ("oxford_flower102", "Did you mean 'oxford_flowers102'?"),
    (os.fspath(ROOT), f"Did you mean 'folder:{ROOT}'?"),
    ("here/set.npz", "Did you mean 'npz:here/set.npz'?"),
    ("?", "tensorflow-datasets. Received"),
    ("folder:", "folder:PATH"),
])  # fmt: skip
def test_unknown_name(tmp_path, name, hint):
    message = complaint(ValueError, name, data_dir=str(tmp_path))
    assert all(choice in message for choice in data.names())
    assert hint in message
    assert message.endswith(f"Received: name={name!r}")


@pytest.mark.parametrize("options, expected", [
    ({"batch_size": 0}, "`batch_size` must be positive. Received: batch_size=0"),
    ({"batch_size": 2000}, "the 1437 training examples of 'digits'"),
    ({"num_shards": 4}, "Received: num_shards=4, batch_size=2"),
    ({"num_shards": 0}, "`num_shards` must divide"),
    ({"num_shards": 2, "shard_index": 2}, "in 0 ... 1. Received: shard_index=2"),
    ({"image_size": 0}, "`image_size` must be positive. Received: image_size=0"),
    ({"image_size": 16}, "stay 8 x 8. Received: image_size=16"),
    ({"shuffle_buffer": 0}, "Received: shuffle_buffer=0"),
])  # fmt: skip
def test_bad_arguments(options, expected):
    assert expected in complaint(ValueError, "digits", **options)


def test_bad_positions():
    digits = data.load("digits", batch_size=64)
    for call, expected in {
        lambda: digits.train(-1): "Received: epoch=-1",
        lambda: digits.train(0, -1): "Received: start_step=-1",
        lambda: digits.train(0, 22): "22 steps of an epoch. Received: start_step=22",
        lambda: digits.train_from(-2): "Received: step=-2",
    }.items():
        with pytest.raises(ValueError, match=expected):
            call()


# === Folders ===


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            (tmp_path / split / label).mkdir(parents=True)
            picture = tf.io.encode_png(pictures(1)[0]).numpy()
            (tmp_path / split / label / "a.png").write_bytes(picture)
    return tmp_path


def test_missing_folders(folder):
    shutil.rmtree(folder / "val")
    message = complaint(FileNotFoundError, f"folder:{folder}")
    assert "Expected PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg" in message
    assert f"there is no folder '{folder / 'val'}'" in message
    (folder / "val").mkdir()
    message = complaint(ValueError, f"folder:{folder}")
    assert f"there are no class folders in '{folder / 'val'}'" in message
    assert message.endswith(f"Received: name='folder:{folder}'")


def test_class_without_images(folder):
    (folder / "train" / "dog" / "a.png").rename(folder / "train" / "dog" / "a.tif")
    message = complaint(ValueError, f"folder:{folder}")
    assert f"no image of class 'dog' in '{folder / 'train' / 'dog'}'" in message


def test_class_that_is_not_trained(folder):
    shutil.rmtree(folder / "train" / "cat")
    message = complaint(ValueError, f"folder:{folder}")
    assert "must be among those in `train`; 'cat' is not" in message


@pytest.mark.parametrize("contents", ["truncated", "text", "missing"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_corrupt_image_is_named(tmp_path, split, contents):
    for part in ("train", "val"):
        for number, picture in enumerate(pictures(3)):
            path = tmp_path / part / f"{number}" / "a picture.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(tf.io.encode_jpeg(picture).numpy())
    loaded = data.load(f"folder:{tmp_path}", batch_size=3, image_size=8)
    corrupt = tmp_path / split / "1" / "a picture.jpg"
    if contents == "missing":
        corrupt.unlink()
    else:
        whole = corrupt.read_bytes()
        corrupt.write_bytes(whole[:300] if contents == "truncated" else b"words")
    batches = loaded.train() if split == "train" else loaded.evaluation()
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(batches)
    assert f"path={corrupt}" in str(caught.value)


# === Arrays ===

ARRAYS = {
    "x_train": np.zeros((4, 8, 8, 3), np.uint8),
    "y_train": np.array([0, 1, 2, 0]),
    "x_test": np.zeros((2, 8, 8, 3), np.uint8),
    "y_test": np.array([[0], [1]]),
}


@pytest.mark.parametrize("changes, expected", [
    ({"x_test": None, "y_test": None}, "x_test, y_test not found among: x_train,"),
    ({"x_train": np.zeros((4, 8))}, "`x_train` must hold numbers, as (examples,"),
    ({"x_train": np.full((4, 8, 8, 3), "a")}, "`x_train` must hold numbers"),
    ({"x_train": np.full((4, 8, 8, 3), np.nan)}, "`x_train` must not hold NaN"),
    ({"x_test": np.zeros((2, 8, 8))}, "one shape, not (8, 8, 3) and (8, 8, 1)"),
    ({"y_train": np.arange(3)}, "for each of the 4 images"),
    ({"y_train": np.arange(4.0)}, "for each of the 4 images"),
    ({"y_train": np.array([0, 1, 3, 4])}, "4 labels from 0 to 4, and none is 2"),
    ({"y_train": np.array([1, 2, 2, 3])}, "3 labels from 1 to 3, and none is 0"),
    ({"y_train": np.array([-1, 0, 1, 2])}, "4 labels from -1 to 2"),
    ({"y_test": np.array([0, 3])}, "`y_train` holds; 3 is not among them"),
])  # fmt: skip
def test_bad_arrays(tmp_path, changes, expected):
    contents = {**ARRAYS, **changes}
    contents = {key: array for key, array in contents.items() if array is not None}
    np.savez(tmp_path / "set.npz", **contents)
    message = complaint(ValueError, f"npz:{tmp_path}/set.npz")
    assert expected in message
    assert message.endswith(f"Received: name='npz:{tmp_path}/set.npz'")


def test_bad_array_file(tmp_path):
    name = f"npz:{tmp_path}/set.npz"
    message = complaint(FileNotFoundError, name)
    assert "with the arrays x_train, y_train, x_test, y_test" in message
    assert message.endswith(f"Received: name={name!r}")
    (tmp_path / "set.npz").write_bytes(b"PK\x03\x04 not really")
    assert "as `numpy.savez` writes it" in complaint(ValueError, name)
    (tmp_path / "set.npz").write_bytes(b"something else")
    assert "as `numpy.savez` writes it" in complaint(ValueError, name)


# === tensorflow-datasets ===


def test_set_that_is_not_prepared(tmp_path):
    message = complaint(FileNotFoundError, "cifar10", data_dir=str(tmp_path))
    assert f"`tfds build cifar10 --data_dir={tmp_path}`" in message
    assert "`download=True` (`--download`). If" in message
    assert message.endswith(f"Received: data_dir='{tmp_path}'")
    message = complaint(FileNotFoundError, "imagenet2012", data_dir=str(tmp_path))
    assert f"put them into '{tmp_path}/downloads/manual' first" in message


def test_download_is_asked_for(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        tfds.core.DatasetBuilder,
        "download_and_prepare",
        lambda builder: asked.append(builder.name),
    )
    options = {"data_dir": str(tmp_path), "download": True}
    complaint(FileNotFoundError, "cifar10", **options)
    assert asked == ["cifar10"]
    message = complaint(ValueError, "coco", **options)
    assert "must be a classification set" in message
    assert "'objects'" in message
    assert asked == ["cifar10"]  # No download in vain.


@pytest.mark.parametrize("damage", ["image", "file"])
def test_corrupt_image_in_a_record_is_named(tmp_path, damage):
    features = {
        "image": FEATURES.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "label": FEATURES.ClassLabel(num_classes=2),
    }
    examples = labelled(pictures(7), 2)
    splits = {"train": (examples, 2), "validation": (examples, 1)}
    write_tfds(tmp_path, "photos", "1.0.0", features, splits)
    file = tmp_path / "photos" / "1.0.0" / "photos-train.tfrecord-00001-of-00002"
    if damage == "file":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        whole = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
        example = tf.train.Example.FromString(whole[2])
        (image,) = example.features.feature["image"].bytes_list.value
        example.features.feature["image"].bytes_list.value[:] = [image[:300]]
        with tf.io.TFRecordWriter(str(file)) as writer:
            for record in (*whole[:2], example.SerializeToString()):
                writer.write(record)
    photos = data.load("photos", batch_size=7, image_size=8, data_dir=str(tmp_path))
    assert len(list(photos.evaluation())) == 1
    with pytest.raises(tf.errors.OpError):
        list(photos.train())
    read = []
    found = photos.find_unreadable(lambda: read.append(None))
    assert found.endswith(f"Received: path={file}, record 2")
    assert len(read) == 4 + 2  # Of the first file and of this one.
    file.unlink()
    assert photos.find_unreadable().endswith(f"Received: path={file}, record 0")


def test_corrupt_image_of_a_set_in_memory_is_named(tmp_path):
    features = {
        "image": FEATURES.Image(shape=(8, 8, 3)),
        "label": FEATURES.ClassLabel(num_classes=2),
    }
    examples = labelled(pictures(4, 8, 8), 2)
    splits = {"train": (examples, 1), "test": (examples, 1)}
    write_tfds(tmp_path, "small", "1.0.0", features, splits)
    file = tmp_path / "small" / "1.0.0" / "small-test.tfrecord-00000-of-00001"
    file.write_bytes(file.read_bytes()[:-9])
    message = complaint(ValueError, "small", data_dir=str(tmp_path))
    assert message.endswith(f"Received: path={file}, record 3")


def test_set_without_held_out_images(tmp_path):
    features = {
        "image": FEATURES.Image(shape=(8, 8, 3)),
        "label": FEATURES.ClassLabel(num_classes=2),
    }
    examples = labelled(pictures(2, 8, 8), 2)
    write_tfds(tmp_path, "halves", "1.0.0", features, {"train": (examples, 1)})
    message = complaint(ValueError, "halves", data_dir=str(tmp_path))
    assert "'test' or 'validation'; it has ['train']" in message


def test_without_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    message = complaint(ImportError, "cifar10")
    assert 'pip install "resrep_tf[datasets]"' in message
    assert data.load("digits", batch_size=2).classes == 10


def test_a_single_class(tmp_path):
    images, labels = np.zeros((4, 8, 8), "uint8"), np.zeros(4, int)
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "one.npz", **arrays)
    message = complaint(ValueError, f"npz:{tmp_path / 'one.npz'}")
    assert "`y_train` must hold at least two classes" in message


def test_arrays_of_python_objects(tmp_path):
    numbers = dict.fromkeys(("x_train", "y_train", "y_test"), np.zeros(4))
    np.savez(tmp_path / "o.npz", **numbers, x_test=np.array([{}, None], object))
    message = complaint(ValueError, f"npz:{tmp_path / 'o.npz'}")
    assert "`x_test` cannot be read: it holds Python objects" in message
    assert str(tmp_path / "o.npz") in message


def test_a_class_folder_that_cannot_be_read(folder, monkeypatch):
    listed = os.listdir

    def refuse(path):
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    message = complaint(PermissionError, f"folder:{folder}")
    assert "Cannot read the folder" in message and "dog" in message
