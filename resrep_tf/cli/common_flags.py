"""The flags that several commands share: those for the model and for the data."""

import os
from typing import Any

from resrep_tf import data, models
from resrep_tf.cli.flagset import flag
from resrep_tf.cli.models import architectures


def arch(more: str, **options: Any) -> Any:
    """Declares `--arch`; its help ends with `more`."""
    return flag(
        None,
        f"The network: {', '.join(models.names())}; keras:NAME for one of "
        "keras.applications, with fresh weights and logits as outputs; hub:PRESET for "
        "one of keras-hub, with its weights; or the path of a .keras file, with "
        f"its weights. {more}",
        **options,
    )


def arch_options() -> Any:
    """Declares `--arch_options`, which are read into a dictionary."""
    return flag(
        [],
        "Further arguments of the network's builder, such as shortcut=projection or "
        "alpha=0.5.",
        read=architectures.parse_options,
    )


def init_weights(**options: Any) -> Any:
    """Declares `--init_weights`."""
    return flag(
        None,
        "Weights of the base: .keras, .weights.h5, or .safetensors with PyTorch's "
        "names; imagenet for those that Keras publishes, with --arch=keras:NAME.",
        **options,
    )


def dataset(more: str, **options: Any) -> Any:
    """Declares `--dataset`; its help ends with `more`."""
    return flag(
        None,
        f"The data: {', '.join(data.names())}, or any classification set of "
        f"tensorflow-datasets. {more}",
        **options,
    )


def data_dir(**options: Any) -> Any:
    """Declares `--data_dir`."""
    return flag(
        None,
        "The folder of tensorflow-datasets. By default ~/tensorflow_datasets.",
        **options,
    )


def download(**options: Any) -> Any:
    """Declares `--download`."""
    text = "Download and prepare a data set that is not in --data_dir."
    return flag(False, text, **options)


def image_size() -> Any:
    """Declares `--image_size`."""
    return flag(
        None,
        "Height and width to which images are resized. By default those of the model; "
        "without any, images of varying size get 224, and others stay as they are.",
        lower=1,
    )


# === Paths ===


def absolute(path: str) -> str:
    """Returns a path that means the same in every folder."""
    if "://" in path:  # An object store.
        return path
    return os.path.abspath(os.path.expanduser(path))


def absolute_arch(arch: str) -> str:
    """Returns `--arch` with an absolute path, if it is or contains a path."""
    if architectures.kind(arch) == "file":
        return absolute(arch)
    prefix, _, preset = arch.partition(":")
    # A preset's name may look like a path; keras-hub looks for a folder first, too.
    if prefix == "hub" and os.path.isdir(os.path.expanduser(preset)):
        return f"{prefix}:{absolute(preset)}"
    return arch


def absolute_dataset(dataset: str) -> str:
    """Returns `--dataset` with an absolute path, if it contains a path."""
    if not dataset.startswith(("folder:", "npz:")):
        return dataset
    prefix, _, path = dataset.partition(":")
    return f"{prefix}:{absolute(path)}"
