"""Decides which channels of a graph can be dropped exactly.

Constants go forwards: a dropped row is zero at its compactor, and following layers
may turn that zero into another constant. Where a kernel reads the channel, W * c
goes into the kernel's bias. Where that would not be exact, the channel stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from resrep_tf.graph import propagation as flow
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import Call, Tensor
from resrep_tf.rules.base import ZERO


@dataclass
class Dropping:
    """Which channels of a graph go.

    Args:
        keep: A boolean for each channel of the graph.
        constants: The value of constant channels, by id of tensor.
        stuck: Dropped rows whose channel has to stay, and why: for each reason,
            the channels.
    """

    keep: np.ndarray
    constants: flow.Facts
    stuck: dict[str, list[int]] = field(default_factory=dict)


def decide(graph: ChannelGraph, removed: Mapping[int, np.ndarray]) -> Dropping:
    """Finds the channels that can be dropped exactly.

    Args:
        graph: The model's graph.
        removed: Where channels are removed: by id of a call, the constant that takes
            the place of each channel of its output, NaN for those that stay.
    """

    def transfer(call: Call, inputs: list[np.ndarray]) -> list[np.ndarray]:
        if id(call) in removed:
            return [removed[id(call)]]
        return call.rule.constants(call, inputs)

    def unknown(tensor: Tensor) -> np.ndarray:
        return np.full(tensor.width, np.nan)

    constants = flow.propagate(
        graph.steps, unknown, transfer, lambda a, b: np.where(a == b, a, np.nan)
    )
    keep = np.ones(graph.num_channels, bool)
    for call in graph.calls.values():
        if id(call) in removed:
            keep[call.outputs[0].channels[~np.isnan(removed[id(call)])]] = False
    dropping = Dropping(keep, constants)
    wanted = ~keep
    folded: dict[tuple[int, int], np.ndarray] = {}
    for call in graph.calls.values():
        for read in call.rule.reads(call):
            tensor = call.inputs[read.index]
            values = constants.get(id(tensor), unknown(tensor))
            # A layer that is called twice has one bias to fold constants into.
            first = folded.setdefault((id(call.op), read.index), values)
            bad = np.isnan(values) | (values != first)
            if read.accepts == ZERO:
                bad |= values != 0
            stuck = tensor.channels[bad & wanted[tensor.channels]]
            if len(stuck):
                why = read.why or f"{call.describe()} reads them and they vary"
                dropping.stuck.setdefault(why, []).extend(np.unique(stuck).tolist())
                keep[stuck] = True
    for channel, why in graph.pins.items():
        if not keep[channel]:
            dropping.stuck.setdefault(why, []).append(channel)
            keep[channel] = True
    for call in graph.calls.values():
        for tensor in call.outputs:
            if tensor.width and not keep[tensor.channels].any():
                keep[tensor.channels[0]] = True
                why = f"{call.describe()} would have no channel left"
                dropping.stuck.setdefault(why, []).append(int(tensor.channels[0]))
    return dropping
