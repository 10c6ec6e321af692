"""Summarises an explanation: where the FLOPs are, and what has no rule."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import rule_for

if TYPE_CHECKING:
    from resrep_tf.explain.explanation import LayerExplanation

PINNED = "pinned"
# The number of reasons that are listed; further ones are only counted.
_LISTED = 4
_NEGLIGIBLE = 0.0005
_NAME = re.compile(r"`([^`]*)`")


def where_flops_are(layers: Sequence["LayerExplanation"]) -> str:
    """Returns the share of the FLOPs that can lose channels, and what pins the rest.

    The text is one line, the largest share first. Reasons that differ only in the names
    of layers are counted as one, with the first one's text.
    """
    free = 0.0
    alike: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for layer in layers:
        if layer.status == PINNED:
            alike[_NAME.sub("", layer.reason)][layer.reason] += layer.share
        else:
            free += layer.share
    held: dict[str, float] = {}
    for reasons in alike.values():
        first, *others = reasons
        more = f" and {len(others)} more alike" if others else ""
        held[f"{first}{more}"] = sum(reasons.values())
    text = f"{free:.1%} of the FLOPs are in layers that can lose channels"
    # A small share is not worth a mention: every model has outputs, which are pinned.
    told = [item for item in held.items() if item[1] >= _NEGLIGIBLE]
    if not told:
        return f"{text}."
    told.sort(key=lambda item: -item[1])
    listed = [f"{reason} ({share:.1%})" for reason, share in told[:_LISTED]]
    if len(told) > _LISTED:
        rest = sum(share for _, share in told[_LISTED:])
        listed.append(f"{len(told) - _LISTED} further reasons ({rest:.1%})")
    return f"{text}. What pins the rest: {'; '.join(listed)}."


def with_paths(text: str, paths: Mapping[str, str]) -> str:
    """Replaces layers' names by the attributes that lead to them in the user's model.

    Args:
        text: A text with names of a traced model in backticks.
        paths: The attributes, by these names.
    """
    return _NAME.sub(lambda name: f"`{paths.get(name[1], name[1])}`", text)


def without_rules(graph: ChannelGraph) -> tuple[str, ...]:
    """Returns the operations without a rule, and why they could not be traced."""
    reasons = {layer.name: layer.reason for layer in graph.trace_report.opaque}
    found: dict[str, None] = {}
    for call in graph.calls.values():
        if rule_for(call.op).opaque:
            reason = reasons.get(call.name)
            told = with_paths(call.describe(), graph.trace_report.paths)
            found[told + (f" ({reason})" if reason else "")] = None
    return tuple(found)
