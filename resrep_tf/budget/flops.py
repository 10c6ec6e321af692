"""A network's FLOPs while its channels are removed one after the other."""

from collections.abc import Sequence

import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.terms import Term


class FlopsMeter:
    """The FLOPs of a network while its channels are removed one after the other.

    This is a `resrep_tf.budget.Budget`. A channel touches a handful of terms, so its
    removal is a handful of integer operations, where a recount visits every term. The
    terms of each channel are looked up once; `reset` restores the full network without
    looking them up again.

    Args:
        terms: The operations of the network.
        num_channels: Number of channel ids; the terms use ids below it.

    Example:
        >>> meter = FlopsMeter([Term("dense", 1, (np.arange(3), [3, 4]))], 5)
        >>> meter.total, meter.cost(0), meter.cost(4)
        (6, 2, 3)
        >>> meter.remove(0)
        >>> meter.current, meter.cost(4)
        (4, 2)
    """

    unit = "FLOPs"

    def __init__(self, terms: Sequence[Term], num_channels: int):
        terms = tuple(terms)
        self.num_channels = num_channels
        # Every factor of every term has one slot in the list of widths.
        self._full_widths = [ids.size for term in terms for ids in term.factors]
        self._full_products = [term.macs() for term in terms]
        self._touches = _index_touches(terms, num_channels)
        self._total = sum(self._full_products)
        self.reset()

    @classmethod
    def of(cls, graph: ChannelGraph) -> "FlopsMeter":
        """Returns the meter of a model, given its graph."""
        return cls(graph.terms, graph.num_channels)

    @property
    def total(self) -> int:
        """FLOPs with every channel present."""
        return self._total

    @property
    def current(self) -> int:
        """FLOPs without the channels removed since the last `reset`."""
        return self._current

    def reset(self) -> None:
        """Brings every removed channel back."""
        self._widths = self._full_widths.copy()
        self._products = self._full_products.copy()
        self._removed = bytearray(self.num_channels)
        self._current = self._total

    def cost(self, channel: int) -> int:
        """Returns by how much `current` would fall if `channel` were removed now.

        It is 0 for a channel that is already removed.
        """
        self._check(channel)
        if self._removed[channel]:
            return 0
        cost = 0
        for term, touched in self._touches[channel]:
            product = self._products[term]
            cost += product
            for slot, multiplicity in touched:
                # The width is one of the product's factors and positive, because the
                # channel is still part of it: the division is exact.
                width = self._widths[slot]
                product = product // width * (width - multiplicity)
            cost -= product
        return cost

    def remove(self, channel: int) -> None:
        """Removes `channel`, which must be present."""
        self._check(channel)
        if self._removed[channel]:
            raise ValueError(
                f"`channel` has been removed already. Received: channel={channel}"
            )
        self._removed[channel] = 1
        products, widths = self._products, self._widths
        for term, touched in self._touches[channel]:
            before = product = products[term]
            for slot, multiplicity in touched:
                # Exact, as in `cost`.
                width = widths[slot]
                widths[slot] = width - multiplicity
                product = product // width * (width - multiplicity)
            products[term] = product
            self._current += product - before

    def _check(self, channel: int) -> None:
        if not 0 <= channel < self.num_channels:
            raise ValueError(
                f"`channel` must be at least 0 and below {self.num_channels}. "
                f"Received: channel={channel}"
            )

    def __repr__(self):
        return f"FlopsMeter(current={self.current:,} of {self.total:,} FLOPs)"


def _index_touches(terms: Sequence[Term], num_channels: int) -> list[tuple]:
    """Lists for each channel its `(term, ((slot, multiplicity), ...))`."""
    touches: list[dict[int, tuple]] = [{} for _ in range(num_channels)]
    slot = 0
    for index, term in enumerate(terms):
        for ids in term.factors:
            channels, multiplicities = np.unique(ids, return_counts=True)
            if channels.size and channels[-1] >= num_channels:
                raise ValueError(
                    f"`num_channels` must exceed every channel id of `terms`; term "
                    f"{term.name!r} has channel {channels[-1]}. "
                    f"Received: num_channels={num_channels}"
                )
            for channel, multiplicity in zip(
                channels.tolist(), multiplicities.tolist(), strict=True
            ):
                touched = touches[channel].get(index, ())
                touches[channel][index] = (*touched, (slot, multiplicity))
            slot += 1
    return [tuple(touched.items()) for touched in touches]
