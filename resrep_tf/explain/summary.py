"""Sums up an explanation: where the FLOPs are, and what could not be followed."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import rule_for

if TYPE_CHECKING:
    from resrep_tf.explain.explanation import LayerExplanation

PINNED = "pinned"
# More reasons than these are counted, not listed.
_LISTED = 4
_NEGLIGIBLE = 0.0005


def where_flops_are(layers: Sequence["LayerExplanation"]) -> str:
    """Returns how much of the FLOPs can lose channels, and what holds the rest."""
    free = 0.0
    held: dict[str, float] = defaultdict(float)
    for layer in layers:
        if layer.status == PINNED:
            held[layer.reason] += layer.share
        else:
            free += layer.share
    text = f"{free:.1%} of the FLOPs are in layers that can lose channels"
    # A small head is no news: every model has outputs.
    reasons = [item for item in held.items() if item[1] >= _NEGLIGIBLE]
    if not reasons:
        return f"{text}."
    reasons.sort(key=lambda item: -item[1])
    listed = [f"{reason} ({share:.1%})" for reason, share in reasons[:_LISTED]]
    if len(reasons) > _LISTED:
        rest = sum(share for _, share in reasons[_LISTED:])
        listed.append(f"{len(reasons) - _LISTED} further reasons ({rest:.1%})")
    return f"{text}. What holds the rest: {'; '.join(listed)}."


def without_rules(graph: ChannelGraph) -> tuple[str, ...]:
    """Returns the operations without a rule, and why they could not be drawn."""
    reasons = {layer.name: layer.reason for layer in graph.trace_report.opaque}
    found: dict[str, None] = {}
    for call in graph.calls.values():
        if rule_for(call.op).opaque:
            reason = reasons.get(call.name)
            found[call.describe() + (f" ({reason})" if reason else "")] = None
    return tuple(found)
