"""Defaults of the training command that depend on other flags."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from resrep_tf import models
from resrep_tf.baselines.names import FILTERS
from resrep_tf.cli import common_flags
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.flagset import Values
from resrep_tf.cli.models import architectures
from resrep_tf.data import train_examples
from resrep_tf.selection.schedule import PAPER, Schedule

# The kinds that `resrep_tf.wrap` knows, here without importing TensorFlow.
COMPACTORS = ("matrix", "vector", FILTERS)
TEACHERS = ("none", "base")
# Defaults by the name of the data set. They are those of the paper, except for digits;
# ImageNet's are used for all data sets that are not listed.
BY_DATA = {
    "digits": {
        "epochs": 20,
        "batch_size": 32,
        "learning_rate": 0.03,
        "base_epochs": 15,
        "base_lr_schedule": "cosine",
        "base_lr_boundaries": [],
    },
    "cifar10": {
        "epochs": 480,
        "batch_size": 64,
        "learning_rate": 0.01,
        "base_epochs": 240,
        "base_lr_schedule": "step",
        "base_lr_boundaries": [120, 180],
    },
    "imagenet2012": {
        "epochs": 180,
        "batch_size": 256,
        "learning_rate": 0.01,
        "base_epochs": 70,
        "base_lr_schedule": "cosine",
        "base_lr_boundaries": [],
    },
}


# A data set of fewer images than this is small: with the paper's number of epochs, a
# run would have too few steps, or a batch would have most of the images.
SMALL = 100_000
# The smallest numbers for a small data set, and the batch sizes to choose from.
STEPS_PER_EPOCH, STEPS, EPOCHS = 20, 1000, 20
BATCH_SIZES = (64, 32, 16, 8)


def of_small(examples: int) -> dict[str, Any]:
    """Returns the defaults for a small data set of the user's own."""
    fitting = [b for b in BATCH_SIZES if examples // b >= STEPS_PER_EPOCH]
    batch_size = fitting[0] if fitting else min(BATCH_SIZES[-1], examples)
    epochs = max(EPOCHS, -(-STEPS // (examples // batch_size)))
    return {
        **BY_DATA["imagenet2012"],
        "batch_size": batch_size,
        "epochs": epochs,
        "base_epochs": epochs,
    }


def of_data(name: str) -> Callable[[Values], Any]:
    """Returns a function that looks up a flag's default for `--dataset`."""

    def look_up(values: Values) -> Any:
        known = re.split("[:/]", values["dataset"].removeprefix("tfds:"))[0]
        if known in BY_DATA:
            return BY_DATA[known][name]
        examples = train_examples(values["dataset"])
        if examples is None or examples >= SMALL:
            return BY_DATA["imagenet2012"][name]
        return of_small(examples)[name]

    return look_up


def in_words(name: str) -> str:
    """Returns the help's sentence about a default that depends on the data."""
    values = [
        f"{found[name]} for {data}{' and others' if data == 'imagenet2012' else ''}"
        for data, found in BY_DATA.items()
    ]
    small = {
        "epochs": f" Folders and npz files of less than {SMALL:,} images: {EPOCHS}, or "
        f"more for {STEPS:,} steps.",
        "batch_size": f" Folders and npz files of less than {SMALL:,} images: "
        f"{BATCH_SIZES[0]}, or less for {STEPS_PER_EPOCH} steps in an epoch.",
    }
    small["base_epochs"] = small["epochs"]
    return f"By default {', '.join(values)}.{small.get(name, '')}"


def dataset(values: Values) -> str:
    """Returns the name of the data set that a network was published for."""
    arch = values.given["arch"]
    return "digits" if arch is None else architectures.published_for(arch)


def flops_target(values: Values) -> float | None:
    """Returns 0.5, or None if another target is given."""
    others = (values["params_target"], values["latency_target"])
    return 0.5 if others == (None, None) else None


def targets(values: Values) -> str:
    """Returns `paper` for networks of which the paper's target layers are known."""
    known = architectures.kind(values["arch"]) == "package"
    return "paper" if known else "internal"


def weight_decay(values: Values) -> float | None:
    """Returns the paper's weight decay, or None for a file, which has its own."""
    return None if architectures.kind(values["arch"]) == "file" else 1e-4


def compactor_momentum(values: Values) -> float:
    """Returns the paper's momentum for compactors; for filters, the main one."""
    if values["compactor"] == FILTERS:
        return values["momentum"]
    return Schedule().momentum


def shrink(values: Values) -> bool:
    """Returns true if a run forgets in time, and no flag needs the wrapped model.

    Snapshots need it: they are weights of the wrapped model until the end of training.
    """
    return (
        values["schedule"] != PAPER
        and values["reset"]
        and values["compactor"] != FILTERS
        and not values["snapshot_epochs"]
    )


def teacher(value: str) -> str:
    """Returns `--teacher` with an absolute path, if it is a path."""
    return value if value in TEACHERS else common_flags.absolute(value)


def init_weights(value: str) -> str:
    """Returns `--init_weights` with an absolute path, if it is a path."""
    return value if value == models.IMAGENET else common_flags.absolute(value)


def base_epochs(values: Values) -> int:
    """Returns 0 if there are weights already and the head is not new."""
    where, weights = architectures.kind(values["arch"]), values["init_weights"]
    if where == "hub" or weights == models.IMAGENET:
        trained = values["dataset"].startswith("imagenet2012")
    else:
        trained = where == "file" or weights is not None
    if trained:
        return 0
    return of_data("base_epochs")(values)


def base_lr_boundaries(values: Values) -> list[int]:
    """Returns the boundaries of the data's recipe, for `step` only."""
    if values["base_lr_schedule"] != "step":
        return []
    return of_data("base_lr_boundaries")(values)


def boundaries(name: str) -> Callable[[Sequence[str | int]], tuple[int, ...]]:
    """Returns a function that reads the flag `name`, a list of epochs."""

    def read(values: Sequence[str | int]) -> tuple[int, ...]:
        try:
            epochs = tuple(int(value) for value in values)
        except ValueError:
            epochs = (0,)
        if any(epoch < 1 for epoch in epochs) or list(epochs) != sorted(set(epochs)):
            raise CommandError(
                f"`--{name}` must be rising numbers of epochs, such as 120,180. "
                f"Received: --{name}={','.join(map(str, values))}"
            )
        return epochs

    return read
