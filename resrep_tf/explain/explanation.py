"""Explains for every layer whether it can be pruned and, if not, why."""

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.budget.parameters import parameter_terms
from resrep_tf.explain.summary import (
    PINNED,
    where_flops_are,
    with_paths,
    without_rules,
)
from resrep_tf.graph import terms
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.spaces import Space
from resrep_tf.markup import notebook_table
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.selection import largest_reduction

_NO_RULE = "Without a rule, and not counted as FLOPs"
INTERNAL, SHARED, FOLLOWS = "internal", "shared", "follows"


@dataclass(frozen=True)
class LayerExplanation:
    """One layer with a kernel.

    Attributes:
        name: The layer's name; with the nested model's name if two layers share it.
        kind: Its type.
        width: Its output channels.
        flops: Its multiply-adds.
        share: Its share of the model's multiply-adds.
        space: The number of the space its output channels belong to; None for a
            layer that passes its input's channels on.
        status: `"internal"` (pruned by default), `"shared"` (pruned with
            `targets="all"`, together with the other layers of its space),
            `"follows"` (loses what another layer loses) or `"pinned"`.
        reason: The status in words.
    """

    name: str
    kind: str
    width: int
    flops: int
    share: float
    space: int | None
    status: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """The layers of a model that can be pruned; `print` it, or read `layers`.

    Attributes:
        model: The model's name.
        flops: Its multiply-adds.
        smallest_flops: The fewest that pruning internal layers can leave.
        smallest_flops_all: The fewest that pruning everything possible can leave.
        layers: The layers with kernels, in graph order.
        unknown: Operations without a rule, which pin their channels; with the reason
            why they could not be traced, if that was tried.
        input_shapes: The input shapes for which multiply-adds are counted.
        params: Its parameters when it is converted, with BatchNorms merged.
        smallest_params: The fewest that pruning internal layers can leave.
        smallest_params_all: The fewest that pruning everything possible can leave.
    """

    model: str
    flops: int
    smallest_flops: int
    smallest_flops_all: int
    layers: tuple[LayerExplanation, ...]
    unknown: tuple[str, ...]
    input_shapes: tuple[tuple, ...]
    params: int
    smallest_params: int
    smallest_params_all: int

    def to_dict(self) -> dict[str, Any]:
        """Returns plain, JSON-compatible values."""
        return dataclasses.asdict(self)

    def __str__(self):
        size = max([len(layer.name) for layer in self.layers], default=5)
        lines = [
            f"{'layer':<{size}}  {'type':<16} {'width':>5} {'MMACs':>9} {'share':>6}  "
            "space  prunable"
        ]
        for layer in self.layers:
            space = "" if layer.space is None else layer.space
            text = f"{layer.status}: {layer.reason}"
            lines.append(
                f"{layer.name:<{size}}  {layer.kind:<16} {layer.width:>5} "
                f"{layer.flops / 1e6:>9.3f} {layer.share:>6.1%}  {space:>5}  {text}"
            )
        for line in self._summary():
            # The list of operations without a rule may be long.
            lines += textwrap.wrap(line, 88) if line.startswith(_NO_RULE) else [line]
        return "\n".join(lines)

    def _repr_html_(self):
        return notebook_table(
            ["layer", "type", "width", "MMACs", "share", "space", "prunable"],
            [
                [
                    layer.name,
                    layer.kind,
                    layer.width,
                    f"{layer.flops / 1e6:.3f}",
                    f"{layer.share:.1%}",
                    "" if layer.space is None else layer.space,
                    f"{layer.status}: {layer.reason}",
                ]
                for layer in self.layers
            ],
            self._summary(),
            numbers=("width", "MMACs", "share", "space"),
        )

    def _summary(self) -> list[str]:
        lines = []
        shapes = ", ".join(str(shape[1:]) for shape in self.input_shapes)
        lines.append(
            f"`{self.model}` has {self.flops:,} FLOPs (multiply-adds) for input "
            f"{shapes}."
        )
        for flag, smallest, params in [
            ("internal layers", self.smallest_flops, self.smallest_params),
            ("targets='all'", self.smallest_flops_all, self.smallest_params_all),
        ]:
            lines.append(
                f"Smallest reachable with {flag}: {smallest:,} "
                f"({1 - smallest / max(self.flops, 1):.1%} removed)."
            )
            lines.append(
                f"  In parameters: {params:,} of {self.params:,} "
                f"({1 - params / max(self.params, 1):.1%} removed)."
            )
        lines.append(where_flops_are(self.layers))
        if self.unknown:
            lines.append(f"{_NO_RULE}: {', '.join(self.unknown)}.")
        return lines


def explain(
    model: keras.Model, input_shape: Sequence[int | None] | None = None
) -> Explanation:
    """Explains which layers of a model can be pruned, and why others cannot.

    Args:
        model: Any model, wrapped or not; see `resrep_tf.trace`.
        input_shape: The shape of one example, if the model leaves it open. Sizes
            that stay open count as 224.
    """
    graph = ChannelGraph(model, input_shape)
    macs = terms.count_by_name(graph.terms)
    total = terms.count(graph.terms)
    space_of = {
        id(producer.layer): space
        for space in graph.spaces
        for producer in space.producers + space.followers
    }
    layers = []
    for calls in graph.calls_by_op():
        call = calls[0]
        name = graph.label(call)
        if name not in macs:
            continue
        space = space_of.get(id(call.op))
        status, reason = _status(graph, call, space)
        if status == PINNED:
            reason = with_paths(reason, graph.trace_report.paths)
        layers.append(
            LayerExplanation(
                name=name,
                kind=call.kind,
                width=call.outputs[0].width,
                flops=macs[name],
                share=macs[name] / max(total, 1),
                space=None if space is None else space.index,
                status=status,
                reason=reason,
            )
        )
    parameters = parameter_terms(graph)
    return Explanation(
        model=model.name,
        flops=total,
        smallest_flops=_smallest(graph, graph.terms, internal=True),
        smallest_flops_all=_smallest(graph, graph.terms, internal=False),
        params=terms.count(parameters),
        smallest_params=_smallest(graph, parameters, internal=True),
        smallest_params_all=_smallest(graph, parameters, internal=False),
        layers=tuple(layers),
        unknown=without_rules(graph),
        input_shapes=tuple(graph.input_shapes),
    )


def count_flops(
    model: keras.Model, input_shape: Sequence[int | None] | None = None
) -> int:
    """Counts the multiply-adds of a model's convolutions and dense layers.

    Compactors of a wrapped model do not count, since conversion merges them.

    Args:
        model: Any model; see `resrep_tf.trace`.
        input_shape: The shape of one example, if the model leaves it open. Extents
            that stay open count as 224.
    """
    return terms.count(ChannelGraph(model, input_shape).terms)


def _status(graph: ChannelGraph, call: Any, space: Space | None) -> tuple[str, str]:
    if space is None:
        channels = call.inputs[0].channels
        if any(channel in graph.pins for channel in channels.tolist()):
            return PINNED, graph.pins[next(c for c in channels if c in graph.pins)]
        return FOLLOWS, "it loses the channels that its input loses"
    if not space.prunable:
        return PINNED, space.reason
    if any(producer.layer is call.op for producer in space.followers):
        return FOLLOWS, f"it gates `{space.producers[0].name}`"
    others = [p.name for p in space.producers if p.layer is not call.op]
    listed = ", ".join(f"`{name}`" for name in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    together = f", together with {listed}{more}" if others else ""
    ids = call.outputs[0].channels
    if len(set(ids.tolist())) < len(ids):
        together += ", some of its channels only together"
    if space.internal:
        return INTERNAL, f"yes{together}"
    return SHARED, f"with targets='all'{together}"


def _smallest(
    graph: ChannelGraph, counted: Sequence[terms.Term], internal: bool
) -> int:
    """Returns the cost with one channel left in every space that can be pruned."""
    channels = [
        layout[0].channels
        for space in graph.spaces
        if space.prunable and (space.internal or not internal)
        for layout in space.layouts
    ]
    meter = FlopsMeter(counted, graph.num_channels)
    largest_reduction(RowChannels.of(graph, channels), meter)
    return meter.current
