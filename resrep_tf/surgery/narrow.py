"""Builds the narrower copy of a model."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import Call, Fusion, Keeps
from resrep_tf.surgery.decide import Dropping
from resrep_tf.surgery.rebuild import Rebuilder


class Narrower(Rebuilder):
    """Copies a model without its dropped channels, with operations merged into kernels.

    A subclass can override three decisions: `absorbed`, what is merged into a layer;
    `make`, which layer results (the rule's `merge` gives the merged kernel and bias,
    and its `rebuild` makes a layer of them); and `instead`, what replaces the
    operations that were merged.

    Args:
        graph: The model's graph.
        dropping: The channels that are dropped.
        fuse_bn: True to merge BatchNorms wherever possible. Those in front of a
            compactor are always merged, together with it.
    """

    def __init__(self, graph: ChannelGraph, dropping: Dropping, fuse_bn: bool):
        super().__init__(graph)
        self._dropping = dropping
        self._fuse_bn = fuse_bn
        # The matrices of all compactors together are larger than the model, so each is
        # made when a layer first needs it, and freed after the last layer that does.
        self._parts: dict[int, Fusion] = {}

    def merges(self, call: Call) -> bool:
        """Returns whether an operation is merged into the layer before it."""
        return id(call.op) in self._vanishing

    # === For subclasses ===

    def absorbed(self, calls: list[Call]) -> dict[str, list[Call]]:
        """Returns, in the form of `ChannelGraph.merged`, what is merged into a layer.

        Args:
            calls: All calls of the layer.
        """
        return self.graph.merged(calls, self._fuse_bn)

    def instead(self, call: Call, values: Sequence[Any], trainable: bool) -> Any:
        """Returns the output that replaces the output of a merged operation.

        By default it is the operation's input, so nothing is left of the operation. A
        subclass that needs another layer there, such as a fresh BatchNorm, returns
        `Rebuilder.call(self, call, values, trainable)` and makes the layer in `make`.
        """
        return values[0]

    def keeps(self, call: Call) -> Keeps:
        """Returns which channels of a call stay."""
        keep, constants = self._dropping.keep, self._dropping.constants
        return Keeps(
            [keep[t.channels] for t in call.inputs],
            [keep[t.channels] for t in call.outputs],
            [constants.get(id(t), np.full(t.width, np.nan)) for t in call.inputs],
            self._dropping.removed.get(id(call)),
        )

    def fusion(self, call: Call) -> Fusion:
        """Returns the values that are merged into a layer; may be called only once."""
        fusion = Fusion()
        for part in self._absorbed.get(id(call.op), {}).values():
            fusion = fusion.with_part(self._part(part))
        return fusion

    # === Rebuilding ===

    @cached_property
    def _absorbed(self) -> dict[int, dict[str, Call]]:
        """For each operation, by id, the operations that are merged into it."""
        found = {}
        merged: set[int] = set()
        for calls in self.graph.calls_by_op():
            op = id(calls[0].op)
            # A BatchNorm that is merged absorbs nothing: the layer before it does.
            if op in merged or not calls[0].rule.absorbs(calls[0]):
                continue
            absorbed = self.absorbed(calls)
            if absorbed:
                found[op] = {role: part[0] for role, part in absorbed.items()}
                merged.update(id(part.op) for part in found[op].values())
        return found

    @cached_property
    def _waiting(self) -> Counter[int]:
        """For each merged operation, how many layers still have to absorb it."""
        return Counter(
            id(part.op) for parts in self._absorbed.values() for part in parts.values()
        )

    @cached_property
    def _vanishing(self) -> set[int]:
        return set(self._waiting)

    def _part(self, call: Call) -> Fusion:
        key = id(call.op)
        if key not in self._parts:
            self._parts[key] = call.rule.contribution(call, self.keeps(call))
        self._waiting[key] -= 1
        return self._parts[key] if self._waiting[key] else self._parts.pop(key)

    def shape(self, tensor):
        shape = list(tensor.shape)
        if tensor.width:
            shape[tensor.axis] = int(self._dropping.keep[tensor.channels].sum())
        return tuple(shape)

    def make(self, call):
        return call.rule.narrow(call, self.keeps(call), self.fusion(call))

    def arguments(self, call, values):
        args, kwargs = super().arguments(call, values)
        return call.rule.narrow_arguments(call, args, kwargs, self.keeps(call))

    def call(self, call, values, trainable):
        if self.merges(call):
            return self.instead(call, values, trainable)
        return super().call(call, values, trainable)
