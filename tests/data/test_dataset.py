"""Data sets by name: contents, resuming, shards, augmentation."""

import dataclasses
import functools
import re
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from resrep_tf import data
from support.tfds import CLASSES, FEATURES, labelled, pictures, write_tfds

ROOT = Path(__file__).resolve().parents[2]
MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])
BATCH = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One small set of every kind."""
    root = tmp_path_factory.mktemp("data")
    for split, count in {"train": CLASSES, "val": 6}.items():
        for number, picture in enumerate(pictures(count)):
            parent = root / "folder" / split / f"class{number:02d}"
            parent.mkdir(parents=True)
            encode = tf.io.encode_png if number % 3 == 0 else tf.io.encode_jpeg
            suffix = "PNG" if number % 3 == 0 else "jpg"
            (parent / f"a.{suffix}").write_bytes(encode(picture).numpy())
    (root / "folder" / "train" / "class00" / "notes.txt").write_text("ignored")
    np.savez(
        root / "set.npz",
        x_train=pictures(CLASSES, 16, 16),
        y_train=np.arange(CLASSES),
        x_test=pictures(6, 16, 16).astype("float64"),
        y_test=np.arange(6),
    )
    small = labelled(pictures(CLASSES, 32, 32), 10, id="x")
    write_tfds(
        root,
        "cifar10",
        "3.0.2",
        tfds.builder("cifar10").info.features,
        {"train": (small, 1), "test": (small[:6], 1)},
    )
    photos = labelled(pictures(CLASSES), file_name="x.jpg")
    write_tfds(
        root,
        "imagenet2012",
        "5.1.0",
        tfds.builder("imagenet2012").info.features,
        {"train": (photos, 3), "validation": (photos[:6], 2), "test": (photos, 1)},
    )
    return root


@pytest.fixture(scope="module")
def load(root):
    """`data.load` for the sets under `root`, each only once."""

    @functools.cache
    def load(kind, **options):
        name = {"folder": f"folder:{root}/folder", "npz": f"npz:{root}/set.npz"}
        if kind in ("folder", "imagenet2012"):
            options["image_size"] = 16
        if kind == "imagenet2012":
            options["shuffle_buffer"] = 8
        options.setdefault("batch_size", BATCH)
        return data.load(name.get(kind, kind), data_dir=str(root), **options)

    return load


@pytest.fixture(scope="module")
def epoch(load):
    """Images and labels of an epoch, each computed only once."""
    return functools.cache(lambda kind, number: arrays(load(kind).train(number)))


def arrays(batches):
    """Images and labels of all batches."""
    return [
        np.concatenate(part) for part in zip(*batches.as_numpy_iterator(), strict=True)
    ]


def assert_equal(batches, expected):
    for part, expected_part in zip(arrays(batches), expected, strict=True):
        np.testing.assert_array_equal(part, expected_part)


KINDS = ("npz", "cifar10", "folder", "imagenet2012")
every_kind = pytest.mark.parametrize("kind", KINDS)


# === What is loaded ===


def test_digits():
    digits = data.load("digits", batch_size=64, augment=False)
    assert digits.input_shape == (8, 8, 1)
    assert digits.classes == 10
    assert digits.train_examples == 1437
    assert digits.eval_examples == 360
    assert digits.steps_per_epoch == 22
    archive = np.load(ROOT / "resrep_tf" / "data" / "digits.npz")
    x = np.concatenate([archive["x_train"], archive["x_test"]])
    y = np.concatenate([archive["y_train"], archive["y_test"]])
    assert x.shape == (1797, 8, 8, 1)
    assert x.dtype == np.uint8
    assert x.max() == 16
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(y).tolist() == counts
    assert np.bincount(archive["y_test"]).tolist() == [36] * 10
    assert x.sum() == 561718
    assert (x.sum((1, 2, 3)) * (y + 1.0)).sum() == 3087672
    seen, labels = arrays(digits.train())
    assert abs(seen.mean()) < 0.01
    assert abs(seen.std() - 1) < 0.01
    assert seen.dtype == np.float32
    assert labels.dtype == np.int32


@every_kind
def test_description(load, kind):
    loaded = load(kind)
    size = 32 if kind == "cifar10" else 16
    assert loaded.input_shape == (size, size, 3)
    assert loaded.classes == {"cifar10": 10, "imagenet2012": 1000}.get(kind, CLASSES)
    assert loaded.train_examples == CLASSES
    assert loaded.eval_examples == 6
    assert loaded.steps_per_epoch == 5
    assert f"{kind}" in repr(loaded)
    assert "Source" not in repr(loaded)
    if kind == "folder":
        assert loaded.class_names[:2] == ("class00", "class01")
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.seed = 1


@every_kind
def test_evaluation_is_complete_and_in_order(load, kind):
    evaluation = load(kind).evaluation()
    assert evaluation.cardinality() == 2
    assert [len(labels) for _, labels in evaluation] == [4, 2]
    seen = arrays(evaluation)
    # Two files, with every second image each.
    expected = [0, 2, 4, 1, 3, 5] if kind == "imagenet2012" else range(6)
    assert seen[1].tolist() == list(expected)
    assert_equal(evaluation, seen)


def test_cifar10_is_normalised_as_published_weights_expect(load):
    seen, _ = arrays(load("cifar10").evaluation())
    expected = (pictures(CLASSES, 32, 32)[:6] / 255 - MEAN) / STD
    np.testing.assert_allclose(seen, expected, atol=1e-5)


def test_npz_is_normalised_by_its_training_images(load):
    seen, _ = arrays(load("npz", batch_size=CLASSES, augment=False).train())
    np.testing.assert_allclose(seen.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std((0, 1, 2)), 1, atol=1e-5)


def test_set_known_only_by_its_files(root):
    gray = labelled(pictures(5, 6, 8, 1), 5)
    label = FEATURES.ClassLabel(names=list("abcde"))
    write_tfds(
        root,
        "gray",
        "1.0.0",
        {"image": FEATURES.Image(shape=(6, 8, 1)), "label": label},
        {"train": (gray, 1), "validation": (gray, 1)},
    )
    loaded = data.load("tfds:gray", batch_size=5, data_dir=str(root), augment=False)
    assert loaded.input_shape == (6, 8, 1)
    assert loaded.class_names == tuple("abcde")
    assert abs(arrays(loaded.train())[0].mean()) < 1e-5
    resized = data.load("gray", batch_size=5, data_dir=str(root), image_size=12)
    assert next(iter(resized.train()))[0].shape == (5, 12, 12, 3)


# === Order ===


@every_kind
def test_batches_are_a_function_of_seed_and_position(load, epoch, kind):
    first, second = epoch(kind, 2), epoch(kind, 3)
    assert len(first[0]) == 20
    if kind != "cifar10":  # Where labels tell images apart.
        assert len(set(first[1])) == 20
    tf.random.set_seed(5)
    before = tf.random.uniform([])
    tf.random.set_seed(5)
    assert_equal(load(kind).train(2), first)
    assert before == tf.random.uniform([])  # And the user's seed is left alone.
    assert first[1].tolist() != second[1].tolist()
    other = arrays(load(kind, seed=1).train(2))
    assert other[1].tolist() != first[1].tolist()


@every_kind
def test_resumed_stream_is_the_tail_of_the_whole(load, epoch, kind):
    loaded = load(kind)
    parts = zip(epoch(kind, 2), epoch(kind, 3), strict=True)
    whole = [np.concatenate(part) for part in parts]
    resumed = loaded.train_from(13)  # The fourth batch of the third epoch.
    assert_equal(resumed.take(7), [part[12:] for part in whole])
    assert resumed.cardinality() == tf.data.INFINITE_CARDINALITY
    rest = loaded.train(2, start_step=3)
    assert_equal(rest, [part[12:20] for part in whole])
    assert rest.cardinality() == 2
    images, labels = resumed.element_spec
    assert images.shape == (BATCH, *loaded.input_shape)
    assert labels.shape == (BATCH,)


@every_kind
def test_shards_are_the_parts_of_the_global_batch(load, kind):
    whole = load(kind).train_from(4).take(3).as_numpy_iterator()
    shards = [
        load(kind, num_shards=2, shard_index=index).train_from(4).take(3)
        for index in range(2)
    ]
    shards = [list(shard.as_numpy_iterator()) for shard in shards]
    for expected, first, second in zip(whole, *shards, strict=True):
        for part, left, right in zip(expected, first, second, strict=True):
            assert len(left) == len(right) == BATCH // 2
            np.testing.assert_array_equal(np.concatenate([left, right]), part)


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_augmentation_depends_on_the_example_not_on_its_place(load, kind):
    by_label = [
        dict(zip(labels, images, strict=True))
        for images, labels in (
            arrays(load(kind, batch_size=size).train(1)) for size in (4, 7)
        )
    ]
    shared = set(by_label[0]) & set(by_label[1])
    assert len(shared) == 20
    for label in shared:
        np.testing.assert_array_equal(by_label[0][label], by_label[1][label])


# === Augmentation ===


@pytest.mark.parametrize("flip", [False, True])
def test_small_images_are_shifted_and_keep_their_label(load, flip):
    loaded = load("npz", batch_size=CLASSES, flip=flip)
    plain = load("npz", batch_size=CLASSES, augment=False)
    originals = dict(zip(*arrays(plain.train())[::-1], strict=True))
    x = pictures(CLASSES, 16, 16).astype("float64")
    black = -x.mean((0, 1, 2)) / x.std((0, 1, 2))
    shifts, mirrored = set(), 0
    for image, label in zip(*arrays(loaded.train(1)), strict=True):
        canvas = np.broadcast_to(black, (20, 20, 3)).copy()
        canvas[2:18, 2:18] = originals[label]
        matches = [
            (top, left, mirror)
            for top in range(5)
            for left in range(5)
            for mirror in (1, -1)
            if np.allclose(
                canvas[top : top + 16, left : left + 16][:, ::mirror], image, atol=1e-4
            )
        ]
        assert len(matches) == 1
        shifts.add(matches[0][:2])
        mirrored += matches[0][2] == -1
    assert len(shifts) > 5
    assert (0 < mirrored < CLASSES) == flip


# === In use ===


def test_fit_over_epochs():
    digits = data.load("digits", batch_size=128, augment=False)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    history = model.fit(
        digits.train_from(0),
        steps_per_epoch=digits.steps_per_epoch,
        validation_data=digits.evaluation(),
        epochs=4,
        shuffle=False,  # Keras would warn that it cannot.
        verbose=0,
    ).history
    assert model.optimizer.iterations == 4 * 11
    assert history["val_accuracy"][-1] > 0.8


def test_no_time_is_lost_on_sets_in_memory():
    digits = data.load("digits", batch_size=128)
    for batches in (digits.train(), digits.train_from(0), digits.evaluation()):
        # To end an iterator that is being tuned takes seconds.
        assert batches.options().autotune.enabled is False
        assert batches.options().deterministic
    # It is made once, and can be read again.
    assert digits.evaluation() is digits.evaluation()
    assert len(list(digits.evaluation())) == len(list(digits.evaluation())) == 3


@pytest.mark.parametrize("arch", ["", pytest.param("resnet20", marks=pytest.mark.slow)])
def test_benchmark_runs(monkeypatch, capsys, arch):
    arguments = "--images 10 --batch_size 5 --image_size 8 --rounds 1 --steps 1"
    arguments += f" --arch {arch}" if arch else ""
    script = ROOT / "benchmarks" / "input_pipeline.py"
    monkeypatch.setattr(sys, "argv", [str(script), *arguments.split()])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    lines = ["bare decoding", "training pipeline"]
    lines += [f"{arch}, same batch", f"{arch}, fed"] if arch else []
    for line in lines:
        assert re.search(rf"^{line} .* images/s", printed, re.MULTILINE)
    assert printed.count("ratio") == len(lines) // 2
