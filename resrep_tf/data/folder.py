"""Images in folders, one for each class."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping

from resrep_tf.lazy import tf

from .photos import IMAGE_SIZE, PhotoSource
from .splits import FileSplit

EXTENSIONS = (".jpg", ".jpeg", ".png")
LAYOUT = "PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg (or .jpeg, .png)"


def folder(
    path: str, *, image_size: int | None, augment: bool, flip: bool | None
) -> PhotoSource:
    """Returns the images under `path`, in the layout that `LAYOUT` shows."""
    found = _look(path)
    root = os.path.expanduser(path)
    return PhotoSource(
        train=_split(os.path.join(root, "train"), found.train, found.classes),
        held_out=_split(os.path.join(root, "val"), found.held_out, found.classes),
        image_size=image_size or IMAGE_SIZE,
        classes=len(found.classes),
        class_names=tuple(found.classes),
        augment=augment,
        flip=flip is not False,
    )


def check_folder(path: str) -> None:
    """Raises if a folder has another layout; no image is read."""
    _look(path)


@dataclasses.dataclass(frozen=True)
class _Found:
    """The classes of a folder, and the files of each in `train` and in `val`."""

    classes: list[str]
    train: dict[str, list[str]]
    held_out: dict[str, list[str]]


def _look(path: str) -> _Found:
    root, name = os.path.expanduser(path), f"folder:{path}"
    train, held_out = (os.path.join(root, split) for split in ("train", "val"))
    classes, held_out_classes = _classes(train, name), _classes(held_out, name)
    unknown = sorted(set(held_out_classes) - set(classes))
    if unknown:
        raise ValueError(
            f"The classes in `val` must be among those in `train`; {unknown[0]!r} is "
            f"not. Received: name={name!r}"
        )
    if len(classes) == 1:
        raise ValueError(
            f"There must be at least two classes; {classes[0]!r} is the only folder "
            f"in {train!r}. Received: name={name!r}"
        )
    return _Found(
        classes,
        {label: _images(os.path.join(train, label), name) for label in classes},
        {
            label: _images(os.path.join(held_out, label), name)
            for label in held_out_classes
        },
    )


def _is_folder(path: str) -> bool:
    return tf.io.gfile.isdir(path) if "://" in path else os.path.isdir(path)


def _entries(folder: str) -> list[str]:
    """Returns the sorted names in a folder, which may be in an object store."""
    if "://" in folder:
        # Object stores list folders with a slash at the end.
        return sorted(entry.rstrip("/") for entry in tf.io.gfile.listdir(folder))
    return sorted(os.listdir(folder))


@contextlib.contextmanager
def _readable(folder: str, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PermissionError(
            f"Cannot read the folder {folder!r}: {error.strerror or error}. "
            f"Received: name={name!r}"
        ) from error


def _classes(split: str, name: str) -> list[str]:
    if not _is_folder(split):
        raise FileNotFoundError(
            f"Expected {LAYOUT}; there is no folder {split!r}. Received: name={name!r}"
        )
    with _readable(split, name):
        entries = _entries(split)
    classes = [
        entry
        for entry in entries
        if not entry.startswith(".") and _is_folder(os.path.join(split, entry))
    ]
    if not classes:
        raise ValueError(
            f"Expected {LAYOUT}; there are no class folders in {split!r}. "
            f"Received: name={name!r}"
        )
    return classes


def count_files(split: str) -> int | None:
    """Returns how many images there are in the folders of a split's classes.

    None if the folders cannot be read.
    """
    try:
        parents = [os.path.join(split, entry) for entry in _entries(split)]
        return sum(len(_files(parent)) for parent in parents if _is_folder(parent))
    except OSError:
        return None  # `check_folder` raises an error about it.


def _files(parent: str) -> list[str]:
    return [
        entry
        for entry in _entries(parent)
        if entry.lower().endswith(EXTENSIONS) and not entry.startswith(".")
    ]


def _images(parent: str, name: str) -> list[str]:
    """Returns the files of a class; raises if there are none."""
    with _readable(parent, name):
        files = _files(parent)
    if not files:
        raise ValueError(
            f"Expected {LAYOUT}; there is no image of class "
            f"{os.path.basename(parent)!r} in {parent!r}. Received: name={name!r}"
        )
    return files


def _split(split: str, files: Mapping[str, list[str]], classes: list[str]) -> FileSplit:
    numbers = {label: number for number, label in enumerate(classes)}
    paths, labels = [], []
    for label, names in files.items():
        paths += [os.path.join(split, label, file) for file in names]
        labels += [numbers[label]] * len(names)
    # Input pipelines run on the CPU; elsewhere each label would be copied.
    with tf.device("CPU"):
        return FileSplit(tf.constant(paths), tf.constant(labels, tf.int32))
