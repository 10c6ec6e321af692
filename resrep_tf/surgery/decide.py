"""Decides which channels of a graph can be dropped exactly.

Where a channel is removed it is a constant, and following layers may turn it into
another constant c. Where a kernel W reads the channel, W * c is folded into the bias.
Where that would not be exact, the channel stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.fates import Constants
from resrep_tf.graph.propagation import Facts


@dataclass(frozen=True)
class Dropping:
    """The channels of a graph that are dropped, and those that have to stay.

    Args:
        keep: A boolean for each channel of the graph.
        constants: The value of constant channels, by id of tensor.
        removed: The channels that should be removed, as `decide` takes them.
        stuck: Those of `removed` that have to stay: for each reason, the channels.
    """

    keep: np.ndarray
    constants: Facts
    removed: Mapping[int, np.ndarray]
    stuck: dict[str, list[int]] = field(default_factory=dict)


def decide(graph: ChannelGraph, removed: Mapping[int, np.ndarray]) -> Dropping:
    """Finds the channels that can be dropped exactly.

    Args:
        graph: The model's graph.
        removed: The channels to remove. By id of a call, for each channel of its output
            the constant that replaces it, or NaN if it stays.
    """
    analysis = Constants()
    constants = analysis.follow(graph.steps, removed)
    gone, made = np.zeros((2, graph.num_channels), bool)
    for call in graph.calls.values():
        if id(call) in removed:
            stays = np.isnan(removed[id(call)])
            gone[call.outputs[0].channels[~stays]] = True
            made[call.outputs[0].channels[stays]] = True
    # A channel goes only if all layers that make it remove it, at all positions.
    keep = ~gone | made
    wanted = ~keep
    stuck: dict[str, list[int]] = {}
    for refusal in analysis.refusals(graph.steps, constants):
        channels = refusal.channels[wanted[refusal.channels]]
        if len(channels):
            why = refusal.why or f"{refusal.call.describe()} reads them and they vary"
            stuck.setdefault(why, []).extend(np.unique(channels).tolist())
            keep[channels] = True
    for channel, why in graph.pins.items():
        if not keep[channel]:
            stuck.setdefault(why, []).append(channel)
            keep[channel] = True
    for call in graph.calls.values():
        for tensor in call.outputs:
            if tensor.width and not keep[tensor.channels].any():
                keep[tensor.channels[0]] = True
                why = f"{call.describe()} would have no channel left"
                stuck.setdefault(why, []).append(int(tensor.channels[0]))
    return Dropping(keep, constants, removed, stuck)
