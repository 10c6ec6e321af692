"""Turns a wrapped model into a plain, narrower one that computes the same.

Constants go forwards: a dropped row is zero at its compactor, and following layers
may turn that zero into another constant. Where a kernel reads the channel, W * c
goes into the kernel's bias. Where that would not be exact, the channel stays.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from resrep_tf.convert.report import ConversionReport, LayerChange
from resrep_tf.graph import terms
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.replicas import average_statistics
from resrep_tf.surgery.decide import Dropping, decide
from resrep_tf.surgery.narrow import Narrower
from resrep_tf.surgery.verify import compare, random_inputs, tolerance, zeroed


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


def _zeros(
    graph: ChannelGraph, rows: dict[Compactor, np.ndarray]
) -> dict[int, np.ndarray]:
    """What `decide` is to know of the compactors: dropped rows are zero."""
    return {
        id(call): np.where(rows[call.op], np.nan, 0.0)
        for call in graph.calls.values()
        if isinstance(call.op, Compactor)
    }


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
    before = terms.count_by_name(graph.terms)
    after = terms.count_by_name(graph.terms, keep)
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
        flops=terms.count(graph.terms),
        new_flops=terms.count(ChannelGraph(slim).terms),
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
    return sum(int(np.prod(v.shape)) for v in pruner.own_variables)


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
    inexact = not all(compactor.exact_when_zero for compactor in rows)
    if drop_masked or report.largest_norm_dropped > 0 or inexact:
        damage = compare(pruner(inputs, training=False), expected)
    if not difference <= limit:
        raise ValueError(
            "The converted model does not compute what the wrapped one does: outputs "
            f"differ by {difference:.3g} of their scale, more than {limit:.3g}. If the "
            "model computes in low precision, `verify` can be a larger number. "
            f"Received: verify={limit}"
        )
    return dataclasses.replace(report, difference=difference, damage=damage)
