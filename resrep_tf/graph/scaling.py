"""Finds layers that need a compactor of their own to keep a pruned channel at zero.

A BatchNorm that follows no kernel turns a channel of zeros into another constant. So
does a depthwise convolution with a BatchNorm or a bias. Examples are the identity
branch of a RepVGG block, the BatchNorm before a convolution, and the cheap half of a
ghost module. That constant can be folded into a bias only where there is no padding.
But the weights of these layers can be multiplied by one factor for each channel. So a
compactor that has these factors can stand behind them and be merged into them. Where a
factor is zero, so is the channel, and it can be dropped exactly, also in front of
padding.
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
    """Returns the scalable layers that are nearest to the refused channels.

    Args:
        graph: The model's graph.
        refusals: The channels that kernels must go on reading.
        wanted: For each channel, whether it could be pruned without these refusals.
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
    """Returns the tensors whose channels a step passes on."""
    if isinstance(step, Link):
        return (step.source,)
    return () if step.rule.produces else step.inputs
