"""A network's latency while its channels are removed one after the other."""

import numpy as np

from resrep_tf.budget.latency_table import PER_SECOND, LatencyTable
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.spaces import Space

# Bundles of channels that rounding may choose from.
_MULTIPLES = (2, 4, 8, 16)
# Rounding up to full bundles is worthwhile where incomplete ones would save less than
# this share of what their channels cost on average.
_WORTHLESS = 1 / 3


class LatencyMeter:
    """Latency of a network while its channels are removed one after the other.

    It is a sum over operations of a measured function of their widths. The function
    is tabulated for all widths in advance, so a removal is an array read for each
    of the few operations that the channel touches.

    Times are whole picoseconds, hence exact: the sum is the same in whatever order
    channels are removed. Removing a channel may save nothing or even cost time, where
    kernels compute channels in bundles.

    Args:
        table: The measured times.
        graph: The graph of the measured model, or of the same model wrapped.
    """

    unit = "latency"

    def __init__(self, table: LatencyTable, graph: ChannelGraph):
        found = table.check(graph)
        self.num_channels = graph.num_channels
        self._tables = [table.operations[op.key].table for op in found]
        self._full_widths = [[len(ids) for ids in op.axes] for op in found]
        self._full_times = [
            int(times[tuple(widths)])
            for times, widths in zip(self._tables, self._full_widths, strict=True)
        ]
        self._touches = _index_touches([op.axes for op in found], self.num_channels)
        self._total = sum(self._full_times) + round(table.overhead * PER_SECOND)
        self.reset()

    @property
    def total(self) -> int:
        """Picoseconds with every channel present."""
        return self._total

    @property
    def current(self) -> int:
        """Picoseconds without the channels removed since the last `reset`."""
        return self._current

    @property
    def seconds(self) -> float:
        """Returns `current` in seconds."""
        return self._current / PER_SECOND

    def reset(self) -> None:
        """Brings every removed channel back."""
        self._widths = [widths.copy() for widths in self._full_widths]
        self._times = self._full_times.copy()
        self._removed = bytearray(self.num_channels)
        self._current = self._total

    def cost(self, channel: int) -> int:
        """Returns by how much `current` would fall if `channel` were removed now.

        It is 0 for a channel that is already removed, and negative for one without
        which the network would be slower.
        """
        self._check(channel)
        if self._removed[channel]:
            return 0
        cost = 0
        for op, touched in self._touches[channel]:
            widths = self._widths[op].copy()
            for axis, multiplicity in touched:
                widths[axis] -= multiplicity
            cost += self._times[op] - self._tables[op].item(*widths)
        return cost

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""
        self._check(channel)
        if self._removed[channel]:
            raise ValueError(
                f"`channel` has been removed already. Received: channel={channel}"
            )
        self._removed[channel] = 1
        times = self._times
        for op, touched in self._touches[channel]:
            widths = self._widths[op]
            for axis, multiplicity in touched:
                widths[axis] -= multiplicity
            time = self._tables[op].item(*widths)
            self._current += time - times[op]
            times[op] = time

    def _check(self, channel: int) -> None:
        if not 0 <= channel < self.num_channels:
            raise ValueError(
                f"`channel` must be at least 0 and below {self.num_channels}. "
                f"Received: channel={channel}"
            )

    def __repr__(self):
        current, total = (1e3 * t / PER_SECOND for t in (self.current, self.total))
        return f"LatencyMeter(current={current:.3f} of {total:.3f} ms)"


def preferred_multiples(
    table: LatencyTable, graph: ChannelGraph, spaces: list[Space] | None = None
) -> dict[int, int]:
    """Chooses the widths to round to, where the kernels compute bundles of channels.

    A bundle is chosen where channels that leave it incomplete save hardly any time:
    at the same latency, a network that keeps them is the more accurate one.

    Args:
        table: The measured times.
        graph: The graph of the measured model.
        spaces: The spaces to look at, by default all that can be pruned.

    Returns:
        For each space, by its index, 1, 2, 4, 8 or 16.
    """
    if spaces is None:
        spaces = [space for space in graph.spaces if space.prunable]
    meter = LatencyMeter(table, graph)
    chosen = {}
    for space in spaces:
        meter.reset()
        times = [meter.current]
        # The narrowest widths tell more about the overhead than about bundles.
        for channel in space.channels[: -max(1, space.width // 4)].tolist():
            meter.remove(channel)
            times.append(meter.current)
        chosen[space.index] = _multiple(np.array(times, float), space.width)
    return chosen


def _multiple(times: np.ndarray, width: int) -> int:
    """Returns the bundle for a space, given the times at `width`, `width - 1`, ..."""
    widths = width - np.arange(len(times))
    slope = (times[0] - times[-1]) / max(len(times) - 1, 1)
    best = 1
    for multiple in _MULTIPLES:
        full = widths + -widths % multiple
        inside = (full <= width) & (full > widths)
        if multiple > width // 4 or not inside.any() or slope <= 0:
            continue
        saved = (times[width - full[inside]] - times[inside]).mean()
        if saved < _WORTHLESS * slope * (full - widths)[inside].mean():
            best = multiple
    return best


def _index_touches(
    axes: list[tuple[np.ndarray, ...]], num_channels: int
) -> list[tuple[tuple[int, tuple[tuple[int, int], ...]], ...]]:
    """Lists for each channel its `(operation, ((axis, multiplicity), ...))`."""
    touches: list[dict[int, tuple]] = [{} for _ in range(num_channels)]
    for op, sides in enumerate(axes):
        for axis, ids in enumerate(sides):
            channels, multiplicities = np.unique(ids, return_counts=True)
            for channel, multiplicity in zip(
                channels.tolist(), multiplicities.tolist(), strict=True
            ):
                touched = touches[channel].get(op, ())
                touches[channel][op] = (*touched, (axis, multiplicity))
    return [tuple(touched.items()) for touched in touches]
