"""Builds the narrower copy of a model."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.compactor import Compactor, SplitActivation
from resrep_tf.rules import Call, Fusion, Keeps, Kernel
from resrep_tf.rules.kernels import DepthwiseConv
from resrep_tf.surgery.decide import Dropping
from resrep_tf.surgery.rebuild import Rebuilder


class Narrower(Rebuilder):
    """Copies a model without its compactors, if it has any, and dropped channels."""

    def __init__(
        self,
        graph: ChannelGraph,
        dropping: Dropping,
        fuse_bn: bool,
        rows: Mapping[Compactor, np.ndarray] | None = None,
    ):
        super().__init__(graph)
        self._rows = rows or {}
        self._dropping = dropping
        self._fuse_bn = fuse_bn
        self._merged: set[int] = set()  # Ids of operations that vanish.
        # What is merged into each operation: BatchNorm, compactor, activation.
        self._parts: dict[int, tuple[Call | None, Call | None, Any]] = {}
        # All matrices together are larger than the model, so each is made when a
        # layer needs it, and let go behind the last one that does.
        self._matrices: dict[Compactor, np.ndarray] = {}
        self._waiting: Counter[Compactor] = Counter()
        for calls in graph.calls_by_op():
            rule = calls[0].rule
            if isinstance(rule, (Kernel, DepthwiseConv)):
                self._plan_fusion(calls)

    def _plan_fusion(self, calls: list[Call]) -> None:
        after = self.graph.batchnorm_after(calls)
        tail = after or calls
        compactor = self._only_reader(tail, Compactor)
        if compactor is None and not (self._fuse_bn and self._inside(tail)):
            after = None
        activation = None
        if compactor is not None:
            split = self._only_reader(compactor, SplitActivation)
            if split is not None:
                activation = split[0].op.activation
                self._merged.add(id(split[0].op))
            self._merged.add(id(compactor[0].op))
            self._waiting[compactor[0].op] += 1
        if after:
            self._merged.add(id(after[0].op))
        first = [None if found is None else found[0] for found in (after, compactor)]
        self._parts[id(calls[0].op)] = (*first, activation)

    def _fusion(self, op: Any) -> Fusion:
        batchnorm, compactor, activation = self._parts[id(op)]
        scale, shift, matrix = None, None, None
        if batchnorm is not None:
            scale, shift = batchnorm.rule.affine(batchnorm.op)
        if compactor is not None:
            matrix = self._matrix(compactor)
        return Fusion(scale, shift, matrix, activation)

    def _inside(self, calls: list[Call]) -> bool:
        """Whether these calls' outputs are not outputs of the model.

        Those keep their layer, whose name is the output's name.
        """
        return not any(self.graph.is_output(call.outputs[0]) for call in calls)

    def _only_reader(self, calls: list[Call], kind: type) -> list[Call] | None:
        """The calls of `kind` that read these outputs; a shared one counts too."""
        readers = [self.graph.only_reader(call) for call in calls]
        if all(
            reader is not None and isinstance(reader.op, kind) for reader in readers
        ):
            return readers
        return None

    def _matrix(self, call: Call) -> np.ndarray:
        """The compactor's columns that stay; a stuck row is a column of zeros."""
        compactor = call.op
        if compactor not in self._matrices:
            keep = self._dropping.keep[call.outputs[0].channels]
            matrix = compactor.matrix(keep)
            matrix[:, ~self._rows[compactor][keep]] = 0.0
            self._matrices[compactor] = matrix
        self._waiting[compactor] -= 1
        if self._waiting[compactor]:
            return self._matrices[compactor]
        return self._matrices.pop(compactor)

    def shape(self, tensor):
        shape = list(tensor.shape)
        if tensor.width:
            shape[tensor.axis] = int(self._dropping.keep[tensor.channels].sum())
        return tuple(shape)

    def _keeps(self, call: Call) -> Keeps:
        keep, constants = self._dropping.keep, self._dropping.constants
        return Keeps(
            [keep[t.channels] for t in call.inputs],
            [keep[t.channels] for t in call.outputs],
            [constants.get(id(t), np.full(t.width, np.nan)) for t in call.inputs],
        )

    def make(self, call):
        rule, keeps = call.rule, self._keeps(call)
        if id(call.op) in self._parts:
            return rule.narrow(call, keeps, self._fusion(call.op))
        return rule.narrow(call, keeps)

    def arguments(self, call, values):
        args, kwargs = super().arguments(call, values)
        return call.rule.narrow_arguments(call, args, kwargs, self._keeps(call))

    def call(self, call, values, trainable):
        if id(call.op) in self._merged:
            return values[0]
        return super().call(call, values, trainable)
