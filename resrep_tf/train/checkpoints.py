"""Checkpoints: all that a run needs to continue as if it had never stopped."""

import dataclasses
import json
import re
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from resrep_tf.cli import output
from resrep_tf.train.phases import ORDER

_META = "meta"
# The exceptions that a damaged file raises.
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, MemoryError),
    *(RecursionError, NotImplementedError, RuntimeError, SyntaxError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@dataclasses.dataclass(frozen=True)
class Position:
    """A moment of a phase.

    Attributes:
        epoch: The number of finished epochs, including their evaluation.
        step: The number of steps taken in the current epoch.
    """

    epoch: int = 0
    step: int = 0

    def steps(self, steps_per_epoch: int) -> int:
        """Returns the number of steps before this moment, from epoch 0 on."""
        return self.epoch * steps_per_epoch + self.step


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The state of a run.

    Attributes:
        phase: The name of a phase.
        position: The moment of that phase.
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
        folder: Their folder.
        keep: The number of checkpoints to keep, the newest ones.
    """

    def __init__(self, folder: Path, keep: int):
        self._folder = folder
        self._keep = keep

    def save(self, checkpoint: Checkpoint, steps: int) -> Path:
        """Writes a checkpoint and removes those that are too old.

        Args:
            checkpoint: The state.
            steps: The steps before it, from epoch 0 on; a part of the file's name.
        """
        meta = {
            "phase": checkpoint.phase,
            "position": dataclasses.asdict(checkpoint.position),
            "rows": checkpoint.rows,
        }
        path = self._folder / f"{checkpoint.phase}-{steps:09d}.npz"
        with output.atomic(path) as temporary:
            # Each member of the archive has a checksum, which is verified on reading.
            np.savez(
                temporary,
                **{_META: np.array(json.dumps(meta))},
                **{_key(i): value for i, value in enumerate(checkpoint.values)},
            )
        found = self._paths()
        place = found.index(path)
        # Files that seem newer are damaged; otherwise the run would have started there.
        for other in found[:place] + found[place + self._keep :]:
            other.unlink()
        return path

    def newest(self) -> Checkpoint | None:
        """Returns the newest checkpoint that can be read, or None."""
        for path in self._paths():
            try:
                return _read(path)
            except _UNREADABLE as error:
                warnings.warn(
                    f"The checkpoint {path} cannot be read, so the one before it is "
                    f"used: {error}",
                    stacklevel=2,
                )
        return None

    def remove(self) -> None:
        """Removes all checkpoints, at the end of a run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _paths(self) -> list[Path]:
        """Returns the files from the newest to the oldest: by phase, then by step."""
        names = re.compile(rf"({'|'.join(ORDER)})-(\d{{9}})\.npz")
        found = []
        for path in self._folder.glob("*.npz"):
            name = names.fullmatch(path.name)
            if name is not None:
                found.append((ORDER.index(name[1]), int(name[2]), path))
        return [path for _, _, path in sorted(found, reverse=True)]


def _read(path: Path) -> Checkpoint:
    with np.load(path) as archive:
        meta = json.loads(str(archive[_META]))
        values = [archive[_key(i)] for i in range(len(archive.files) - 1)]
    position = Position(**meta["position"])
    whole = isinstance(position.epoch, int) and isinstance(position.step, int)
    if not (whole and isinstance(meta["rows"], list)):
        raise ValueError(f"its {_META} is not that of a checkpoint")
    return Checkpoint(meta["phase"], position, meta["rows"], values)


def _key(index: int) -> str:
    return f"v{index:05d}"


# === The state of a model ===


def state(model: keras.Model) -> list[keras.Variable]:
    """Returns all variables of a model and its optimizers, random states included."""
    optimizers = [model.optimizer, getattr(model, "compactor_optimizer", None)]
    variables = list(model.variables)
    for optimizer in optimizers:
        variables += [] if optimizer is None else optimizer.variables
    return variables


def values(model: keras.Model) -> list[np.ndarray]:
    """Returns the values of `state` and of the metrics.

    With several workers, all of them must call it, since metrics are sums over them.
    """
    variables = state(model) + model.metrics_variables
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assign(model: keras.Model, new: Sequence[np.ndarray]) -> None:
    """Sets the variables to what `values` returned, on all replicas."""
    variables = state(model) + model.metrics_variables
    for variable, value in zip(variables, new, strict=True):
        if value.dtype.kind == "V":  # NumPy stores bfloat16 as raw bytes.
            value = value.view(variable.dtype)
        if tuple(variable.shape) != value.shape:
            raise ValueError(
                f"The checkpoint is of another model: `{variable.path}` has the shape "
                f"{tuple(variable.shape)}. Received: {value.shape}"
            )
        variable.assign(value)


def transfer(source: keras.Model, target: keras.Model) -> None:
    """Copies a model's state to another model that was made in the same way."""
    for old, new in zip(state(source), state(target), strict=True):
        new.assign(keras.ops.convert_to_numpy(old))
