"""Data sets that tensorflow-datasets has prepared."""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

import numpy as np

from resrep_tf.lazy import tf

from .arrays import ArraySource, from_arrays
from .photos import IMAGE_SIZE, PhotoSource
from .pixels import SCALES
from .splits import RecordSplit

# A name, and perhaps a configuration or a version.
NAME = re.compile(r"\w+([/:].+)?")
# Decoded data sets up to this many bytes are kept in memory.
IN_MEMORY = 2**30
# Data sets of small images whose mirror images are of the same class. Mirrored digits
# and letters are not, and the description of a data set does not say which it has.
FLIPPED = frozenset({"cifar10", "cifar100", "imagenet_resized"})


def builders() -> list[str]:
    """Returns the data sets that tensorflow-datasets knows; none if not installed."""
    try:
        tfds = _import()
    except ImportError:
        return []
    return tfds.list_builders(with_community_datasets=False)


def prepared(
    name: str,
    *,
    data_dir: str | None,
    download: bool,
    image_size: int | None,
    augment: bool,
    flip: bool | None,
    shuffle_buffer: int,
) -> ArraySource | PhotoSource | None:
    """Returns a data set of tensorflow-datasets, or None if it has none of that name.

    Small images of one size are kept in memory, decoded. Others are read from disk
    and resized to one size.
    """
    builder = _builder(name, data_dir, download)
    if builder is None:
        return None
    features = builder.info.features
    splits = builder.info.splits
    held_out = _held_out(builder.name, splits, name)
    label = features["label"]
    settings = {
        "classes": label.num_classes,
        "class_names": tuple(label.names) if label.names else None,
        "augment": augment,
    }

    def records(split: str) -> RecordSplit:
        info = splits[split]
        return RecordSplit(
            [os.fspath(path) for path in info.filepaths],
            list(info.shard_lengths),
            shuffle_buffer,
        )

    train, evaluation = records("train"), records(held_out)
    shape = features["image"].shape
    if _kept_in_memory(shape, image_size, train.examples + evaluation.examples):
        rgb = shape[-1] == 3
        return from_arrays(
            _decoded(train, shape),
            _decoded(evaluation, shape),
            pixels=SCALES["imagenet"] if rgb else None,
            flip=builder.name in FLIPPED if flip is None else flip,
            **settings,
        )
    sides = [side for side in shape[:2] if side is not None]
    fixed = len(sides) == 2
    if flip is None:
        flip = not fixed or builder.name in FLIPPED
    return PhotoSource(
        train,
        evaluation,
        image_size=image_size or (min(sides) if fixed else IMAGE_SIZE),
        flip=flip,
        **settings,
    )


def is_prepared(name: str, data_dir: str | None, download: bool) -> bool:
    """Returns whether there is such a data set; raises if its files are missing.

    With `download`, they may be missing.
    """
    builder = _known(name, data_dir)
    if builder is not None and not download:
        _check_prepared(_import(), builder, name, data_dir)
    return builder is not None


def _known(name: str, data_dir: str | None) -> Any:
    """Returns the builder of a classification set, or None if it is unknown."""
    tfds = _import()
    if not NAME.fullmatch(name):
        return None
    folder = None if data_dir is None else os.path.expanduser(data_dir)
    try:
        builder = tfds.builder(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError:
        return None
    # Checked before a download that would be useless.
    _check_features(tfds, builder.info.features, name)
    return builder


def _builder(name: str, data_dir: str | None, download: bool) -> Any:
    """Returns the builder of a prepared data set, or None if it is unknown."""
    builder = _known(name, data_dir)
    if builder is not None:
        if download:
            builder.download_and_prepare()
        _check_prepared(_import(), builder, name, data_dir)
    return builder


def _import() -> ModuleType:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "This set needs tensorflow-datasets, the extra `datasets`: "
            'pip install "resrep_tf[datasets]"'
        ) from error
    return tensorflow_datasets


def _check_features(tfds: ModuleType, features: Any, name: str) -> None:
    expected = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
    for key, kind in expected.items():
        if key not in features or not isinstance(features[key], kind):
            raise ValueError(
                "`name` must be a classification set, with an image as 'image' and a "
                f"class as 'label'; its features are {sorted(features)}. "
                f"Received: name={name!r}"
            )
    if features["image"].np_dtype != np.uint8:
        raise ValueError(
            "`name` must be a set of images with 8 bits a channel, not "
            f"{np.dtype(features['image'].np_dtype)}. Received: name={name!r}"
        )


def _check_prepared(
    tfds: ModuleType, builder: Any, name: str, data_dir: str | None
) -> None:
    if not builder.info.splits:
        where = os.fspath(builder.data_dir_root)
        manual = ""
        if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            manual = (
                " Its archives cannot be downloaded automatically: put them into "
                f"{os.path.join(where, 'downloads', 'manual')!r} first."
            )
        raise FileNotFoundError(
            f"{name!r} is not prepared in {where!r}. Prepare it once with `tfds build "
            f"{name} --data_dir={where}` or with `download=True` (`--download`)."
            f"{manual} "
            "If it is elsewhere, give the folder that holds "
            f"{builder.name!r} as `data_dir` (`--data_dir=`). "
            f"Received: data_dir={data_dir!r}"
        )
    if builder.info.file_format != tfds.core.FileFormat.TFRECORD:
        raise ValueError(
            f"{name!r} must be prepared as TFRecord files, with `tfds build {name} "
            "--file_format=tfrecord`, not as "
            f"{builder.info.file_format.value}. Received: data_dir={data_dir!r}"
        )


def _held_out(base: str, splits: Any, name: str) -> str:
    """Returns the name of the held-out split; ImageNet's `test` has no labels."""
    labelled = ("validation",) if base == "imagenet2012" else ("test", "validation")
    choices = [split for split in labelled if split in splits]
    if "train" not in splits or not choices:
        raise ValueError(
            "`name` must be a set with the splits 'train' and 'test' or 'validation'; "
            f"it has {sorted(splits)}. Received: name={name!r}"
        )
    return choices[0]


def _kept_in_memory(shape: tuple, image_size: int | None, examples: int) -> bool:
    if None in shape:
        return False
    if image_size is not None and shape[:2] != (image_size, image_size):
        return False
    return examples * int(np.prod(shape)) <= IN_MEMORY


def _decoded(split: RecordSplit, shape: tuple) -> tuple[np.ndarray, np.ndarray]:
    def example(index: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        contents, label = split.open(index, record)
        image = tf.io.decode_image(
            contents, channels=shape[-1], expand_animations=False
        )
        return tf.ensure_shape(image, shape), label

    images = np.empty((split.examples, *shape), np.uint8)
    labels = np.empty(split.examples, np.int32)
    batches = split.ordered().map(example, num_parallel_calls=tf.data.AUTOTUNE)
    start = 0
    try:
        for image, label in batches.batch(1024).prefetch(1).as_numpy_iterator():
            images[start : start + len(label)] = image
            labels[start : start + len(label)] = label
            start += len(label)
    except tf.errors.OpError as error:
        raise ValueError(split.find_unreadable() or str(error)) from error
    return images, labels
