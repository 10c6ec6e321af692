"""Builds the narrower copy of a wrapped model, with fresh BatchNorms to train on."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import Call, Fusion
from resrep_tf.rules.fusion import AFFINE, MATRIX
from resrep_tf.shrinking.carry_over import Origin, find_axes
from resrep_tf.surgery.decide import Dropping
from resrep_tf.surgery.examples import batches_of
from resrep_tf.surgery.narrow import Narrower
from resrep_tf.surgery.rebuild import Rebuilder

# A filter's norm is at least this share of its layer's mean norm. Behind a filter of
# nearly zero, the BatchNorm's variance would be smaller than its epsilon.
SMALLEST_NORM = 0.01


class Shrinker(Narrower):
    """Copies a model like its parent class, with a fresh BatchNorm behind each target.

    Without `statistics`, the copy is for measuring: its BatchNorms sum up their inputs,
    and `statistics` returns mean and variance afterwards.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        dropping: Dropping,
        statistics: Mapping[int, tuple[np.ndarray, np.ndarray]] | None = None,
    ):
        super().__init__(graph, dropping, fuse_bn=False)
        self._statistics = statistics
        self.targets: list[Call] = []  # One call of each layer with a compactor.
        # By id of the layer with the kernel, the BatchNorm behind it.
        self._normed: dict[int, keras.Layer] = {}
        for calls in graph.calls_by_op():
            parts = self._absorbed.get(id(calls[0].op), {})
            if MATRIX in parts:
                self.targets.append(calls[0])
                if AFFINE in parts:
                    self._normed[id(calls[0].op)] = parts[AFFINE].op
        self._fresh = {id(layer) for layer in self.fresh}
        # By id of the BatchNorm, the scale and shift that make it the identity.
        self._affine: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def absorbed(self, calls):
        found = super().absorbed(calls)
        # For a depthwise layer, its BatchNorm absorbs the factors of the compactor.
        return {} if calls[0].rule.scalable and AFFINE in found else found

    @property
    def fresh(self) -> list[keras.Layer]:
        """The BatchNorms of the given model that fresh ones replace."""
        return list(self._normed.values())

    def instead(self, call, values, trainable):
        if id(call.op) in self._fresh:
            return Rebuilder.call(self, call, values, trainable)
        return super().instead(call, values, trainable)

    def make(self, call):
        if id(call.op) in self._fresh:
            return self._make_batchnorm(call.op)
        if id(call.op) not in self._normed:
            return super().make(call)
        keeps = self.keeps(call)
        merged = call.rule.merge(call, keeps, self.fusion(call))
        own = call.rule.merge(call, keeps, Fusion())
        filters, scale = rescale(merged.kernel, own.kernel)
        self._affine[id(self._normed[id(call.op)])] = (scale, merged.bias)
        return call.rule.rebuild(call, replace(merged, kernel=filters, bias=None))

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
            # Rounded as in the layer's weights, so that gamma and beta compensate for
            # it.
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
        """Returns, for each new weight, the weight of the given model it comes from."""
        found = []
        targets = {id(call.op) for call in self.targets}
        for calls in self.graph.calls_by_op():
            old, new = calls[0].op, self._ops.get(id(calls[0].op))
            if not isinstance(new, keras.Layer):
                continue
            fresh = id(old) in self._fresh or id(old) in targets
            keeps = self.keeps(calls[0])
            masks = [*keeps.inputs, *keeps.outputs]
            for variable, source in _pairs(new, old):
                axes = None if fresh else find_axes(source, variable, masks)
                found.append(Origin(variable, source, axes))
        return found


def _pairs(
    new: keras.Layer, old: keras.Layer
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Returns pairs of the corresponding weights of two layers."""
    if len(new.weights) == len(old.weights):
        return list(zip(new.weights, old.weights, strict=True))
    # One layer may have a bias that the other one lacks.
    named = {variable.name: variable for variable in old.weights}
    return [(v, named[v.name]) for v in new.weights if v.name in named]


class _Measured(keras.layers.BatchNormalization):
    """Works as in inference, and sums up its inputs for every channel."""

    moments: np.ndarray | float = 0.0

    def call(self, inputs, training=None, mask=None):
        if tf.executing_eagerly():
            # Sums within a batch have the precision and memory of training; the sum
            # over batches is in float64.
            low = inputs.dtype in (tf.float16, tf.bfloat16)
            values = tf.cast(inputs, tf.float32) if low else inputs
            axes = list(range(len(inputs.shape)))
            del axes[self.axis]
            mean, variance = (
                np.asarray(moment, np.float64) for moment in tf.nn.moments(values, axes)
            )
            count = np.prod(values.shape) / mean.size
            self.moments = self.moments + count * np.stack(
                [np.ones_like(mean), mean, variance + mean**2]
            )
        return super().call(inputs, training=False, mask=mask)


def rescale(merged: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives merged filters the norms of a layer's own ones.

    A merged filter is zero if its row is zero but its channel has to stay. It is
    replaced by the layer's own filter with a scale of zero, so that it can be learnt
    again.

    Args:
        merged: The filters with BatchNorm and compactor merged into them; the last
            axis is the output channels.
        own: The layer's own filters, for the same inputs and outputs.

    Returns:
        New filters and the scale of each: `filters * scale` are `merged`.
    """
    axes = tuple(range(merged.ndim - 1))
    norms, wanted = (np.sqrt(np.square(w).sum(axes)) for w in (merged, own))
    wanted = np.maximum(wanted, SMALLEST_NORM * wanted.mean())
    wanted = np.where(wanted > 0, wanted, 1.0)
    scale = norms / wanted
    gone = scale == 0
    return np.where(gone, own, merged / np.where(gone, 1.0, scale)), scale


# === Measuring ===


def measure(model: keras.Model, data: Any, batches: int, batch_size: int) -> int:
    """Runs a model on some batches, and returns the number of batches."""
    count = 0
    for inputs in itertools.islice(batches_of(model, data, batch_size), batches):
        model(inputs, training=False)
        count += 1
    if not count:
        raise ValueError(
            "`data` must have at least one batch, to measure the statistics of "
            f"BatchNorms on. Received: data={data!r} without any"
        )
    return count
