"""Data sets in memory: examples are accessed by number, processed batch by batch."""

from __future__ import annotations

import dataclasses
import importlib.resources
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from resrep_tf.lazy import tf

from .images import shift_and_flip
from .order import Order, uniform
from .pixels import Scale, own_scale

# Images are shifted by up to an eighth of their size: 4 of 32 pixels, 1 of 8.
SHIFT = 8
KEYS = ("x_train", "y_train", "x_test", "y_test")
# The exceptions that a file raises if it is cut short, damaged, or larger than memory.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, MemoryError)


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource:
    """Images and labels in memory.

    Attributes:
        train: Training images, (examples, height, width, channels), and labels.
        held_out: Held-out images, in the same form.
        pixels: The scale of the pixels.
        classes: Number of classes.
        class_names: Their names, if known.
        augment: Whether training images are shifted, and flipped if `flip`.
        flip: Whether mirror images are of the same class.
    """

    train: tuple[tf.Tensor, tf.Tensor]
    held_out: tuple[tf.Tensor, tf.Tensor]
    pixels: Scale
    classes: int
    class_names: tuple[str, ...] | None
    augment: bool
    flip: bool

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return tuple(self.train[0].shape[1:])

    @property
    def train_examples(self) -> int:
        return self.train[0].shape[0]

    @property
    def eval_examples(self) -> int:
        return self.held_out[0].shape[0]

    def training(self, order: Order, step: int, epochs: int | None) -> tf.data.Dataset:
        """Returns batches from a global step on; see `Order.chain`."""
        images, labels = self.train
        pad = min(self.input_shape[:2]) // SHIFT

        def epoch_from(epoch: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
            order_word, augmentation_word = order.words(epoch)
            rows = order.batches(order_word)[start:]
            # One table for an epoch, with a row for each example: drawing numbers for
            # each example by itself takes longer than everything else.
            draws = uniform([order.examples, 3], augmentation_word)
            return tf.data.Dataset.from_tensor_slices((rows, tf.gather(draws, rows)))

        def batch(rows: tf.Tensor, draws: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            chosen = tf.gather(images, rows)
            if self.augment:
                chosen = shift_and_flip(chosen, draws, pad, self.flip)
            return self.pixels(chosen), tf.gather(labels, rows)

        return _mapped(order.chain(epoch_from, step, epochs), batch)

    def evaluation(self, batch_size: int) -> tf.data.Dataset:
        """Returns batches of the held-out images, in the order of the arrays."""
        images, labels = self.held_out

        def batch(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            chosen = self.pixels(tf.gather(images, rows))
            return chosen, tf.gather(labels, rows)

        return _mapped(
            tf.data.Dataset.range(self.eval_examples).batch(batch_size), batch
        )

    def find_unreadable(self, after_image: Callable[[], None]) -> None:
        return None


def _mapped(rows: tf.data.Dataset, batch: Callable[..., Any]) -> tf.data.Dataset:
    """Makes batches of rows in parallel, without TensorFlow's automatic tuning.

    There is little to tune. And ending an iterator that is tuned takes up to a third of
    the time that it was in use, since it waits for the next round of tuning.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    batch = tf.autograph.experimental.do_not_convert(batch)
    return rows.map(batch, num_parallel_calls=tf.data.AUTOTUNE).with_options(options)


def from_arrays(
    train: tuple[np.ndarray, np.ndarray],
    held_out: tuple[np.ndarray, np.ndarray],
    *,
    pixels: Scale | None = None,
    **settings: Any,
) -> ArraySource:
    """Makes a source of arrays, by default normalised by the training images."""
    if pixels is None:
        pixels = own_scale(*_statistics(train[0]))

    def tensors(split: tuple[np.ndarray, np.ndarray]) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = split
        # Input pipelines run on the CPU; elsewhere each batch would be copied.
        with tf.device("CPU"):
            return tf.constant(images), tf.constant(labels, tf.int32)

    return ArraySource(tensors(train), tensors(held_out), pixels, **settings)


def _statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each channel's mean and deviation, without copying all images."""
    means, squares = [], []
    for part in np.array_split(images, -(-len(images) // 1024)):
        part = part.astype("float64")
        means.append(part.mean((1, 2)))
        squares.append((part**2).mean((1, 2)))
    mean = np.concatenate(means).mean(0)
    variance = np.concatenate(squares).mean(0) - mean**2
    # A constant channel stays constant.
    return mean, np.sqrt(np.where(variance > 1e-12, variance, 1))


def digits(*, augment: bool, flip: bool | None) -> ArraySource:
    """Returns the handwritten digits that come with the package; see digits.txt."""
    file = importlib.resources.files(__package__).joinpath("digits.npz")
    with file.open("rb") as stream:
        return _read(stream, "digits", augment, flip)


def npz(path: str, *, augment: bool, flip: bool | None) -> ArraySource:
    """Returns a set in a NumPy file, with the arrays that `KEYS` names."""
    with _stream(path) as stream:
        return _read(stream, f"npz:{path}", augment, flip)


def check_npz(path: str) -> None:
    """Raises if a file does not hold the arrays of a set; only headers are read."""
    with _stream(path) as stream:
        _opened(stream, f"npz:{path}")


def _stream(path: str) -> BinaryIO:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"`name` must give an .npz file with the arrays {', '.join(KEYS)}. There "
            f"is no such file. Received: name={f'npz:{path}'!r}"
        )
    return file.open("rb")


def count_npz(path: str) -> int | None:
    """Returns how many training images a NumPy file holds, from its header alone."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("x_train.npy") as file:
            header = np.lib.format
            if header.read_magic(file) == (1, 0):
                shape, _, _ = header.read_array_header_1_0(file)
            else:
                shape, _, _ = header.read_array_header_2_0(file)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None  # `npz` raises an error about it.
    return shape[0] if shape else None


def _opened(stream: BinaryIO, name: str) -> Any:
    """Returns an open .npz file that holds all arrays of a set."""
    try:
        archive = np.load(stream)
    except (*_DAMAGED, ValueError) as error:
        # NumPy takes an unknown format for a pickle, and advises to load it unsafely.
        reason = "it is none" if "pickle" in str(error) else str(error).strip(". ")
        raise ValueError(
            f"`name` must give an .npz file, as `numpy.savez` writes it: {reason}. "
            f"Received: name={name!r}"
        ) from error
    found = list(getattr(archive, "files", []))
    missing = [key for key in KEYS if key not in found]
    if missing:
        raise ValueError(
            f"An .npz file must hold the arrays {', '.join(KEYS)}; "
            f"{', '.join(missing)} not found among: {', '.join(found) or 'nothing'}. "
            f"Received: name={name!r}"
        )
    return archive


def _array(archive: Any, key: str, name: str) -> np.ndarray:
    """Returns one array of an .npz file; an error names both."""
    try:
        return archive[key]
    except (*_DAMAGED, ValueError) as error:
        # NumPy's message about data that it would have to unpickle.
        objects = "allow_pickle" in str(error)
        reason = "it holds Python objects instead of numbers" if objects else error
        raise ValueError(
            f"`{key}` cannot be read: {reason}. Received: name={name!r}"
        ) from error


def _read(stream: BinaryIO, name: str, augment: bool, flip: bool | None) -> ArraySource:
    archive = _opened(stream, name)
    found = [_array(archive, key, name) for key in KEYS]
    train = _checked(*found[:2], "train", name)
    held_out = _checked(*found[2:], "test", name)
    if train[0].shape[1:] != held_out[0].shape[1:]:
        raise ValueError(
            "`x_train` and `x_test` must hold images of one shape, not "
            f"{train[0].shape[1:]} and {held_out[0].shape[1:]}. Received: name={name!r}"
        )
    return from_arrays(
        train,
        held_out,
        classes=_count_classes(train[1], held_out[1], name),
        class_names=None,
        augment=augment,
        flip=bool(flip),
    )


def _checked(
    images: np.ndarray, labels: np.ndarray, split: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (uint8 or float32, with a channel axis) and flat labels."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape or images.dtype.kind not in "uif":
        raise ValueError(
            f"`x_{split}` must hold numbers, as (examples, height, width, channels) or "
            f"(examples, height, width), not {images.dtype} {images.shape}. "
            f"Received: name={name!r}"
        )
    if images.dtype != np.uint8:
        images = images.astype("float32")
        if not np.isfinite(images).all():
            raise ValueError(
                f"`x_{split}` must not hold NaN or infinity. Received: name={name!r}"
            )
    labels = _from_one_hot(labels)
    if labels.dtype.kind not in "ui" or labels.size != len(images):
        raise ValueError(
            f"`y_{split}` must hold one integer, or a one-hot row, for each of the "
            f"{len(images)} images in `x_{split}`, not {labels.dtype} {labels.shape}. "
            f"Received: name={name!r}"
        )
    return images, labels.reshape(-1)


def _from_one_hot(labels: np.ndarray) -> np.ndarray:
    """Returns integer labels for one-hot rows, and other arrays unchanged."""
    one_hot = (
        labels.ndim == 2
        and labels.shape[1] > 1
        and labels.dtype.kind in "buif"
        and np.isin(labels, (0, 1)).all()
        and (labels.sum(axis=1) == 1).all()
    )
    return labels.argmax(axis=1) if one_hot else labels


def _count_classes(train: np.ndarray, held_out: np.ndarray, name: str) -> int:
    present = np.unique(train)
    classes = len(present)
    gaps = np.flatnonzero(present != np.arange(classes))
    if gaps.size:
        raise ValueError(
            "`y_train` must hold the labels 0, 1, 2 ... without a gap, each at least "
            f"once; it has {classes} labels from {present[0]} to {present[-1]}, and "
            f"none is {gaps[0]}. Received: name={name!r}"
        )
    if classes == 1:
        raise ValueError(
            "`y_train` must hold at least two classes; all of its labels are 0. "
            f"Received: name={name!r}"
        )
    unknown = np.setdiff1d(held_out, present)
    if unknown.size:
        raise ValueError(
            f"`y_test` must hold labels that `y_train` holds; {unknown[0]} is not "
            f"among them. Received: name={name!r}"
        )
    return classes
