"""Checkpoints: all that a run needs to go on as if it had never stopped."""

import dataclasses
import json
import re
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from resrep_tf.cli import output

_META = "meta"
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a phase of training is.

    Attributes:
        epoch: Epochs that are over, their evaluation included.
        step: Steps taken in the epoch that is under way.
    """

    epoch: int = 0
    step: int = 0

    def steps(self, steps_per_epoch: int) -> int:
        """Steps since the start of the phase."""
        return self.epoch * steps_per_epoch + self.step


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run.

    Attributes:
        phase: `"base"` or `"prune"`.
        position: Where that phase is.
        rows: Metrics of all epochs so far.
        values: The values of `state(model)`.
    """

    phase: str
    position: Position
    rows: list[dict[str, Any]]
    values: list[np.ndarray]


class Checkpoints:
    """The checkpoints of a run, in a folder of their own.

    Args:
        folder: Where they are.
        keep: How many of them stay, the newest ones.
    """

    def __init__(self, folder: Path, keep: int):
        self._folder = folder
        self._keep = keep

    def save(self, checkpoint: Checkpoint, steps: int) -> Path:
        """Writes one, `steps` into its phase, and removes those that are too old."""
        meta = {
            "phase": checkpoint.phase,
            "position": dataclasses.asdict(checkpoint.position),
            "rows": checkpoint.rows,
        }
        path = self._folder / f"{checkpoint.phase}-{steps:09d}.npz"
        with output.atomic(path) as temporary:
            # Each member of the archive has a checksum, which reading it verifies.
            np.savez(
                temporary,
                **{_META: np.array(json.dumps(meta))},
                **{_key(i): value for i, value in enumerate(checkpoint.values)},
            )
        found = self._paths()
        place = found.index(path)
        # Those that seem newer could not be read, or the run would be there.
        for other in found[:place] + found[place + self._keep :]:
            other.unlink()
        return path

    def newest(self) -> Checkpoint | None:
        """The newest one that is whole, or None."""
        for path in self._paths():
            try:
                return _read(path)
            except _UNREADABLE as error:
                warnings.warn(
                    f"The checkpoint {path} cannot be read, so the one before it is "
                    f"taken: {error}",
                    stacklevel=2,
                )
        return None

    def remove(self) -> None:
        """Removes all of them, at the end of a run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _paths(self) -> list[Path]:
        """From the newest to the oldest: "base" comes before "prune" in this too."""
        found = self._folder.glob("*.npz")
        names = re.compile(r"(base|prune)-\d{9}\.npz")
        return sorted((p for p in found if names.fullmatch(p.name)), reverse=True)


def _read(path: Path) -> Checkpoint:
    with np.load(path) as archive:
        meta = json.loads(str(archive[_META]))
        values = [archive[_key(i)] for i in range(len(archive.files) - 1)]
    return Checkpoint(meta["phase"], Position(**meta["position"]), meta["rows"], values)


def _key(index: int) -> str:
    return f"v{index:05d}"


# === The state of a model ===


def state(model: keras.Model) -> list[keras.Variable]:
    """All variables of a model and its optimizers, random states included."""
    optimizers = [model.optimizer, getattr(model, "compactor_optimizer", None)]
    variables = list(model.variables)
    for optimizer in optimizers:
        variables += [] if optimizer is None else optimizer.variables
    return variables


def values(model: keras.Model) -> list[np.ndarray]:
    """The values of `state` and of the metrics.

    With several workers, all of them must call it: metrics are a sum over them.
    """
    variables = state(model) + model.metrics_variables
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assign(model: keras.Model, new: Sequence[np.ndarray]) -> None:
    """Sets what `values` gave, on all replicas."""
    variables = state(model) + model.metrics_variables
    for variable, value in zip(variables, new, strict=True):
        if value.dtype.kind == "V":  # NumPy's files do not know bfloat16.
            value = value.view(variable.dtype)
        if tuple(variable.shape) != value.shape:
            raise ValueError(
                f"The checkpoint is of another model: `{variable.path}` has the shape "
                f"{tuple(variable.shape)}. Received: {value.shape}"
            )
        variable.assign(value)


def transfer(source: keras.Model, target: keras.Model) -> None:
    """Gives a model the state of another one that was made in the same way."""
    for old, new in zip(state(source), state(target), strict=True):
        new.assign(keras.ops.convert_to_numpy(old))
