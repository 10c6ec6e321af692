"""A network's latency while its channels are removed one after the other."""

from copy import copy

import numpy as np

from resrep_tf.budget.base import Meter
from resrep_tf.budget.latency_table import PER_SECOND, LatencyTable
from resrep_tf.budget.points import BUNDLES
from resrep_tf.graph.channel_graph import ChannelGraph

# How many channels ahead to look for a better width: no kernel has larger bundles.
_AHEAD = max(BUNDLES)
# A width is worth stopping at if it saves at least this share of what the best saves.
_WORTH = 0.75


class LatencyMeter(Meter):
    """Latency of a network while its channels are removed one after the other.

    It is a sum over operations, each a measured function of its widths. The function
    is tabulated for all widths in advance, so a removal only reads an array for each
    of the few operations that the channel belongs to.

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
        self._stops: dict[tuple[bytes, bytes], np.ndarray] = {}
        overhead = round(table.overhead * PER_SECOND)
        super().__init__([op.axes for op in found], graph.num_channels, overhead)

    @property
    def seconds(self) -> float:
        """Returns `current` in seconds."""
        return self._current / PER_SECOND

    def _price(self, part, widths):
        return self._tables[part][tuple(widths)]

    def rate(self, channel: int) -> float:
        """Returns how much `current` falls per channel when some like this one go.

        A single channel saves nothing, or the time of a whole bundle if it is the
        last of one. So this is the average over the next bundle.
        """
        saved = 0.0
        for part, touched in self._touches[channel]:
            widths = self._widths[part].copy()
            left = min(widths[axis] // count for axis, count in touched)
            bundle = min(_AHEAD, left)
            if not bundle:
                continue
            for axis, count in touched:
                widths[axis] -= bundle * count
            saved += (self._costs[part] - int(self._price(part, widths))) / bundle
        return 0.0 if self._removed[channel] else saved

    def stops(self, channels: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns the numbers of channels at which removing them may stop.

        Kernels compute channels in bundles. A width that does not fill them costs
        nearly as much as the next larger one that does. At the same latency, the
        network that keeps these channels is the more accurate one.

        Args:
            channels: Channels of a layer, any of which can take another one's place.
            counts: The numbers of them that may be left, descending.

        Returns:
            Those of `counts` that save the most time for each channel that goes.
        """
        key = channels.tobytes(), counts.tobytes()
        if key not in self._stops:
            alone = copy(self)
            alone.reset()
            path = alone.remove_all(np.sort(channels))
            times = np.append(path[::-1], self.total)
            self._stops[key] = _worthwhile(times, len(channels), counts)
        return self._stops[key]

    def __repr__(self):
        current, total = (1e3 * t / PER_SECOND for t in (self.current, self.total))
        return f"LatencyMeter(current={current:.3f} of {total:.3f} ms)"


def _worthwhile(times: np.ndarray, width: int, counts: np.ndarray) -> np.ndarray:
    """Chooses from `counts`, given the times at all widths up to `width`."""
    chosen = []
    while len(counts):
        ahead = max(int(np.count_nonzero(counts >= width - _AHEAD)), 1)
        saved = (times[width] - times[counts]) / (width - counts)
        if saved[:ahead].max() <= 0:
            ahead = len(counts)  # Nearby widths are slower; look at all of them.
        best = saved[:ahead].max()
        good = saved[:ahead] >= _WORTH * best
        if best <= 0:  # No width is faster: stop at the narrowest one.
            good = np.arange(ahead) == ahead - 1
        place = int(np.argmax(good))
        width = int(counts[place])
        chosen.append(width)
        counts = counts[place + 1 :]
    return np.array(chosen, np.int64)
