"""Data sets by name."""

import difflib
import os
from collections.abc import Mapping
from typing import Any

from .arrays import ArraySource, check_npz, count_npz, digits, npz
from .dataset import Dataset
from .folder import check_folder, count_files, folder
from .photos import PhotoSource
from .prepared import builders, is_prepared, prepared

NAMES = ("digits", "cifar10", "imagenet2012", "tfds:NAME", "folder:PATH", "npz:PATH")


def names() -> list[str]:
    """Returns the names for `load`, without the data sets of tensorflow-datasets."""
    return list(NAMES)


def load(
    name: str,
    *,
    batch_size: int,
    seed: int = 0,
    image_size: int | None = None,
    data_dir: str | None = None,
    download: bool = False,
    augment: bool = True,
    flip: bool | None = None,
    pixels: str | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    shuffle_buffer: int = 4096,
) -> Dataset:
    """Loads a classification set for training and evaluation.

    A training batch depends only on the seed and its position. See `docs/data.md` for
    the layout of folders and files, and for how pixels are processed.

    Args:
        name: One of `names()`, or a set of tensorflow-datasets.
        batch_size: Images in a batch, over all shards.
        seed: Decides, with the epoch, the order and the augmentation.
        image_size: Height and width to which images are resized. By default 224 for
            those of varying size; others stay as they are.
        data_dir: The folder of tensorflow-datasets, `~/tensorflow_datasets` by default.
        download: Whether to download and prepare a data set that is not in `data_dir`.
        augment: Whether training images are varied at random.
        flip: Whether that includes mirror images. By default only where these are
            known to be of the same class: ImageNet, CIFAR, folders, varying sizes.
        pixels: The scale of the pixels that a model needs: "0..255", "0..1", "-1..1",
            "imagenet" (its mean and deviation) or "caffe". By default "imagenet";
            the training images' own mean and deviation for data sets in memory that
            are not RGB photos.
        num_shards: Number of workers that share every batch, in equal parts.
        shard_index: The number of this worker's part.
        shuffle_buffer: For data sets read from TFRecord files, the number of encoded
            images among which the next one is chosen; about 0.1 MB each in ImageNet.

    Returns:
        The data set. Only small images are in memory.

    Example:

    ```python
    cifar = resrep_tf.data.load("cifar10", batch_size=64, data_dir="~/data")
    ```
    """
    _check_batch(batch_size, num_shards, shard_index)
    options = {"image_size": image_size, "augment": augment, "flip": flip}
    source = _source(name, data_dir, download, shuffle_buffer, options)
    _check_enough(source, name, batch_size)
    loaded = Dataset.of(source, name, batch_size, seed, num_shards, shard_index)
    return loaded if pixels is None else loaded.with_pixels(pixels)


def _check_enough(
    source: ArraySource | PhotoSource, name: str, batch_size: int
) -> None:
    if source.train_examples < batch_size:
        raise ValueError(
            f"`batch_size` must not exceed the {source.train_examples} training "
            f"examples of {name!r}. Received: batch_size={batch_size}"
        )


def check(name: str, data_dir: str | None = None, download: bool = False) -> None:
    """Raises if `load` would not find a data set; reads no image.

    Args:
        name: As for `load`.
        data_dir: As for `load`.
        download: As for `load`; nothing is downloaded.
    """
    prefix, _, path = name.partition(":")
    if prefix == "folder" and path:
        check_folder(path)
    elif prefix == "npz" and path:
        check_npz(path)
    elif name != "digits" and not is_prepared(
        name.removeprefix("tfds:"), data_dir, download
    ):
        raise ValueError(_unknown(name))


def train_examples(name: str) -> int | None:
    """Returns how many training images a data set has, or None if unknown.

    No image is read. The number is unknown for the sets of tensorflow-datasets.
    """
    prefix, _, path = name.partition(":")
    path = os.path.expanduser(path)
    if prefix == "folder":
        return count_files(os.path.join(path, "train")) or None
    return (count_npz(path) or None) if prefix == "npz" else None


def _check_batch(batch_size: int, num_shards: int, shard_index: int) -> None:
    _check_positive("batch_size", batch_size)
    if num_shards < 1 or batch_size % num_shards:
        raise ValueError(
            "`num_shards` must divide the global `batch_size` into equal parts. "
            f"Received: num_shards={num_shards!r}, batch_size={batch_size!r}"
        )
    if not 0 <= shard_index < num_shards:
        raise ValueError(
            f"`shard_index` must be in 0 ... {num_shards - 1}. "
            f"Received: shard_index={shard_index!r}"
        )


def _check_positive(argument: str, value: int) -> None:
    if value < 1:
        raise ValueError(
            f"`{argument}` must be positive. Received: {argument}={value!r}"
        )


def _source(
    name: str,
    data_dir: str | None,
    download: bool,
    shuffle_buffer: int,
    options: Mapping[str, Any],
) -> ArraySource | PhotoSource:
    """Returns the images of a data set; `options` are size, augmentation and flips."""
    _check_positive("shuffle_buffer", shuffle_buffer)
    size = options["image_size"]
    if size is not None:
        _check_positive("image_size", size)
    varied = {key: options[key] for key in ("augment", "flip")}
    prefix, _, rest = name.partition(":")
    if prefix == "folder" and rest:
        return folder(rest, **options)
    if name == "digits":
        return _unresized(digits(**varied), name, size)
    if prefix == "npz" and rest:
        return _unresized(npz(rest, **varied), name, size)
    source = prepared(
        name.removeprefix("tfds:"),
        data_dir=data_dir,
        download=download,
        shuffle_buffer=shuffle_buffer,
        **options,
    )
    if source is None:
        raise ValueError(_unknown(name))
    return source


def _unresized(source: ArraySource, name: str, image_size: int | None) -> ArraySource:
    height, width, _ = source.input_shape
    if image_size is not None and (height, width) != (image_size, image_size):
        raise ValueError(
            f"`image_size` must be None for {name!r}, whose images stay "
            f"{height} x {width}. Received: image_size={image_size!r}"
        )
    return source


def _unknown(name: str) -> str:
    """Returns an error that lists what can be loaded, and the nearest name."""
    if os.path.isdir(os.path.expanduser(name)):
        near = [f"folder:{name}"]
    elif name.endswith(".npz"):
        near = [f"npz:{name}"]
    else:
        wanted = name.removeprefix("tfds:").lower()
        # A mistyped name most likely means one of the well-known data sets.
        near = difflib.get_close_matches(wanted, NAMES, n=1)
        near = near or difflib.get_close_matches(wanted, builders(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"`name` must be one of: {', '.join(NAMES)}, or a classification set of "
        f"tensorflow-datasets.{hint} Received: name={name!r}"
    )
