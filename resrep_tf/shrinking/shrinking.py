"""Rebuilds a wrapped model narrower during training, to train on at lower cost.

When masked rows are zero, the wrapped model still computes them. `resrep_tf.convert`
drops them, but merges BatchNorms away, and a network without them trains badly. Here,
convolution, BatchNorm and compactor are merged into one narrow convolution as well, but
a fresh BatchNorm is put behind it that changes nothing in inference. For the merged
layer `o = s * u + b`, where `u` is a convolution without bias,

    BN(u) = gamma * (u - mean) / sqrt(variance + epsilon) + beta
    gamma = s * sqrt(variance + epsilon)        beta = s * mean + b

is `o` for every mean and variance, so the true ones of `u` can be measured in one pass
over some batches. `s` gives each filter the norm that the layer's own filter had, so
that weight decay and learning rate act as before.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras

from resrep_tf.graph import terms
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.markup import notebook_table
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.rows import Rows, check_epsilon, kept_rows, removed_by, row_norms
from resrep_tf.pruning.rows import unforgotten as rows_left
from resrep_tf.pruning.verification import Verifier, verdict
from resrep_tf.shrinking.carry_over import carry_over
from resrep_tf.shrinking.restoring import Shrinker, measure
from resrep_tf.surgery.decide import Dropping, decide

REFUSE, KEEP, DROP = UNFORGOTTEN = ("refuse", "keep", "drop")


@dataclass(frozen=True)
class ShrinkReport:
    """The report of `resrep_tf.shrink`.

    Attributes:
        widths: For each layer with a compactor, its channels before and after.
        restored: The names of the BatchNorms that fresh ones replaced.
        flops: Multiply-adds of the original architecture.
        new_flops: Multiply-adds of the new model.
        new_params: Parameters of the new model.
        rows_dropped: Compactor rows that were dropped.
        largest_norm_dropped: The largest norm of a dropped row.
        kept: For each reason, how many channels stayed because dropping them would
            not have been exact.
        batches: How many batches the statistics were measured on.
        difference: The largest difference between the new model and the wrapped one
            with its dropped rows set to zero, of outputs and logits, relative to
            their scale. None if not verified.
        damage: The same between the wrapped model as it is and with its dropped rows
            set to zero: the cost of dropping rows that are not zero yet.
        verified_on: What the models were compared on, in words.
    """

    widths: dict[str, tuple[int, int]]
    restored: tuple[str, ...]
    flops: int
    new_flops: int
    new_params: int
    rows_dropped: int
    largest_norm_dropped: float
    kept: dict[str, int]
    batches: int
    difference: float | None = None
    damage: float | None = None
    verified_on: str | None = None

    @property
    def flops_removed(self) -> float:
        return 1 - self.new_flops / self.flops

    def __str__(self):
        return "\n".join(self._summary())

    def _repr_html_(self):
        return notebook_table(
            ["layer", "width"],
            [[name, f"{old} → {new}"] for name, (old, new) in self.widths.items()],
            self._summary(),
            numbers=("width",),
        )

    def _summary(self) -> list[str]:
        lines = [
            f"{self.rows_dropped:,} compactor rows dropped, the largest of norm "
            f"{self.largest_norm_dropped:.3g}",
            f"FLOPs {self.flops:,} -> {self.new_flops:,} "
            f"({self.flops_removed:.2%} removed), {self.new_params:,} parameters",
            f"{len(self.restored)} BatchNorms restored on {self.batches} batches",
        ]
        return lines + verdict(
            self.kept, self.difference, self.damage, self.verified_on
        )


def shrink(
    pruner: ResRepModel,
    data: Any,
    batches: int = 16,
    batch_size: int = 32,
    epsilon: float = 1e-5,
    unforgotten: str = REFUSE,
    optimizer: keras.Optimizer | None = None,
    verify: Any = True,
    return_report: bool = False,
) -> keras.Model | tuple[keras.Model, ShrinkReport]:
    """Rebuilds a wrapped model without its forgotten channels, to be trained on.

    The result computes the same in inference. It has stock Keras layers only, under
    their own names: compactors are merged into their layers, and each BatchNorm in
    front of a compactor is replaced by a fresh one, with statistics measured on `data`.
    Everything else is as in `resrep_tf.convert(pruner, fuse_bn=False)`. The given model
    is not changed.

    Args:
        pruner: A model made by `resrep_tf.wrap` whose masked rows are forgotten.
        data: Training examples: arrays, a tuple of them, or batches (such as a
            `tf.data.Dataset`) of inputs or `(inputs, targets)`. Not read if there is
            no BatchNorm to replace.
        batches: The largest number of batches to measure on.
        batch_size: The size of a batch if `data` are arrays.
        epsilon: Rows of smaller norm are forgotten, and dropped.
        unforgotten: What to do with masked rows that are not forgotten: `"refuse"`
            raises an error, `"keep"` keeps them, no longer masked, and `"drop"`
            drops them, which changes the outputs; the report says by how much.
        optimizer: A new optimizer for the result, made from the configuration of the
            pruner's optimizer. It is built on the result's weights and gets the state
            of the pruner's optimizer. See `resrep_tf.shrinking.carry_over`.
        verify: As in `convert`; True also compares on `data` that can be read twice.
        return_report: Whether to return `(model, report)`.

    Example:

    ```python
    optimizer = type(pruner.optimizer).from_config(pruner.optimizer.get_config())
    slim = resrep_tf.shrink(pruner, data, optimizer=optimizer)
    slim.compile(optimizer, "sparse_categorical_crossentropy")
    slim.fit(data)
    ```
    """
    _check(pruner, batches, batch_size, epsilon, unforgotten, optimizer)
    # Measuring uses an iterator up, so it is not verified on.
    verifier = Verifier(pruner, verify, None if isinstance(data, Iterator) else data)
    norms = row_norms(pruner)
    rows = kept_rows(norms, epsilon, drop_masked=unforgotten == DROP)
    dropping = decide(pruner.graph, removed_by(pruner.graph, rows))
    shrinker, measured = _shrinker(pruner.graph, dropping, data, batches, batch_size)
    slim = shrinker.build()
    report = _report(pruner, shrinker, slim, dropping, norms, rows, measured)
    if verifier.wanted:
        report = replace(report, **vars(verifier(slim, rows, "narrower", True)))
    if optimizer is not None:
        _go_on(pruner, slim, shrinker, optimizer)
    _warn_unshrunk(report)
    return (slim, report) if return_report else slim


def _warn_unshrunk(report: ShrinkReport) -> None:
    """Warns the caller of `shrink` if it did nothing."""
    if report.rows_dropped:
        return
    warnings.warn(
        "The shrunk model is as wide as before: nothing was removed. Train the pruner "
        "with `ChannelSelection(flops_target=...)` first, until "
        "`pruner.forgotten_share()` is 1.",
        stacklevel=3,
    )


def _shrinker(
    graph: ChannelGraph, dropping: Dropping, data: Any, batches: int, batch_size: int
) -> tuple[Shrinker, int]:
    """Returns the builder of the narrower model, and the number of measured batches."""
    probe = Shrinker(graph, dropping)
    count = measure(probe.build(), data, batches, batch_size) if probe.fresh else 0
    return Shrinker(graph, dropping, probe.statistics()), count


def _report(
    pruner: ResRepModel,
    shrinker: Shrinker,
    slim: keras.Model,
    dropping: Dropping,
    norms: Rows,
    rows: Rows,
    batches: int,
) -> ShrinkReport:
    return ShrinkReport(
        widths=_widths(shrinker),
        restored=tuple(layer.name for layer in shrinker.fresh),
        flops=terms.count(pruner.graph.terms),
        new_flops=terms.count(ChannelGraph(slim).terms),
        new_params=slim.count_params(),
        rows_dropped=sum(int((~kept).sum()) for kept in rows.values()),
        largest_norm_dropped=max(
            float(norms[c][~kept].max(initial=0.0)) for c, kept in rows.items()
        ),
        kept={why: len(set(channels)) for why, channels in dropping.stuck.items()},
        batches=batches,
    )


def _go_on(
    pruner: ResRepModel,
    slim: keras.Model,
    shrinker: Shrinker,
    optimizer: keras.Optimizer,
) -> None:
    """Gives an optimizer of the narrower model the state of the pruner's."""
    optimizer.build(slim.trainable_variables)
    carry_over(
        pruner.optimizer,
        optimizer,
        shrinker.origins(),
        pruner.trainable_variables,
        slim.trainable_variables,
    )


def _check(
    pruner: Any,
    batches: int,
    batch_size: int,
    epsilon: float,
    unforgotten: str,
    optimizer: keras.Optimizer | None,
) -> None:
    if not isinstance(pruner, ResRepModel):
        raise TypeError(
            "`shrink` takes a model made by `resrep_tf.wrap`. "
            f"Received: pruner={pruner!r} (of type {type(pruner).__name__})"
        )
    for name, value in [("batches", batches), ("batch_size", batch_size)]:
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
    if unforgotten not in UNFORGOTTEN:
        raise ValueError(
            f"`unforgotten` must be one of {UNFORGOTTEN}. "
            f"Received: unforgotten={unforgotten!r}"
        )
    check_epsilon(epsilon)
    _check_forgotten(pruner, epsilon, unforgotten)
    if optimizer is None:
        return
    if not pruner.compiled:
        raise ValueError(
            "`optimizer` gets the state of the pruner's optimizer, and there is none. "
            f"Received: optimizer={optimizer!r} and a model that is not compiled"
        )
    if optimizer.built or type(optimizer) is not type(pruner.optimizer):
        raise ValueError(
            "`optimizer` must be a new one of the type of the pruner's optimizer, "
            f"{type(pruner.optimizer).__name__}. Received: optimizer={optimizer!r}, "
            f"{'built already' if optimizer.built else 'of another type'}"
        )


def _check_forgotten(pruner: ResRepModel, epsilon: float, what: str) -> None:
    """Raises if masked rows are not forgotten and the user has not said what to do."""
    left = rows_left(pruner, epsilon)
    if left and what == REFUSE:
        raise ValueError(
            "Not all masked rows are forgotten yet. Train on until they are, or keep "
            "them with `unforgotten='keep'`, or drop them now with "
            f"`unforgotten='drop'`. Received: {left}"
        )


def _widths(shrinker: Shrinker) -> dict[str, tuple[int, int]]:
    found = {}
    for call in shrinker.targets:
        (kept,) = shrinker.keeps(call).outputs
        found[shrinker.graph.label(call)] = (len(kept), int(kept.sum()))
    return found
