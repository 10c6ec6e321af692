"""Measured times of a model's operations over their widths.

The time of an operation is known on a grid of widths and interpolated in between.
Vectorised kernels compute channels in bundles, so that a width which does not fill
them costs as much as the next larger one that does, or more. A few numbers for each
axis say how strong this effect is: with a share of 1 for bundles of 16, width 65 takes
the time of width 80.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from resrep_tf.budget.operations import Operation
    from resrep_tf.graph.channel_graph import ChannelGraph

_FORMAT = 2
# Times are summed as whole picoseconds: sums are exact in any order.
PER_SECOND = 10**12
# A table has a time for every width up to the largest.
_WIDEST = 1 << 20
# The exceptions that reading a file raises if its content is not that of a table.
_DAMAGED = (
    *(KeyError, TypeError, ValueError, AttributeError),
    *(RecursionError, OverflowError, MemoryError),
)


@dataclass(frozen=True, eq=False)
class OperationTimes:
    """The measured times of one operation.

    Attributes:
        widths: For each axis, the widths of the grid, ascending.
        seconds: The time at each point of the grid, an array with these axes.
        bundles: For each axis, by the size of a bundle: the share of the cost of the
            channels missing in the last bundle that is paid nevertheless.
    """

    widths: tuple[tuple[int, ...], ...]
    seconds: np.ndarray
    bundles: tuple[dict[int, float], ...]

    def at(self, widths: Sequence[int]) -> float:
        """Returns the seconds that the operation takes at some widths."""
        value = self.seconds
        for axis, width in enumerate(widths):
            value = self._weights(axis, np.array([width])) @ value
            value = value[0]
        return max(float(value), 0.0)

    @cached_property
    def table(self) -> np.ndarray:
        """The time at all widths from 0 to the largest, in whole picoseconds."""
        value = self.seconds
        for axis, grid in enumerate(self.widths):
            weights = self._weights(axis, np.arange(grid[-1] + 1))
            value = np.moveaxis(np.tensordot(weights, value, (1, axis)), 0, axis)
        return np.rint(np.maximum(value, 0.0) * PER_SECOND).astype(np.int64)

    def _weights(self, axis: int, widths: np.ndarray) -> np.ndarray:
        """Returns the share of every point of the grid in the time at each width."""
        grid = np.array(self.widths[axis])
        weights = np.zeros((len(widths), len(grid)))
        if len(grid) == 1:
            weights[:, 0] = 1.0
            return weights
        low = np.clip(np.searchsorted(grid, widths, side="right") - 1, 0, len(grid) - 2)
        below, above = grid[low], grid[low + 1]
        width = np.clip(widths, grid[0], grid[-1])
        part = (width - below) / (above - below)
        # Between two measured widths, count filled bundles, so that measured times are
        # exact. Where bundles tell nothing, interpolate by width.
        start, end = (self._filled(axis, w, below, above) for w in (below, above))
        far = end - start >= 0.5 * (above - below)
        filled = self._filled(axis, width, below, above) - start
        np.divide(filled, end - start, out=part, where=far)
        rows = np.arange(len(widths))
        weights[rows, low] = 1.0 - part
        weights[rows, low + 1] = part
        return weights

    def _filled(
        self, axis: int, widths: np.ndarray, below: np.ndarray, above: np.ndarray
    ) -> np.ndarray:
        """Returns as how many channels widths between measured points count."""
        span = above - below
        filled = widths.astype(float)
        for size, share in self.bundles[axis].items():
            # Of two points in one bundle, the narrower one is a smaller bundle.
            smaller = np.where(below % span == 0, span, 1)
            filled += share * (-widths % np.where(size <= span, size, smaller))
        return filled


@dataclass(frozen=True, eq=False)
class LatencyTable:
    """The times that the operations of a model take, by their widths.

    `resrep_tf.measure_latency` makes it. The sum over a model's operations estimates
    the model's latency; `checks` shows how good that estimate was for this model.

    Attributes:
        model: The name of the measured model.
        runtime: `"litert"`, `"saved_model"` or `"keras"`.
        batch_size: The number of examples in a call.
        threads: The number of threads, None for the runtime's own choice.
        input_shapes: The shapes of one example.
        machine: The machine on which it was measured.
        versions: The versions of the runtime's software.
        overhead: Seconds that a call takes beside its operations.
        operations: The times of each operation, by its key.
        checks: Whole models that were measured to see how good the sum of their
            operations is: for each, its `measured` and `predicted` seconds.
        shares: The weights of an operation's time with cold caches and of its time
            with warm ones. They and `overhead` are fitted to all of `checks` but the
            last, which shows how good the prediction is.

    Example:

    ```python
    table = resrep_tf.measure_latency(model, threads=1, rounds=2, verbose=False)
    print(table)
    table.save("latency.json")
    table = resrep_tf.LatencyTable.load("latency.json")
    ```
    """

    model: str
    runtime: str
    batch_size: int
    threads: int | None
    input_shapes: tuple[tuple[int, ...], ...]
    machine: dict[str, Any]
    versions: dict[str, str]
    overhead: float
    operations: dict[str, OperationTimes]
    checks: dict[str, dict[str, float]] = field(default_factory=dict)
    shares: tuple[float, float] = (0.5, 0.5)

    def __str__(self):
        text = (
            f"Latency of `{self.model}` on {self.runtime} "
            f"({self.machine.get('processor', 'unknown processor')}, "
            f"batch {self.batch_size}, threads {self.threads or 'by default'}): "
            f"{len(self.operations)} operations"
        )
        for name, times in self.checks.items():
            ratio = times["predicted"] / times["measured"]
            text += (
                f"\n  {name}: {times['measured'] * 1e3:.2f} ms measured, "
                f"{times['predicted'] * 1e3:.2f} ms predicted ({ratio:.2f})"
            )
        return text

    def predict(self, graph: ChannelGraph, keep: np.ndarray | None = None) -> float:
        """Returns the seconds of a call of the whole model.

        Args:
            graph: The model's graph.
            keep: A boolean for each channel id, true where the channel stays. All of
                them stay by default.
        """
        found = self.check(graph)
        if keep is None:
            keep = np.ones(graph.num_channels, bool)
        return self.overhead + sum(
            self.operations[op.key].at([int(keep[ids].sum()) for ids in op.axes])
            for op in found
        )

    def check_runtime(self, runtimes: Iterable[str]) -> None:
        """Raises unless the table was measured on one of the given runtimes.

        Args:
            runtimes: The runtimes that the pruned model is for.
        """
        names = sorted(set(runtimes))
        if self.runtime not in names:
            raise ValueError(
                f"`latency_table` was measured on {self.runtime!r}, and the model is "
                f"for {' and '.join(map(repr, names))}: measure again with "
                f"`resrep_tf.measure_latency(model, runtime={names[0]!r})`. "
                f"Received: a latency table with runtime={self.runtime!r}"
            )

    def check(self, graph: ChannelGraph) -> list[Operation]:
        """Raises unless the table has all operations of a model, up to their widths.

        Args:
            graph: The model's graph.

        Returns:
            The operations of the model.
        """
        # Here, since flags are checked with a table before TensorFlow is imported.
        from resrep_tf.budget.operations import operations

        found = operations(graph)
        for op in found:
            times = self.operations.get(op.key)
            fits = times is not None and len(times.widths) == len(op.axes)
            fits = fits and all(
                width <= grid[-1]
                for width, grid in zip(op.widths, times.widths, strict=True)
            )
            if not fits:
                raise ValueError(
                    f"`latency_table` was measured for another model or input size, "
                    f"`{self.model}` with inputs {list(self.input_shapes)}: it does "
                    f"not know {op.key!r} with widths {op.widths}, the operation "
                    f"of `{op.name}`. Measure this model with "
                    "`resrep_tf.measure_latency`. "
                    f"Received: the model `{graph.model.name}`"
                )
        return found

    # === On disk ===

    def save(self, path: str | Path) -> None:
        """Writes the table as JSON."""
        content = {"format": _FORMAT, **asdict(self)}
        content["operations"] = {
            key: {
                "widths": [list(grid) for grid in times.widths],
                "microseconds": np.round(times.seconds * 1e6, 4).tolist(),
                "bundles": [
                    {str(size): round(share, 4) for size, share in bundles.items()}
                    for bundles in times.bundles
                ],
            }
            for key, times in self.operations.items()
        }
        Path(path).write_text(_dump(content), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> LatencyTable:
        """Reads a table that `save` wrote, on this machine or on another."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"The latency table cannot be read: {error}. Received: path={path}"
            ) from error
        try:
            return cls._parse(json.loads(text))
        except _DAMAGED as error:
            raise ValueError(
                "The file is no latency table, or it is damaged: "
                f"{type(error).__name__}: {error}. `resrep_tf.measure_latency` makes "
                f"a new one. Received: path={path}"
            ) from error

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> LatencyTable:
        content = dict(content)
        version = content.pop("format")
        if version != _FORMAT:
            raise ValueError(f"its format is {version!r}, not {_FORMAT}")
        content["operations"] = {
            str(key): _parse_times(times)
            for key, times in content["operations"].items()
        }
        shapes = content["input_shapes"]
        content["input_shapes"] = tuple(tuple(shape) for shape in shapes)
        content["overhead"] = float(content["overhead"])
        cold, warm = content["shares"]
        content["shares"] = float(cold), float(warm)
        kinds = {"machine": dict, "versions": dict, "checks": dict, "model": str}
        for name, kind in kinds.items():
            if not isinstance(content.get(name, kind()), kind):
                raise ValueError(f"its {name} is a {type(content[name]).__name__}")
        table = cls(**content)
        str(table)  # This reads the checks, and raises if they are malformed.
        return table


def _parse_times(content: dict[str, Any]) -> OperationTimes:
    widths = tuple(tuple(map(int, grid)) for grid in content["widths"])
    seconds = np.array(content["microseconds"], np.float64) * 1e-6
    bundles = tuple(
        {int(size): float(share) for size, share in axis.items()}
        for axis in content["bundles"]
    )
    ascending = all(
        list(grid) == sorted(set(grid)) and grid and grid[0] >= 0 and grid[-1] < _WIDEST
        for grid in widths
    )
    shaped = seconds.shape == tuple(map(len, widths)) and len(bundles) == len(widths)
    if not ascending or not shaped or not np.isfinite(seconds).all():
        raise ValueError(f"an operation's times do not fit its widths {widths}")
    return OperationTimes(widths, seconds, bundles)


def _dump(content: dict[str, Any]) -> str:
    """Returns JSON with one line for every row of numbers."""
    rows: list[str] = []

    def shorten(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and not any(
            isinstance(item, (list, tuple, dict)) for item in value
        ):
            rows.append(json.dumps(value))
            return f"@row {len(rows) - 1}@"
        if isinstance(value, (list, tuple)):
            return [shorten(item) for item in value]
        if isinstance(value, dict):
            return {name: shorten(item) for name, item in value.items()}
        return value

    text = json.dumps(shorten(content), indent=1, ensure_ascii=False)
    for number, row in enumerate(rows):
        text = text.replace(f'"@row {number}@"', row, 1)
    return text + "\n"
