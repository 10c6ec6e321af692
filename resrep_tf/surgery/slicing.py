"""Takes channels out of a plain model, as one-shot criteria do.

Nothing is re-parameterised and nothing is merged: layers keep their names, their
BatchNorms and their remaining weights, so that the result can be finetuned.
"""

from collections.abc import Mapping, Sequence

import keras
import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.spaces import Space
from resrep_tf.graph.targets import check_not_wrapped
from resrep_tf.surgery.decide import decide
from resrep_tf.surgery.narrow import Narrower
from resrep_tf.surgery.rebuild import Rebuilder


def slice_channels(
    model: keras.Model, keep: Mapping[str, Sequence[bool]]
) -> keras.Model:
    """Copies a model without some channels of some layers.

    A removed channel counts as zero behind the layer's BatchNorm (or behind its bias if
    it has none). If following layers turn that zero into another constant, the constant
    is folded into the next layer's bias, as in `resrep_tf.convert`.

    Args:
        model: Any model; it is not changed.
        keep: For layer names, a boolean for each output channel, true where it stays.
            Of layers that share their channels, name one. Layers that are not named
            stay as they are. Channels that can only be removed together (those at the
            same position of all groups in front of a grouped convolution) must have
            the same boolean.
    """
    graph = ChannelGraph(model)
    check_not_wrapped(graph)
    return slice_graph(graph, _by_space(graph, keep))


def slice_graph(graph: ChannelGraph, keep: Mapping[Space, np.ndarray]) -> keras.Model:
    """Copies a model, given the channels of each space that stay."""
    removed: dict[int, np.ndarray] = {}
    for space, kept in keep.items():
        for producer in space.producers + space.scaled:
            stays = kept[space.index_of(producer.channels)]
            values = np.where(stays, np.nan, producer.removed())
            removed |= {id(call): values for call in producer.tail}
    return Narrower(graph, decide(graph, removed), fuse_bn=False).build()


def space_name(graph: ChannelGraph, space: Space) -> str:
    """Returns the name of a space: that of the first layer that makes it."""
    return graph.label(space.producers[0].calls[0])


def _by_space(
    graph: ChannelGraph, keep: Mapping[str, Sequence[bool]]
) -> dict[Space, np.ndarray]:
    known = {
        graph.label(producer.calls[0]): (space, producer)
        for space in graph.spaces
        for producer in space.producers + space.scaled
    }
    found: dict[Space, np.ndarray] = {}
    for name, given in keep.items():
        space, producer = known.get(name, (None, None))
        if space is None or not space.prunable:
            why = f"there are {sorted(known)}" if space is None else space.reason
            raise ValueError(
                f"`keep` names no layer that can lose channels: {name!r} ({why}). "
                f"Received: keep={list(keep)}"
            )
        value, width = np.asarray(given), len(producer.channels)
        if value.dtype != bool or value.shape != (width,) or not value.any():
            raise ValueError(
                f"`keep[{name!r}]` must be {width} booleans, at least one of them "
                f"true. Received: keep[{name!r}]={value}"
            )
        places = space.index_of(producer.channels)
        kept = np.ones(space.width, bool)
        kept[places] = value
        if not np.array_equal(kept[places], value):
            raise ValueError(
                f"`keep[{name!r}]` must be the same for channels that can only be "
                f"removed together. Received: keep[{name!r}]={value}, where equal "
                f"numbers mark such channels: {places}"
            )
        found[space] = found.get(space, True) & kept
    return found


def reinitialise(model: keras.Model) -> keras.Model:
    """Copies a model with fresh weights, drawn from its layers' initializers.

    Layers without trainable weights keep their weights: a `Normalization` its
    statistics, a frozen layer its kernel.
    """
    return _Fresh(ChannelGraph(model)).build()


class _Fresh(Rebuilder):
    def make(self, call):
        op, weights = super().make(call)
        return op, [] if getattr(call.op, "trainable_weights", None) else weights
