"""A network's FLOPs while its channels are removed one after the other."""

from collections.abc import Sequence
from math import prod

from resrep_tf.budget.base import Meter
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.terms import Term


class FlopsMeter(Meter):
    """The FLOPs of a network while its channels are removed one after the other.

    This is a `resrep_tf.budget.Budget`.

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
        for term in terms:
            largest = max(
                (int(ids.max()) for ids in term.factors if len(ids)), default=0
            )
            if largest >= num_channels:
                raise ValueError(
                    "`num_channels` must exceed every channel id of `terms`; term "
                    f"{term.name!r} has channel {largest}. "
                    f"Received: num_channels={num_channels}"
                )
        self._coefficients = [term.coefficient for term in terms]
        super().__init__([term.factors for term in terms], num_channels)

    @classmethod
    def of(cls, graph: ChannelGraph) -> "FlopsMeter":
        """Returns the meter of a model, given its graph."""
        return cls(graph.terms, graph.num_channels)

    def _price(self, part, widths):
        return self._coefficients[part] * prod(widths)

    def __repr__(self):
        return f"FlopsMeter(current={self.current:,} of {self.total:,} FLOPs)"
