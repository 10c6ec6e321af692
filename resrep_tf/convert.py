"""Turns a wrapped model into a plain, narrower one that computes the same.

Constants go forwards: a dropped row is zero at its compactor, and following layers
may turn that zero into another constant. Where a kernel reads the channel, W * c
goes into the kernel's bias. Where that would not be exact, the channel stays.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from resrep_tf import flops, flow
from resrep_tf.compactor import FILTERS, Compactor, SplitActivation
from resrep_tf.conversion_report import ConversionReport, LayerChange
from resrep_tf.graph import ChannelGraph
from resrep_tf.model import ResRepModel
from resrep_tf.rebuild import Rebuilder
from resrep_tf.replicas import average_statistics
from resrep_tf.rules import Call, Fusion, Keeps, Kernel, Tensor
from resrep_tf.rules.base import ZERO
from resrep_tf.rules.kernels import DepthwiseConv
from resrep_tf.verify import compare, random_inputs, tolerance, zeroed


def convert(
    pruner: ResRepModel,
    epsilon: float = 1e-5,
    keep: Mapping[str, Sequence[bool]] | None = None,
    drop_masked: bool = False,
    fuse_bn: bool = True,
    verify: bool | float = True,
    return_report: bool = False,
) -> keras.Model | tuple[keras.Model, ConversionReport]:
    """Rebuilds a wrapped model without its compactors and forgotten channels.

    The result has stock Keras layers only, the same inputs and outputs and the
    same architecture, with narrower layers. The given model is not changed.

    Args:
        pruner: A model made by `resrep_tf.wrap`.
        epsilon: Rows of smaller norm are dropped.
        keep: Which rows stay, instead of `epsilon`'s choice: for a compactor's or a
            target layer's name, a boolean for each row.
        drop_masked: Also drops masked rows that are not below `epsilon` yet, as
            after a run that was too short. The report says what that changed.
        fuse_bn: Whether BatchNorms behind other convolutions are merged too, as for
            deployment. Those of target layers always are.
        verify: Whether to compare the result with the wrapped model, its dropped
            rows set to zero, on random inputs. A number is the largest difference
            to accept, relative to the outputs' scale.
        return_report: Whether to return `(model, report)`.

    Example:

    ```python
    slim, report = resrep_tf.convert(pruner, return_report=True)
    print(report)
    slim.save("slim.keras")
    ```
    """
    if not isinstance(pruner, ResRepModel):
        raise TypeError(
            "`convert` takes a model made by `resrep_tf.wrap`. "
            f"Received: pruner={pruner!r} (of type {type(pruner).__name__})"
        )
    average_statistics(pruner)
    norms = {c: np.asarray(c.row_norms()) for c in pruner.compactors}
    rows = _kept_rows(pruner, norms, epsilon, keep, drop_masked)
    graph = ChannelGraph(pruner)
    dropping = decide(graph, _zeros(graph, rows))
    slim = Narrower(graph, dropping, fuse_bn, rows).build()
    report = _report(pruner, graph, norms, rows, dropping, slim)
    if verify is not False:
        limit = tolerance(pruner) if verify is True else float(verify)
        report = _verify(pruner, slim, rows, report, limit, drop_masked)
    return (slim, report) if return_report else slim


# === Which rows and channels go ===


def _kept_rows(
    pruner: ResRepModel,
    row_norms: dict[Compactor, np.ndarray],
    epsilon: float,
    keep: Mapping[str, Sequence[bool]] | None,
    drop_masked: bool,
) -> dict[Compactor, np.ndarray]:
    """For each compactor, which rows stay; never none of them."""
    named = _by_compactor(pruner, keep or {})
    rows = {}
    for compactor, norms in row_norms.items():
        if not np.isfinite(norms).all():
            raise ValueError(
                "Every compactor row must be finite. Go back to a checkpoint from "
                f"before training diverged. Received: `{compactor.name}` with "
                f"{int((~np.isfinite(norms)).sum())} NaN or infinite rows"
            )
        kept = norms >= epsilon
        if drop_masked:
            kept &= np.asarray(compactor.mask) > 0.5
        kept = named.get(compactor, kept).copy()
        if not kept.any():
            kept[norms.argmax()] = True
        rows[compactor] = kept
    return rows


def _by_compactor(
    pruner: ResRepModel, keep: Mapping[str, Sequence[bool]]
) -> dict[Compactor, np.ndarray]:
    known = {}
    for compactor in pruner.compactors:
        for name in (compactor.name, *compactor.targets):
            known[name] = compactor
    named = {}
    for name, value in keep.items():
        if name not in known:
            raise ValueError(
                f"`keep` names no compactor or target layer: {name!r}. There are: "
                f"{sorted(known)}. Received: keep={list(keep)}"
            )
        value = np.asarray(value)
        if value.dtype != bool or value.shape != (known[name].width,):
            raise ValueError(
                f"`keep[{name!r}]` must be {known[name].width} booleans. Received: an "
                f"array of shape {value.shape} and type {value.dtype}"
            )
        named[known[name]] = value
    return named


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


def _zeros(
    graph: ChannelGraph, rows: dict[Compactor, np.ndarray]
) -> dict[int, np.ndarray]:
    """What `decide` is to know of the compactors: dropped rows are zero."""
    return {
        id(call): np.where(rows[call.op], np.nan, 0.0)
        for call in graph.calls.values()
        if isinstance(call.op, Compactor)
    }


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


# === Building ===


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
        if all(reader is not None and type(reader.op) is kind for reader in readers):
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


# === Reporting ===


def _report(
    pruner: ResRepModel,
    graph: ChannelGraph,
    norms: dict[Compactor, np.ndarray],
    rows: dict[Compactor, np.ndarray],
    dropping: Dropping,
    slim: keras.Model,
) -> ConversionReport:
    keep = dropping.keep
    before = flops.count_by_name(graph.terms)
    after = flops.count_by_name(graph.terms, keep)
    layers = []
    for calls in graph.calls_by_op():
        call = calls[0]
        name = graph.label(call)
        if name not in before:
            continue
        tensor, output = call.inputs[0], call.outputs[0]
        constants = dropping.constants.get(id(tensor), np.zeros(tensor.width))
        folded = ~keep[tensor.channels] & (np.nan_to_num(constants) != 0)
        layers.append(
            LayerChange(
                name=name,
                kind=call.kind,
                width=output.width,
                new_width=int(keep[output.channels].sum()),
                flops=before[name],
                new_flops=after[name],
                folded=int(folded.sum()) if call.rule.reads(call) else 0,
            )
        )
    dropped = [norms[compactor][~kept] for compactor, kept in rows.items()]
    return ConversionReport(
        layers=tuple(layers),
        flops=flops.count(graph.terms),
        new_flops=flops.count(ChannelGraph(slim).terms),
        params=pruner.count_params() - _own_params(pruner),
        new_params=slim.count_params(),
        rows_dropped=sum(map(len, dropped)),
        largest_norm_dropped=max(
            [float(n.max()) for n in dropped if len(n)], default=0.0
        ),
        kept={why: len(set(channels)) for why, channels in dropping.stuck.items()},
        structure={c.targets[0]: tuple(kept.tolist()) for c, kept in rows.items()},
    )


def _own_params(pruner: ResRepModel) -> int:
    """Parameters that only the wrapped model has."""
    own = [v for c in pruner.compactors for v in c.weights]
    own += [pruner.selection_limit, pruner.lasso_strength, pruner.masked_strength]
    own += [pruner.epsilon, pruner.flops_removed]
    return sum(int(np.prod(v.shape)) for v in own)


def _verify(
    pruner: ResRepModel,
    slim: keras.Model,
    rows: dict[Compactor, np.ndarray],
    report: ConversionReport,
    limit: float,
    drop_masked: bool,
) -> ConversionReport:
    inputs = random_inputs(pruner, pruner.graph.input_shapes)
    with zeroed(rows):
        expected = pruner(inputs, training=False)
    difference = compare(expected, slim(inputs, training=False))
    damage = None
    # A filter that is zero still leaves the constant of its BatchNorm behind.
    filters = any(compactor.kind == FILTERS for compactor in rows)
    if drop_masked or report.largest_norm_dropped > 0 or filters:
        damage = compare(pruner(inputs, training=False), expected)
    if not difference <= limit:
        raise ValueError(
            "The converted model does not compute what the wrapped one does: outputs "
            f"differ by {difference:.3g} of their scale, more than {limit:.3g}. If the "
            "model computes in low precision, `verify` can be a larger number. "
            f"Received: verify={limit}"
        )
    return dataclasses.replace(report, difference=difference, damage=damage)


if __name__ == "__main__":
    from resrep_tf.commands.convert import run as convert_command
    from resrep_tf.commands.flagset import run

    run(convert_command)
