"""From a wrapped model to a narrower one that trains on.

When masked rows are zero, the wrapped model still pays for them. `resrep_tf.convert`
drops them, but merges BatchNorms away, and a network without them trains badly. Here
convolution, BatchNorm and compactor are merged into one narrow convolution as well,
and a fresh BatchNorm stands behind it that is the identity in inference: with the
merged layer `o = s * u + b`, where `u` is a convolution without bias,

    BN(u) = gamma * (u - mean) / sqrt(variance + epsilon) + beta
    gamma = s * sqrt(variance + epsilon)        beta = s * mean + b

is `o` for every mean and variance, so those that `u` really has can be measured in one
pass over some batches. `s` gives each filter the norm that the layer's own filter had:
weight decay and learning rate go on to mean what they meant.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.graph import terms
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.carry_over import Origin, carry_over, find_axes
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.replicas import average_statistics
from resrep_tf.rules import Call
from resrep_tf.surgery.decide import Dropping, decide
from resrep_tf.surgery.narrow import Narrower
from resrep_tf.surgery.verify import compare, random_inputs, tolerance, zeroed

REFUSE, KEEP, DROP = UNFORGOTTEN = ("refuse", "keep", "drop")
# A filter's norm is at least this share of its layer's mean: next to nothing, it would
# leave the BatchNorm nothing but its epsilon to divide by.
SMALLEST_NORM = 0.01


@dataclass(frozen=True)
class ShrinkReport:
    """What `resrep_tf.shrink` did.

    Attributes:
        widths: For each layer with a compactor, its channels before and after.
        restored: The names of the BatchNorms that were made anew.
        flops: Multiply-adds of the original architecture.
        new_flops: Multiply-adds of the new model.
        new_params: Parameters of the new model.
        rows_dropped: Compactor rows that were dropped.
        largest_norm_dropped: The largest norm among them.
        kept: For each reason, how many channels stayed because dropping them would
            not have been exact.
        batches: How many batches the statistics were measured on.
        difference: The largest difference between the new model and the wrapped one
            with its dropped rows set to zero, relative to the outputs' scale, on
            random inputs. None if not verified.
        damage: The same between the wrapped model as it is and with its dropped rows
            set to zero: the price of dropping rows that are not zero yet.
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

    @property
    def flops_removed(self) -> float:
        return 1 - self.new_flops / self.flops

    def __str__(self):
        lines = [
            f"{self.rows_dropped:,} compactor rows dropped, the largest of norm "
            f"{self.largest_norm_dropped:.3g}",
            f"FLOPs {self.flops:,} -> {self.new_flops:,} "
            f"({self.flops_removed:.2%} removed), {self.new_params:,} parameters",
            f"{len(self.restored)} BatchNorms restored on {self.batches} batches",
        ]
        for reason, channels in self.kept.items():
            lines.append(f"{channels} channels had to stay: {reason}")
        if self.difference is not None:
            lines.append(f"verified: outputs differ by {self.difference:.3g} at most")
        if self.damage is not None:
            lines.append(
                f"dropping these rows changed the outputs by {self.damage:.3g}"
            )
        return "\n".join(lines)


def shrink(
    pruner: ResRepModel,
    data: Any,
    batches: int = 16,
    batch_size: int = 32,
    epsilon: float = 1e-5,
    unforgotten: str = REFUSE,
    optimizer: keras.Optimizer | None = None,
    verify: bool | float = True,
    return_report: bool = False,
) -> keras.Model | tuple[keras.Model, ShrinkReport]:
    """Rebuilds a wrapped model without its forgotten channels, to be trained on.

    The result computes the same in inference. It has stock Keras layers only, under
    their own names: compactors are merged into their layers, and each BatchNorm in
    front of a compactor is a fresh one, with statistics measured on `data`. All else
    is as `resrep_tf.convert(pruner, fuse_bn=False)` gives it. The given model is not
    changed.

    Args:
        pruner: A model made by `resrep_tf.wrap`, its masked rows forgotten.
        data: Examples such as those in training: a `tf.data.Dataset` or another
            iterable of batches, each inputs or `(inputs, targets)`; or arrays, or a
            tuple of them. Not read if there is no BatchNorm to restore.
        batches: How many batches to measure at most.
        batch_size: The size of a batch where `data` are arrays.
        epsilon: Rows of smaller norm are forgotten, and dropped.
        unforgotten: What to do with masked rows that are not forgotten: `"refuse"`
            raises an error, `"keep"` leaves them in, no longer masked, and `"drop"`
            drops them, which changes the outputs; the report says by how much.
        optimizer: A new optimizer for the result, made from the configuration of the
            pruner's: it is built on the result's weights and goes on where the
            pruner's is. See `resrep_tf.pruning.carry_over`.
        verify: Whether to compare the result with the wrapped model, its dropped
            rows set to zero, on random inputs. A number is the largest difference
            to accept, relative to the outputs' scale.
        return_report: Whether to return `(model, report)`.

    Example:

    ```python
    config = pruner.optimizer.get_config()
    optimizer = type(pruner.optimizer).from_config(config)
    slim = resrep_tf.shrink(pruner, train, optimizer=optimizer)
    slim.compile(optimizer, "sparse_categorical_crossentropy")
    slim.fit(train)
    ```
    """
    _check(pruner, batches, batch_size, unforgotten, optimizer)
    average_statistics(pruner)
    norms = {c: np.asarray(c.row_norms()) for c in pruner.compactors}
    rows = _kept_rows(norms, epsilon, unforgotten)
    graph = ChannelGraph(pruner)
    dropping = decide(graph, _zeros(graph, rows))
    probe = Shrinker(graph, dropping, rows)
    measured = _measure(probe.build(), data, batches, batch_size) if probe.fresh else 0
    shrinker = Shrinker(graph, dropping, rows, probe.statistics())
    del probe  # Another model's memory.
    slim = shrinker.build()
    report = ShrinkReport(
        widths=_widths(graph, dropping),
        restored=tuple(layer.name for layer in shrinker.fresh),
        flops=terms.count(graph.terms),
        new_flops=terms.count(ChannelGraph(slim).terms),
        new_params=slim.count_params(),
        rows_dropped=sum(int((~kept).sum()) for kept in rows.values()),
        largest_norm_dropped=max(
            float(norms[c][~kept].max(initial=0.0)) for c, kept in rows.items()
        ),
        kept={why: len(set(channels)) for why, channels in dropping.stuck.items()},
        batches=measured,
    )
    if verify is not False:
        limit = tolerance(pruner) if verify is True else float(verify)
        report = _verify(pruner, slim, rows, report, limit)
    if optimizer is not None:
        optimizer.build(slim.trainable_variables)
        carry_over(
            pruner.optimizer,
            optimizer,
            shrinker.origins(),
            pruner.trainable_variables,
            slim.trainable_variables,
        )
    return (slim, report) if return_report else slim


def _check(
    pruner: Any,
    batches: int,
    batch_size: int,
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
    if optimizer is None:
        return
    if pruner.optimizer is None:
        raise ValueError(
            "`optimizer` can only go on where the optimizer of a compiled model is. "
            f"Received: optimizer={optimizer!r} and a model that is not compiled"
        )
    if optimizer.built or type(optimizer) is not type(pruner.optimizer):
        raise ValueError(
            "`optimizer` must be a new one of the type that the pruner has, "
            f"{type(pruner.optimizer).__name__}. Received: optimizer={optimizer!r}, "
            f"{'built already' if optimizer.built else 'of another type'}"
        )


def _kept_rows(
    row_norms: Mapping[Compactor, np.ndarray], epsilon: float, unforgotten: str
) -> dict[Compactor, np.ndarray]:
    """Returns for each compactor which rows stay; never none of them."""
    rows, waiting = {}, {}
    for compactor, norms in row_norms.items():
        if not np.isfinite(norms).all():
            raise ValueError(
                "Every compactor row must be finite. Go back to a checkpoint from "
                f"before training diverged. Received: `{compactor.name}` with "
                f"{int((~np.isfinite(norms)).sum())} NaN or infinite rows"
            )
        kept = norms >= epsilon
        masked = keras.ops.convert_to_numpy(compactor.mask) < 0.5
        if (kept & masked).any():
            waiting[compactor.name] = int((kept & masked).sum())
        if unforgotten == DROP:
            kept &= ~masked
        if not kept.any():
            kept[norms.argmax()] = True
        rows[compactor] = kept
    if waiting and unforgotten == REFUSE:
        raise ValueError(
            "Not all masked rows are forgotten yet. Train on until they are, or let "
            "them stay with `unforgotten='keep'`, or drop them as they are with "
            f"`unforgotten='drop'`. Received: masked rows of norm {epsilon} or more: "
            + ", ".join(f"{count} of `{name}`" for name, count in waiting.items())
        )
    return rows


def _zeros(
    graph: ChannelGraph, rows: Mapping[Compactor, np.ndarray]
) -> dict[int, np.ndarray]:
    """Returns the constants at the compactors' calls: dropped rows are zero."""
    return {
        id(call): np.where(rows[call.op], np.nan, 0.0)
        for call in graph.calls.values()
        if isinstance(call.op, Compactor)
    }


def _widths(graph: ChannelGraph, dropping: Dropping) -> dict[str, tuple[int, int]]:
    found = {}
    for producer in graph.producers:
        if compactor_after(graph, producer.tail):
            call = producer.calls[0]
            kept = dropping.keep[call.outputs[0].channels]
            found[graph.label(call)] = (len(kept), int(kept.sum()))
    return found


def compactor_after(graph: ChannelGraph, calls: list[Call]) -> bool:
    """Returns whether a compactor, and nothing else, reads each of these calls."""
    readers = [graph.only_reader(call) for call in calls]
    return all(r is not None and isinstance(r.op, Compactor) for r in readers)


# === Building ===


class Shrinker(Narrower):
    """Copies a model as its parent does, with a fresh BatchNorm behind each target.

    Without `statistics` it measures: its BatchNorms count what they are given, and
    `statistics` returns that afterwards.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        dropping: Dropping,
        rows: Mapping[Compactor, np.ndarray],
        statistics: Mapping[int, tuple[np.ndarray, np.ndarray]] | None = None,
    ):
        super().__init__(graph, dropping, fuse_bn=False, rows=rows)
        self._statistics = statistics
        # By id of the layer with the kernel, the BatchNorm behind it.
        self._normed = {
            id(producer.layer): producer.batchnorm
            for producer in graph.producers
            if producer.batchnorm is not None and compactor_after(graph, producer.tail)
        }
        self._merged_layers = {
            id(producer.layer)
            for producer in graph.producers
            if compactor_after(graph, producer.tail)
        }
        # By id of the BatchNorm, the scale and shift that make it the identity.
        self._affine: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def fresh(self) -> list[keras.Layer]:
        """The BatchNorms of the given model that are made anew."""
        return list(self._normed.values())

    def call(self, call, values, trainable):
        if any(call.op is layer for layer in self.fresh):
            # The parent leaves them out.
            return super(Narrower, self).call(call, values, trainable)
        return super().call(call, values, trainable)

    def make(self, call):
        if id(call.op) in self._affine:
            return self._make_batchnorm(call.op)
        op, weights = super().make(call)
        if id(call.op) not in self._normed:
            return op, weights
        config = op.get_config()
        config["use_bias"] = False
        *weights, bias = weights
        filters, axis = call.rule.filters(call.op)
        index = [id(v) for v in call.op.weights].index(id(filters))
        own = call.rule.narrow(call, self._keeps(call))[1][index]
        weights[index], scale = rescale(weights[index], own, axis)
        self._affine[id(self._normed[id(call.op)])] = (scale, bias)
        return type(op).from_config(config), weights

    def _make_batchnorm(
        self, layer: keras.layers.BatchNormalization
    ) -> tuple[keras.Layer, list[np.ndarray]]:
        config = layer.get_config()
        config.update(scale=True, center=True)
        scale, shift = self._affine[id(layer)]
        if self._statistics is None:
            new: Any = _Measured.from_config(config)
            mean, variance = np.zeros_like(scale), np.ones_like(scale)
        else:
            new = keras.layers.BatchNormalization.from_config(config)
            # As the layer will have them: their rounding is made up for below.
            mean, variance = (
                keras.ops.convert_to_numpy(
                    keras.ops.cast(value, layer.variable_dtype)
                ).astype(np.float64)
                for value in self._statistics[id(layer)]
            )
        gamma = scale * np.sqrt(variance + layer.epsilon)
        return new, [gamma, scale * mean + shift, mean, variance]

    def statistics(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Returns the measured mean and variance, by id of the given BatchNorm."""
        found = {}
        for layer in self.fresh:
            count, total, squares = self._ops[id(layer)].moments
            mean = total / count
            variance = np.maximum(squares / count - mean**2, 0.0)
            if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
                raise ValueError(
                    f"`{layer.name}` does not get finite values. "
                    "Received: `data` with NaN, infinite or very large values"
                )
            found[id(layer)] = (mean, variance)
        return found

    def origins(self) -> list[Origin]:
        """Returns from which weight of the given model each new one was made."""
        found = []
        for calls in self.graph.calls_by_op():
            old, new = calls[0].op, self._ops.get(id(calls[0].op))
            if not isinstance(new, keras.Layer):
                continue
            fresh = id(old) in self._affine or id(old) in self._merged_layers
            keeps = self._keeps(calls[0])
            named = {variable.name: variable for variable in old.variables}
            for variable in new.trainable_variables:
                source = named.get(variable.name)
                if source is not None:
                    masks = [*keeps.inputs, *keeps.outputs]
                    axes = None if fresh else find_axes(source, variable, masks)
                    found.append(Origin(variable, source, axes))
        return found


class _Measured(keras.layers.BatchNormalization):
    """Works as in inference, and sums up what it is given, in every channel."""

    moments: np.ndarray | float = 0.0

    def call(self, inputs, training=None, mask=None):
        if tf.executing_eagerly():
            values = tf.cast(inputs, tf.float64)
            axes = list(range(len(inputs.shape)))
            del axes[self.axis]
            total = tf.reduce_sum(values, axes)
            squares = tf.reduce_sum(tf.square(values), axes)
            count = tf.size(values) / tf.size(total)
            self.moments = self.moments + np.stack(
                [np.broadcast_to(count, total.shape), total, squares]
            )
        return super().call(inputs, training=False, mask=mask)


def rescale(
    merged: np.ndarray, own: np.ndarray, axis: int
) -> tuple[np.ndarray, np.ndarray]:
    """Gives merged filters the norms of a layer's own ones.

    A merged filter of zeros (of a row that is zero, and whose channel has to stay) is
    replaced by the layer's own, with a scale of zero: it can be learnt again.

    Args:
        merged: The filters with BatchNorm and compactor merged into them.
        own: The layer's own filters, for the same inputs and outputs.
        axis: The axis of output channels.

    Returns:
        New filters and the scale of each: `filters * scale` are `merged`.
    """
    axes = tuple(a for a in range(merged.ndim) if a != axis % merged.ndim)
    norms, wanted = (np.sqrt(np.square(w).sum(axes)) for w in (merged, own))
    wanted = np.maximum(wanted, SMALLEST_NORM * wanted.mean())
    wanted = np.where(wanted > 0, wanted, 1.0)
    scale = norms / wanted
    shape = [1] * merged.ndim
    shape[axis] = -1
    gone = (scale == 0).reshape(shape)
    divisor = np.where(gone, 1.0, scale.reshape(shape))
    return np.where(gone, own, merged / divisor), scale


# === Measuring ===


def _measure(model: keras.Model, data: Any, batches: int, batch_size: int) -> int:
    """Runs a model on some batches, and returns how many there were."""
    count = 0
    for inputs in itertools.islice(_inputs(model, data, batch_size), batches):
        model(inputs, training=False)
        count += 1
    if not count:
        raise ValueError(
            "`data` must have one batch at least, to measure the statistics of "
            f"BatchNorms on. Received: data={data!r} without any"
        )
    return count


def _inputs(model: keras.Model, data: Any, batch_size: int) -> Iterator[Any]:
    """Yields the inputs of each batch."""
    several = isinstance(data, list) and len(data) == len(model.inputs) > 1
    if isinstance(data, (tuple, dict)) or keras.tree.is_nested(data) and several:
        pass
    elif not hasattr(data, "shape"):
        if not isinstance(data, Iterable):
            raise TypeError(
                "`data` must be arrays or an iterable of batches. "
                f"Received: data={data!r} (of type {type(data).__name__})"
            )
        for batch in data:
            yield keras.utils.unpack_x_y_sample_weight(batch)[0]
        return
    arrays = keras.utils.unpack_x_y_sample_weight(data)[0]
    size = len(keras.tree.flatten(arrays)[0])
    for first in range(0, size, batch_size):
        yield keras.tree.map_structure(
            lambda array, at=first: array[at : at + batch_size], arrays
        )


# === Verifying ===


def _verify(
    pruner: ResRepModel,
    slim: keras.Model,
    rows: dict[Compactor, np.ndarray],
    report: ShrinkReport,
    limit: float,
) -> ShrinkReport:
    inputs = random_inputs(pruner, pruner.graph.input_shapes)
    before = pruner(inputs, training=False)
    with zeroed(rows):
        expected = pruner(inputs, training=False)
    difference = compare(expected, slim(inputs, training=False))
    if not difference <= limit:
        raise ValueError(
            "The narrower model does not compute what the wrapped one does: outputs "
            f"differ by {difference:.3g} of their scale, more than {limit:.3g}. If the "
            "model computes in low precision, `verify` can be a larger number. "
            f"Received: verify={limit}"
        )
    return replace(report, difference=difference, damage=compare(before, expected))
