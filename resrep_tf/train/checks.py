"""Checks that flags fit together, before anything is loaded."""

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from resrep_tf import data
from resrep_tf.budget.combined import FLOPS_TARGET, TARGETS
from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.models import architectures
from resrep_tf.selection.selection import Constraints
from resrep_tf.train import defaults

if TYPE_CHECKING:
    from resrep_tf.train.settings import Settings

# For formats of a run's files, the runtime whose latency table applies to them. There
# is none for other formats, such as int8.
_RUNTIMES = {
    "keras": "keras",
    "saved_model": "saved_model",
    "tflite": "litert",
    "tflite_float16": "litert",
}


def goals(settings: "Settings") -> Goals:
    """Returns the targets of a run."""
    return Goals(
        settings.flops_target,
        settings.params_target,
        settings.latency_target,
        settings.latency_table,
    )


@contextlib.contextmanager
def blame_targets() -> Iterator[None]:
    """Turns an error about a target, or about its table, into one of the flag."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        flags = [t for t in TARGETS if f"`{t}`" in text or f"Received: {t}=" in text]
        table = "latency_table" if "latency" in text else FLOPS_TARGET
        with blame(flags[0] if flags else table):
            raise


def check(settings: "Settings") -> None:
    """Raises a `CommandError` if a run with these settings cannot work."""
    with blame_targets():
        table = cast(LatencyTable | None, goals(settings).latency_table)
        # Without an export now, the model may be exported later for any runtime.
        if table is not None and settings.export != ("keras",):
            table.check_runtime(_RUNTIMES[f] for f in settings.export if f in _RUNTIMES)
        Constraints(None, settings.min_width, settings.round_to)
    _check_rates(settings)
    if settings.shrink and not (settings.reset and settings.compactor != "filters"):
        raise CommandError(
            "`--shrink` rebuilds the network when masked channels are forgotten, so it "
            "needs `--reset` and compactors. Received: --shrink "
            f"--{'' if settings.reset else 'no'}reset "
            f"--compactor={settings.compactor}"
        )
    if settings.method != "resrep" and not settings.reset:
        raise CommandError(
            "`--noreset` is a variant of ResRep; other methods have nothing to reset. "
            f"Leave out one of the two. Received: --noreset --method={settings.method}"
        )
    if settings.remove == "minimal" and settings.reset:
        raise CommandError(
            "`--remove=minimal` needs `--noreset`: with resetting, selection decides "
            "what is removed. Received: --remove=minimal --reset"
        )
    if settings.epochs == 0 and settings.base_epochs == 0:
        raise CommandError(
            "`--epochs` must be positive if there is no base to train; to measure "
            "a model's accuracy, run `python -m resrep_tf.evaluate`. "
            "Received: --epochs=0 --base_epochs=0"
        )
    _check_model(settings)
    _check_targets(settings)


def check_files(settings: "Settings") -> None:
    """Raises if a file or folder of a run is damaged, or of the wrong kind."""
    if architectures.kind(settings.arch) == "file":
        architectures.check_whole("arch", settings.arch)
    if settings.teacher not in defaults.TEACHERS:
        architectures.check_whole("teacher", settings.teacher)
    with blame("dataset"):
        data.check(settings.dataset, settings.data_dir, settings.download)


def _check_rates(settings: "Settings") -> None:
    for prefix in ("", "base_"):
        schedule = getattr(settings, f"{prefix}lr_schedule")
        boundaries = getattr(settings, f"{prefix}lr_boundaries")
        if (schedule == "step") != bool(boundaries):
            raise CommandError(
                f"`--{prefix}lr_boundaries` must be given for "
                f"`--{prefix}lr_schedule=step`, and only for it. "
                f"Received: --{prefix}lr_schedule={schedule} "
                f"--{prefix}lr_boundaries={','.join(map(str, boundaries))}"
            )


def _check_model(settings: "Settings") -> None:
    architectures.check(settings.arch, settings.arch_options)
    kind = architectures.kind(settings.arch)
    architectures.check_weights(settings.init_weights)
    if settings.teacher not in defaults.TEACHERS:
        architectures.check_file("teacher", settings.teacher)
    if not (settings.init_weights or settings.base_epochs or kind in ("file", "hub")):
        raise CommandError(
            "`--init_weights` must be given, or `--base_epochs` be positive: a network "
            "has to be trained before it is pruned. "
            "Received: --base_epochs=0, no --init_weights"
        )
    if settings.mixed_precision != "float32" and kind == "file":
        raise CommandError(
            "`--mixed_precision` applies to networks that are built by name; a .keras "
            "file has its own precision. "
            f"Received: --mixed_precision={settings.mixed_precision}"
        )


def _check_targets(settings: "Settings") -> None:
    if settings.targets == "paper" and architectures.kind(settings.arch) != "package":
        raise CommandError(
            "`--targets=paper` is known only for the networks of this package; use "
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
