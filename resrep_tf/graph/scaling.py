"""Finds the layers that must be told to keep a pruned channel at zero.

A BatchNorm that follows no kernel makes another constant of a channel that is zero, and
so does a depthwise convolution with a BatchNorm or a bias: the identity branch of a
RepVGG block, the BatchNorm before a convolution, the cheap half of a ghost module. A
bias can stand for that constant only where no padding is. But the layer's weights can
be multiplied by one factor for each channel: a compactor with these factors behind it
can be merged as well, and where a factor is zero, so is the channel. Then it can be
dropped exactly, also in front of padding.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from resrep_tf.graph.fates import Refusal
from resrep_tf.graph.propagation import Link
from resrep_tf.rules import Call, Tensor

if TYPE_CHECKING:
    from resrep_tf.graph.channel_graph import ChannelGraph
    from resrep_tf.graph.spaces import Producer


def find_scaled(
    graph: "ChannelGraph",
    refusals: Iterable[Refusal],
    wanted: np.ndarray,
    scalable: Sequence["Producer"],
) -> list["Producer"]:
    """Returns the layers nearest to where pruned channels are refused.

    Args:
        graph: The model's graph.
        refusals: What kernels could not do without.
        wanted: For each channel, whether it could be pruned but for that.
        scalable: The layers whose channels can be multiplied by factors.
    """
    candidates = {
        id(call): producer
        for producer in scalable
        if wanted[producer.channels].all()
        for call in producer.tail
    }
    makers: dict[int, list[Call | Link]] = {}
    for step in graph.steps:
        outputs = (step.target,) if isinstance(step, Link) else step.outputs
        for tensor in outputs:
            makers.setdefault(id(tensor), []).append(step)
    found: dict[int, Producer] = {}
    seen: set[int] = set()
    waiting = [r.tensor for r in refusals if wanted[r.channels].any()]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        for step in makers.get(id(tensor), []):
            if id(step) in candidates:
                producer = candidates[id(step)]
                found[id(producer)] = producer
            else:
                waiting += [t for t in _sources(step) if wanted[t.channels].any()]
    return [producer for producer in scalable if id(producer) in found]


def _sources(step: Call | Link) -> tuple[Tensor, ...]:
    """Returns the tensors from which a step takes channels on."""
    if isinstance(step, Link):
        return (step.source,)
    return () if step.rule.produces else step.inputs
