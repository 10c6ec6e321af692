"""Parameters and size on disk while channels are removed one after the other.

The parameters of a kernel are a constant times the product of two widths, those of a
bias or a BatchNorm a constant times one width. FLOPs are such terms too, so the same
meter counts both exactly.
"""

import math
from typing import Any

import keras
import numpy as np

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.terms import Term
from resrep_tf.rules import Call, Kernel, Rule
from resrep_tf.rules.channelwise import (
    BatchNormalization,
    LayerScale,
    Normalization,
    PReLU,
)
from resrep_tf.rules.fusion import AFFINE, MATRIX
from resrep_tf.rules.kernels import DepthwiseConv, SeparableConv


class ParametersMeter(FlopsMeter):
    """Parameters of a network while its channels are removed one after the other.

    It counts the model that `resrep_tf.convert` makes with the kept channels, where a
    BatchNorm behind a kernel is merged into it and gives it a bias. The count is exact
    unless removed channels leave a constant other than zero to a layer that has neither
    a bias nor a BatchNorm of its own: conversion gives that layer a bias.

    Example:

    ```python
    meter = ParametersMeter.of(resrep_tf.ChannelGraph(model))
    print(meter.total, meter.cost(channel))
    ```
    """

    unit = "parameters"

    @classmethod
    def of(cls, graph: ChannelGraph, fuse_bn: bool = True) -> "ParametersMeter":
        """Returns the meter of a model, given its graph.

        Args:
            graph: The graph of a plain or a wrapped model.
            fuse_bn: As in `resrep_tf.convert`. False counts the parameters of the
                same layers with fewer channels, as `resrep_tf.slicing` makes them.
        """
        return cls(parameter_terms(graph, fuse_bn), graph.num_channels)

    def __repr__(self):
        return f"ParametersMeter(current={self.current:,} of {self.total:,} parameters)"


class SizeMeter(FlopsMeter):
    """Bytes that a network's weights take on disk while channels are removed.

    Weights are counted exactly. What a file holds beside them (the graph, names,
    checksums) hardly depends on the widths and goes into `constant`.
    """

    unit = "bytes"

    @classmethod
    def of(
        cls,
        graph: ChannelGraph,
        bytes_per_parameter: int = 4,
        constant: int = 0,
        fuse_bn: bool = True,
    ) -> "SizeMeter":
        """Returns the meter of a model, given its graph.

        Args:
            graph: The graph of a plain or a wrapped model.
            bytes_per_parameter: 4 for float32, 2 for float16, 1 for int8.
            constant: Bytes that stay whatever the widths.
            fuse_bn: As in `ParametersMeter.of`.
        """
        terms = [
            Term(term.name, term.coefficient * bytes_per_parameter, term.factors)
            for term in parameter_terms(graph, fuse_bn)
        ]
        return cls([*terms, Term("constant", constant, ())], graph.num_channels)

    def __repr__(self):
        return f"SizeMeter(current={self.current:,} of {self.total:,} bytes)"


def parameter_terms(graph: ChannelGraph, fuse_bn: bool = True) -> list[Term]:
    """Returns the parameters of a converted model as products of widths."""
    merged = merged_batchnorms(graph, fuse_bn)
    vanishing = {id(norm) for norm in merged.values()}
    terms = []
    for calls in graph.calls_by_op():
        call = calls[0]
        if id(call.op) in vanishing or vanishes(call):
            continue
        sides = _layer_terms(call, with_bias=id(call.op) in merged)
        if isinstance(call.rule, BatchNormalization) and not call.op.scale:
            # Conversion merges the compactor into this BatchNorm and gives it a scale.
            sides += [(1, (call.inputs[0].channels,))] * (MATRIX in graph.merged(calls))
        terms += [
            Term(graph.label(call), coefficient, factors)
            for coefficient, factors in sides
            if coefficient
        ]
    return terms


def merged_batchnorms(
    graph: ChannelGraph, fuse_bn: bool = True
) -> dict[int, keras.Layer]:
    """Returns, by each layer's id, the BatchNorm that conversion merges into it."""
    found = {}
    for calls in graph.calls_by_op():
        merged = graph.merged(calls, fuse_bn)
        if AFFINE in merged:
            found[id(calls[0].op)] = merged[AFFINE][0].op
    return found


def vanishes(call: Call) -> bool:
    """Returns whether a call is that of a compactor, which conversion merges away."""
    return call.rule.role == MATRIX


def _layer_terms(call: Call, with_bias: bool) -> list[tuple[int, tuple]]:
    """Lists a layer's parameters as `(coefficient, factors)`."""
    layer = call.op
    if not isinstance(layer, keras.Layer) or isinstance(call.rule, Normalization):
        return []  # A `Normalization` is copied with its statistics as plain numbers.
    rule: Rule = call.rule
    ids, made = call.inputs[0].channels, call.outputs[0].channels
    bias = [(1, (made,))] if with_bias or getattr(layer, "use_bias", False) else []
    if isinstance(rule, SeparableConv):
        multiplier = layer.depth_multiplier
        taps = math.prod(layer.kernel_size)
        return [(taps * multiplier, (ids,)), (multiplier, (ids, made)), *bias]
    if isinstance(rule, DepthwiseConv):
        return [(math.prod(layer.kernel_size), (made,)), *bias]
    if isinstance(rule, Kernel):
        size = _size(layer.kernel)
        inputs = rule.inputs_of_group(call)
        return [(size // (len(inputs) * len(made)), (inputs, made)), *bias]
    if isinstance(rule, (BatchNormalization, LayerScale, PReLU)):
        return [_vectors(layer, ids)]
    return [(sum(map(_size, layer.weights)), ())]


def _vectors(layer: keras.Layer, ids: np.ndarray) -> tuple[int, tuple]:
    """Counts weights with one entry for each channel, or one for all of them."""
    sizes = sum(map(_size, layer.weights))
    if sizes % len(ids):
        return sizes, ()
    return sizes // len(ids), (ids,)


def _size(variable: Any) -> int:
    return math.prod(variable.shape)
