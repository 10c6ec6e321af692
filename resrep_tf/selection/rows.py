"""The rows of compactors, and the channels that they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from resrep_tf.graph.channel_graph import ChannelGraph


@dataclass(frozen=True, eq=False)
class RowChannels(Sequence):
    """The channels that the rows of compactors make.

    A channel that several layers make, or one layer at several positions, has several
    rows, which are masked together.

    Attributes:
        channels: For each compactor, the channel ids of its rows, in their order.
        parts: Parts of these channels; at least one channel of each part must stay.
    """

    channels: tuple[np.ndarray, ...]
    parts: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, graph: "ChannelGraph", channels: Sequence[np.ndarray]) -> "RowChannels":
        """Returns the rows of compactors in a model, given its graph."""
        return cls(tuple(channels), graph.parts(channels))

    def masked(self, masks: Sequence[np.ndarray]) -> list[int]:
        """Returns the channels all of whose rows are masked.

        Args:
            masks: For each compactor, 1 or True for rows that stay, 0 or False for
                others.
        """
        ids = np.concatenate([*self.channels, []]).astype(np.int64)
        stays = np.concatenate([*masks, []]) > 0.5
        return np.setdiff1d(ids[~stays], ids[stays]).tolist()

    def __len__(self) -> int:
        return len(self.channels)

    def __getitem__(self, index: Any) -> Any:
        return self.channels[index]
