"""Turns a wrapped model into a plain, narrower one that computes the same.

A dropped row is zero at its compactor, and following layers may turn that zero into
another constant c. Where a kernel W reads the channel, W * c is folded into the bias.
Where that would not be exact, the channel stays.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from resrep_tf.convert.report import ConversionReport, LayerChange
from resrep_tf.graph import terms
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.rows import (
    Rows,
    Unforgotten,
    check_epsilon,
    kept_rows,
    removed_by,
    row_norms,
    unforgotten,
)
from resrep_tf.pruning.verification import Verifier
from resrep_tf.surgery.decide import Dropping, decide
from resrep_tf.surgery.narrow import Narrower


def convert(
    pruner: ResRepModel,
    epsilon: float = 1e-5,
    keep: Mapping[str, Sequence[bool]] | None = None,
    drop_masked: bool = False,
    fuse_bn: bool = True,
    verify: Any = True,
    return_report: bool = False,
) -> keras.Model | tuple[keras.Model, ConversionReport]:
    """Rebuilds a wrapped model without its compactors and forgotten channels.

    The result has stock Keras layers only, the same inputs and outputs and the
    same architecture, with narrower layers. The given model is not changed.

    Without `keep` and `drop_masked`, an `UnfinishedWarning` says if masked channels
    are not forgotten yet, or nothing was removed.

    Args:
        pruner: A model made by `resrep_tf.wrap`.
        epsilon: Rows of smaller norm are dropped.
        keep: For the name of a compactor or a target layer, a boolean for each row:
            true for those that stay, whatever their norms. For layers that are not
            named, `epsilon` decides.
        drop_masked: Also drops masked rows that are not below `epsilon` yet, as
            after a run that was too short. The report says what that changed.
        fuse_bn: True to merge BatchNorms behind other convolutions too, as for
            deployment. Those of target layers always are.
        verify: True to compare outputs and logits with those of the wrapped model with
            its dropped rows set to zero. Both run on random inputs, in the model's
            precision and, if that is mixed, in float32 too. A difference that
            rounding does not explain is an error. Give data (a `tf.data.Dataset`,
            other batches, or arrays) to compare on these as well, or a number: the
            largest difference to accept, relative to the scale, whatever its cause.
        return_report: True to return `(model, report)`.

    Example:

    ```python
    slim, report = resrep_tf.convert(pruner, return_report=True)
    print(report)
    slim.save("slim.keras")
    ```
    """
    _check_pruner(pruner)
    check_epsilon(epsilon)
    verifier = Verifier(pruner, verify)
    named = _by_compactor(pruner, {} if keep is None else keep)
    norms = row_norms(pruner)
    rows = kept_rows(norms, epsilon, drop_masked, named)
    graph = pruner.graph
    dropping = decide(graph, removed_by(graph, rows))
    narrower = Narrower(graph, dropping, fuse_bn)
    _check_merged(graph, narrower)
    slim = narrower.build()
    report = _report(pruner, norms, rows, dropping, slim)
    if verifier.wanted:
        report = _verify(verifier, slim, rows, report, drop_masked)
    if keep is None and not drop_masked:
        _warn_unfinished(unforgotten(pruner, epsilon), report)
    return (slim, report) if return_report else slim


class UnfinishedWarning(UserWarning):
    """Warns that a model was converted before it had forgotten all masked rows."""


def _warn_unfinished(left: Unforgotten, report: ConversionReport) -> None:
    """Warns if less was removed than was asked for."""
    if report.rows_dropped and not left:
        return
    parts = []
    if not report.rows_dropped:
        parts.append("The converted model is as wide as before: nothing was removed.")
    if left:
        parts.append(
            f"{left} Train for longer, let the constants fit the run "
            '(`ChannelSelection(..., schedule="auto")`), set rows to zero when they '
            "are near it (`pruner.compile(..., snap=True)`), or remove them "
            "now, at some loss: `convert(pruner, drop_masked=True)`."
        )
    elif not left.masked:
        parts.append(
            "No channel is masked. Train with `ChannelSelection(flops_target=...)`, "
            "for longer than its warm-up."
        )
    warnings.warn(" ".join(parts), UnfinishedWarning, stacklevel=3)


def _check_pruner(pruner: Any) -> None:
    if not isinstance(pruner, ResRepModel):
        raise TypeError(
            "`convert` takes a model made by `resrep_tf.wrap`. "
            f"Received: pruner={pruner!r} (of type {type(pruner).__name__})"
        )


# === Which rows go ===


def _by_compactor(
    pruner: ResRepModel, keep: Mapping[str, Sequence[bool]]
) -> dict[Compactor, np.ndarray]:
    if not isinstance(keep, Mapping):
        raise TypeError(
            "`keep` must be a dictionary from layers to booleans, such as "
            "`report.structure`; None keeps what is not forgotten. "
            f"Received: keep={keep!r} (of type {type(keep).__name__})"
        )
    known = {}
    for compactor in pruner.compactors:
        for name in (compactor.name, *compactor.targets):
            known[name] = compactor
    named = {}
    for name, given in keep.items():
        if name not in known:
            raise ValueError(
                f"`keep` names no compactor or target layer: {name!r}. There are: "
                f"{sorted(known)}. Received: keep={list(keep)}"
            )
        value = np.asarray(given)
        if value.dtype != bool or value.shape != (known[name].width,):
            raise ValueError(
                f"`keep[{name!r}]` must be {known[name].width} booleans. Received: an "
                f"array of shape {value.shape} and type {value.dtype}"
            )
        named[known[name]] = value
    return named


def _check_merged(graph: ChannelGraph, narrower: Narrower) -> None:
    """Raises if a compactor cannot be merged into the layer before it."""
    for call in graph.calls.values():
        if isinstance(call.op, Compactor) and not narrower.merges(call):
            raise ValueError(
                f"{call.describe()} must stand directly behind a convolution or dense "
                "layer without activation, or behind that layer's BatchNormalization, "
                f"to be merged into it. Received: pruner={graph.model!r}"
            )


# === Reporting ===


def _report(
    pruner: ResRepModel,
    norms: Rows,
    rows: Rows,
    dropping: Dropping,
    slim: keras.Model,
) -> ConversionReport:
    graph, keep = pruner.graph, dropping.keep
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
    own = pruner.own_variables
    return ConversionReport(
        layers=tuple(layers),
        flops=terms.count(graph.terms),
        new_flops=terms.count(graph.terms, keep),
        params=pruner.count_params() - sum(math.prod(v.shape) for v in own),
        new_params=slim.count_params(),
        rows_dropped=sum(map(len, dropped)),
        largest_norm_dropped=max(
            [float(n.max()) for n in dropped if len(n)], default=0.0
        ),
        kept={why: len(set(channels)) for why, channels in dropping.stuck.items()},
        structure={c.targets[0]: tuple(kept.tolist()) for c, kept in rows.items()},
    )


# === Verifying ===


def _verify(
    verifier: Verifier,
    slim: keras.Model,
    rows: Rows,
    report: ConversionReport,
    drop_masked: bool,
) -> ConversionReport:
    inexact = not all(compactor.exact_when_zero for compactor in rows)
    differs = drop_masked or report.largest_norm_dropped > 0 or inexact
    found = verifier(slim, rows, "converted", differs)
    return dataclasses.replace(report, **vars(found))
