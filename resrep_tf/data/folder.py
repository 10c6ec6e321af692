"""Images in folders, one for each class."""

import os

import tensorflow as tf

from .photos import IMAGE_SIZE, PhotoSource
from .splits import FileSplit

EXTENSIONS = (".jpg", ".jpeg", ".png")
LAYOUT = "PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg (or .jpeg, .png)"


def folder(
    path: str, *, image_size: int | None, augment: bool, flip: bool | None
) -> PhotoSource:
    """Returns the images under `path`, in the layout that `LAYOUT` shows."""
    root = os.path.expanduser(path)
    name = f"folder:{path}"
    names = _classes(os.path.join(root, "train"), name)
    held_out_names = _classes(os.path.join(root, "val"), name)
    unknown = sorted(set(held_out_names) - set(names))
    if unknown:
        raise ValueError(
            f"The classes in `val` must be among those in `train`; {unknown[0]!r} is "
            f"not. Received: name={name!r}"
        )
    return PhotoSource(
        train=_split(os.path.join(root, "train"), names, names, name),
        held_out=_split(os.path.join(root, "val"), held_out_names, names, name),
        image_size=image_size or IMAGE_SIZE,
        classes=len(names),
        class_names=tuple(names),
        augment=augment,
        flip=flip is not False,
    )


def _classes(split: str, name: str) -> list[str]:
    if not tf.io.gfile.isdir(split):
        raise FileNotFoundError(
            f"Expected {LAYOUT}; there is no folder {split!r}. Received: name={name!r}"
        )
    # Object stores list folders with a slash at the end.
    entries = sorted(entry.rstrip("/") for entry in tf.io.gfile.listdir(split))
    classes = [
        entry
        for entry in entries
        if not entry.startswith(".") and tf.io.gfile.isdir(os.path.join(split, entry))
    ]
    if not classes:
        raise ValueError(
            f"Expected {LAYOUT}; there are no class folders in {split!r}. "
            f"Received: name={name!r}"
        )
    return classes


def count_files(split: str) -> int:
    """Returns how many images there are in the folders of a split's classes."""
    if not tf.io.gfile.isdir(split):
        return 0
    parents = (os.path.join(split, entry) for entry in tf.io.gfile.listdir(split))
    return sum(len(_files(parent)) for parent in parents if tf.io.gfile.isdir(parent))


def _files(parent: str) -> list[str]:
    return sorted(
        entry
        for entry in tf.io.gfile.listdir(parent)
        if entry.lower().endswith(EXTENSIONS) and not entry.startswith(".")
    )


def _split(split: str, present: list[str], classes: list[str], name: str) -> FileSplit:
    numbers = {label: number for number, label in enumerate(classes)}
    paths, labels = [], []
    for label in present:
        parent = os.path.join(split, label)
        files = _files(parent)
        if not files:
            raise ValueError(
                f"Expected {LAYOUT}; there is no image of class {label!r} in "
                f"{parent!r}. Received: name={name!r}"
            )
        paths += [os.path.join(parent, file) for file in files]
        labels += [numbers[label]] * len(files)
    # Input pipelines run on the CPU; elsewhere each label would be copied.
    with tf.device("CPU"):
        return FileSplit(tf.constant(paths), tf.constant(labels, tf.int32))
