"""Data sets by name."""

import difflib
import os

from .arrays import ArraySource, digits, npz
from .dataset import Dataset
from .folder import folder
from .photos import PhotoSource
from .prepared import builders, prepared

NAMES = ("digits", "cifar10", "imagenet2012", "tfds:NAME", "folder:PATH", "npz:PATH")


def names() -> list[str]:
    """Returns the names for `load`, beside the sets of tensorflow-datasets."""
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

    - `digits`: 1,797 handwritten digits of 8 x 8 pixels that come with the package.
      Shifted by up to a pixel.
    - `cifar10`: from tensorflow-datasets. Padded to 40 x 40 pixels, cropped at random
      to 32 x 32, flipped.
    - `imagenet2012`: from tensorflow-datasets. Random resized crops, flipped; resized
      and cropped in the middle to evaluate.
    - `NAME` or `tfds:NAME`: any other set of tensorflow-datasets with an image and a
      label. Small images of one size are treated as CIFAR-10's, others as ImageNet's.
    - `folder:PATH`: `PATH/train/CLASS/*.jpg` and `PATH/val/CLASS/*.jpg`, JPEG or PNG,
      treated as ImageNet.
    - `npz:PATH`: a file of NumPy's with `x_train`, `y_train`, `x_test`, `y_test`,
      normalised by the training images. Shifted by up to an eighth of their size.

    Training batches are a function of the seed and their position. All sets but those
    that are read from TFRecord files (ImageNet and other large ones of
    tensorflow-datasets) are in a new uniform order in every epoch, and start anywhere
    at once. Those are shuffled by file and within a buffer, and a start within an
    epoch reads what stands before it.

    Args:
        name: The name of the set.
        batch_size: Images in a batch, over all shards.
        seed: The order and the augmentation depend on it, and on the epoch.
        image_size: Height and width to bring images to. By default 224 for those of
            varying size; others stay as they are.
        data_dir: Where tensorflow-datasets keeps its sets, `~/tensorflow_datasets`
            by default.
        download: Whether to have tensorflow-datasets fetch and prepare a set that is
            not in `data_dir`.
        augment: Whether training images are varied at random.
        flip: Whether that includes mirror images. By default only where these are
            known to be of the same class: ImageNet, CIFAR, folders, images of varying
            size.
        pixels: What a model wants its pixels to be: "0..255", "0..1", "-1..1",
            "imagenet" (its mean and deviation) or "caffe". By default the mean and
            deviation of the training images for `digits`, `npz:` and small images
            that are not RGB, else "imagenet".
        num_shards: Number of workers that share every batch, in equal parts.
        shard_index: The number of this worker's part. Together the parts are the batch
            that a single worker would get.
        shuffle_buffer: For sets read from TFRecord files, encoded images among which
            the next one is chosen; about 0.1 MB each in ImageNet.

    Returns:
        The set. Nothing of it but small images is in memory.

    Example:

    ```python
    cifar = resrep_tf.data.load("cifar10", batch_size=64, data_dir="~/data")
    for images, labels in cifar.train(epoch=3):
        ...
    ```
    """
    _check_batch(batch_size, num_shards, shard_index)
    _check_positive("shuffle_buffer", shuffle_buffer)
    if image_size is not None:
        _check_positive("image_size", image_size)
    source = _source(
        name,
        image_size=image_size,
        data_dir=data_dir,
        download=download,
        augment=augment,
        flip=flip,
        shuffle_buffer=shuffle_buffer,
    )
    if source.train_examples < batch_size:
        raise ValueError(
            f"`batch_size` must not exceed the {source.train_examples} training "
            f"examples of {name!r}. Received: batch_size={batch_size}"
        )
    loaded = Dataset(
        name=name,
        input_shape=source.input_shape,
        classes=source.classes,
        class_names=source.class_names,
        train_examples=source.train_examples,
        eval_examples=source.eval_examples,
        batch_size=batch_size,
        seed=seed,
        num_shards=num_shards,
        shard_index=shard_index,
        _source=source,
    )
    return loaded if pixels is None else loaded.with_pixels(pixels)


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
    *,
    image_size: int | None,
    data_dir: str | None,
    download: bool,
    augment: bool,
    flip: bool | None,
    shuffle_buffer: int,
) -> ArraySource | PhotoSource:
    prefix, _, rest = name.partition(":")
    if prefix == "folder" and rest:
        return folder(rest, image_size=image_size, augment=augment, flip=flip)
    if name == "digits":
        return _unresized(digits(augment=augment, flip=flip), name, image_size)
    if prefix == "npz" and rest:
        return _unresized(npz(rest, augment=augment, flip=flip), name, image_size)
    source = prepared(
        name.removeprefix("tfds:"),
        data_dir=data_dir,
        download=download,
        image_size=image_size,
        augment=augment,
        flip=flip,
        shuffle_buffer=shuffle_buffer,
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
        # Whoever mistypes a name means the well-known set.
        near = difflib.get_close_matches(wanted, NAMES, n=1)
        near = near or difflib.get_close_matches(wanted, builders(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"`name` must be one of: {', '.join(NAMES)}, or a classification set of "
        f"tensorflow-datasets.{hint} Received: name={name!r}"
    )
