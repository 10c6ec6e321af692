"""What a training run is to do: flags with their defaults filled in, and checked."""

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from typing import Any

from resrep_tf.baselines.filters import FILTERS
from resrep_tf.cli import architectures
from resrep_tf.cli.errors import CommandError
from resrep_tf.pruning.schedule import Schedule
from resrep_tf.train import train_flags

# Flags that say nothing about what a run computes.
NOT_RESOLVED = ("recipe", "output")
# Flags that may change when a run is taken up again.
CHANGEABLE = (
    *("output", "data_dir", "download", "strategy"),
    *("checkpoint_interval", "keep_checkpoints"),
)

# Flags that other methods than ResRep do not look at.
FORGETTING = (
    *("compactor", "schedule", "reset", "remove", "lasso_strength"),
    *("masked_strength", "selection_step", "selection_interval"),
    *("warmup_epochs", "compactor_momentum", "epsilon", "snap", "drop_masked"),
    "snapshot_epochs",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of the training command under their own names; see `train_flags`.

    Every default that depends on something else is filled in.
    """

    arch: str
    arch_options: dict[str, Any]
    init_weights: str | None
    dataset: str
    data_dir: str | None
    download: bool
    image_size: int | None
    augment: bool
    flops_target: float
    method: str
    targets: str
    compactor: str
    min_width: int
    round_to: int
    schedule: str
    reset: bool
    remove: str
    lasso_strength: float
    masked_strength: float | None
    selection_step: int
    selection_interval: int
    warmup_epochs: float
    compactor_momentum: float
    epsilon: float
    snap: bool
    drop_masked: bool
    epochs: int
    batch_size: int
    learning_rate: float
    lr_schedule: str
    lr_boundaries: tuple[int, ...]
    momentum: float
    weight_decay: float | None
    base_epochs: int
    base_learning_rate: float
    base_lr_schedule: str
    base_lr_boundaries: tuple[int, ...]
    output: str | None
    seed: int
    mixed_precision: str
    jit_compile: bool
    export: bool
    snapshot_epochs: int
    steps_per_epoch: int | None
    eval_steps: int | None
    strategy: str
    sync_batchnorm: bool
    checkpoint_interval: int
    keep_checkpoints: int
    on_nan: str


def parse(arguments: Sequence[str]) -> tuple[Settings, str]:
    """Reads a command line.

    Returns:
        The settings, and the text of a flagfile that gives the same ones anywhere.
    """
    flags = train_flags.define()
    values = flags.parse(arguments)
    _resolve(values)
    text = flags.flagfile(values, NOT_RESOLVED)
    del values["recipe"]
    values["arch_options"] = architectures.parse_options(values["arch_options"])
    for name in ("lr_boundaries", "base_lr_boundaries"):
        values[name] = _boundaries(name, values[name])
    settings = Settings(**values)
    _check(settings)
    return settings, text


def differences(then: Settings, now: Settings) -> list[str]:
    """The settings in which two runs are not the same, as `--name=then, now VALUE`."""
    ignored = CHANGEABLE
    if "resrep" not in (then.method, now.method):
        ignored += FORGETTING
    pairs = [
        (field.name, getattr(then, field.name), getattr(now, field.name))
        for field in dataclasses.fields(Settings)
        if field.name not in ignored
    ]
    return [f"--{name}={a}, now {b}" for name, a, b in pairs if a != b]


def _resolve(values: dict[str, Any]) -> None:
    """Fills in what depends on other flags, and makes paths absolute."""
    if values["dataset"] is None:
        chosen = values["arch"]
        values["dataset"] = "digits"
        if chosen is not None:
            values["dataset"] = architectures.published_for(chosen)
    values["arch"] = values["arch"] or "resnet20"
    kind = architectures.kind(values["arch"])
    defaults = train_flags.defaults(values["dataset"])
    if values["init_weights"] is not None or kind == "file":
        defaults["base_epochs"] = 0
    if values["base_lr_schedule"] not in (None, "step"):
        defaults["base_lr_boundaries"] = []
    for name, value in defaults.items():
        if values[name] is None:
            values[name] = value
    if values["targets"] is None:
        values["targets"] = "paper" if kind == "package" else "internal"
    if values["weight_decay"] is None and kind != "file":
        values["weight_decay"] = 1e-4
    if values["compactor_momentum"] is None:
        filters = values["compactor"] == FILTERS
        values["compactor_momentum"] = (
            values["momentum"] if filters else Schedule.momentum
        )
    if values["snap"] is None:
        values["snap"] = values["schedule"] == "auto"
    for name in ("arch", "init_weights", "dataset", "data_dir"):
        values[name] = _absolute(name, values[name])


def _absolute(name: str, value: str | None) -> str | None:
    """A value whose path, if it has one, means the same from every folder."""
    if value is None or (name == "arch" and architectures.kind(value) != "file"):
        return value
    prefix = ""
    if name == "dataset":
        if not value.startswith(("folder:", "npz:")):
            return value
        prefix, _, value = value.partition(":")
        prefix += ":"
    if "://" in value:  # An object store.
        return prefix + value
    return prefix + os.path.abspath(os.path.expanduser(value))


# === Checks ===


def _boundaries(name: str, values: Sequence[str | int]) -> tuple[int, ...]:
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


def _check(settings: Settings) -> None:
    if not 0 < settings.flops_target < 1:
        raise CommandError(
            "`--flops_target` is the fraction of FLOPs to remove and lies between 0 "
            "and 1, without either. "
            f"Received: --flops_target={settings.flops_target}"
        )
    for name in (
        *("learning_rate", "base_learning_rate"),
        *("lasso_strength", "masked_strength", "epsilon"),
    ):
        value = getattr(settings, name)
        if value is not None and not 0 < value < float("inf"):
            raise CommandError(
                f"`--{name}` must be positive. "
                f"Received: --{name}={getattr(settings, name)}"
            )
    for name, value in dataclasses.asdict(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise CommandError(
                f"`--{name}` must be a finite number. Received: --{name}={value}"
            )
    for name in ("momentum", "compactor_momentum"):
        if not 0 <= getattr(settings, name) < 1:
            raise CommandError(
                f"`--{name}` must be at least 0 and less than 1. "
                f"Received: --{name}={getattr(settings, name)}"
            )
    _check_rates(settings)
    if settings.remove == train_flags.MINIMAL and settings.reset:
        raise CommandError(
            "`--remove=minimal` goes with `--noreset`: resetting decides by itself "
            "what goes. Received: --remove=minimal --reset"
        )
    if settings.epochs == 0 and settings.base_epochs == 0:
        raise CommandError(
            "`--epochs` must be positive where there is no base to train; to look at "
            "a model's accuracy, run `python -m resrep_tf.evaluate`. "
            "Received: --epochs=0 --base_epochs=0"
        )
    _check_model(settings)


def _check_rates(settings: Settings) -> None:
    for prefix in ("", "base_"):
        schedule = getattr(settings, f"{prefix}lr_schedule")
        boundaries = getattr(settings, f"{prefix}lr_boundaries")
        if (schedule == "step") != bool(boundaries):
            raise CommandError(
                f"`--{prefix}lr_boundaries` must be given for "
                f"`--{prefix}lr_schedule=step`, and for nothing else. "
                f"Received: --{prefix}lr_schedule={schedule} "
                f"--{prefix}lr_boundaries={','.join(map(str, boundaries))}"
            )


def _check_model(settings: Settings) -> None:
    architectures.check(settings.arch, settings.arch_options)
    kind = architectures.kind(settings.arch)
    if settings.init_weights and not os.path.isfile(settings.init_weights):
        raise CommandError(
            "`--init_weights` must be an existing file. "
            f"Received: --init_weights={settings.init_weights}"
        )
    if not (settings.init_weights or settings.base_epochs or kind == "file"):
        raise CommandError(
            "`--init_weights` must be given, or `--base_epochs` be positive: there is "
            "nothing to prune in a network that has learnt nothing. "
            "Received: --base_epochs=0, no --init_weights"
        )
    if settings.targets == "paper" and kind != "package":
        raise CommandError(
            "`--targets=paper` is known for the networks of this package only; take "
            "internal, all, or a regular expression. "
            f"Received: --targets=paper --arch={settings.arch}"
        )
    try:
        re.compile(settings.targets)
    except re.error as error:
        raise CommandError(
            "`--targets` must be paper, internal, all, or a regular expression: "
            f"{error}. Received: --targets={settings.targets}"
        ) from error
    if settings.mixed_precision != "float32" and kind == "file":
        raise CommandError(
            "`--mixed_precision` applies to networks that are built by name; a .keras "
            "file has its own precision. "
            f"Received: --mixed_precision={settings.mixed_precision}"
        )
