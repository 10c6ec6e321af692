"""A network's latency while its channels are removed one after the other."""

import numpy as np

from resrep_tf.budget.base import Meter
from resrep_tf.budget.latency_table import PER_SECOND, LatencyTable
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.spaces import Space

# Bundles of channels that rounding may choose from.
_MULTIPLES = (2, 4, 8, 16)
# Rounding up to full bundles is worthwhile where incomplete ones would save less than
# this share of what their channels cost on average.
_WORTHLESS = 1 / 3


class LatencyMeter(Meter):
    """Latency of a network while its channels are removed one after the other.

    It is a sum over operations of a measured function of their widths. The function
    is tabulated for all widths in advance, so a removal is an array read for each
    of the few operations that the channel touches.

    Times are whole picoseconds. Removing a channel may save nothing or even cost time,
    where kernels compute channels in bundles.

    Args:
        table: The measured times.
        graph: The graph of the measured model, or of the same model wrapped.
    """

    unit = "latency"

    def __init__(self, table: LatencyTable, graph: ChannelGraph):
        found = table.check(graph)
        self._tables = [table.operations[op.key].table for op in found]
        overhead = round(table.overhead * PER_SECOND)
        super().__init__([op.axes for op in found], graph.num_channels, overhead)

    @property
    def seconds(self) -> float:
        """Returns `current` in seconds."""
        return self._current / PER_SECOND

    def _price(self, part, widths):
        return self._tables[part].item(*widths)

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
