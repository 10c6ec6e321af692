"""Puts compactors into a model: convolutional re-parameterisation."""

import warnings
from collections.abc import Sequence

import keras

from resrep_tf.graph.channel_graph import ChannelGraph, Producer, Space
from resrep_tf.graph.targets import (
    Targets,
    check_finite,
    check_not_wrapped,
    choose_spaces,
)
from resrep_tf.graph.tracing import check_copyable
from resrep_tf.pruning.compactor import (
    KINDS,
    MATRIX,
    VECTOR,
    Compactor,
    SplitActivation,
)
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.surgery.rebuild import Rebuilder


def wrap(
    model: keras.Model,
    targets: Targets = None,
    compactor: str = MATRIX,
    input_shape: Sequence | None = None,
) -> ResRepModel:
    """Re-parameterises a trained model for pruning.

    The result computes the same outputs and trains like any Keras model; the given
    model is not changed. Layers keep their names and weights.

    Args:
        model: A trained model. Nested models are allowed; a subclassed one is traced
            first, as by `resrep_tf.trace`.
        targets: The layers to prune. None: every prunable space of channels that one
            layer makes (the paper's internal layers), together with its gates if it
            has any. `"all"`: residual streams too; all layers with the same channels
            then share one compactor. Or layer names, a compiled regular expression
            that must match the start of layer names, or a function from a layer to
            True or False.
        compactor: `"matrix"`, or `"vector"` for one scale per channel. With
            `"filters"` nothing is re-parameterised: the target layers' own filters are
            trained to be forgotten (the paper's Res without Rep).
        input_shape: The shape of one example, for a subclassed model that has not
            been called yet.

    Example:

    ```python
    pruner = resrep_tf.wrap(model)
    pruner.compile("sgd", loss)
    pruner.fit(data, callbacks=[resrep_tf.ChannelSelection(flops_target=0.5)])
    slim = resrep_tf.convert(pruner)
    ```
    """
    if compactor not in KINDS:
        raise ValueError(
            f"`compactor` must be one of {tuple(KINDS)}. "
            f"Received: compactor={compactor!r}"
        )
    graph = ChannelGraph(model, input_shape)
    check_copyable(graph.model)
    check_not_wrapped(graph)
    check_finite(graph)
    if not graph.trace_report.told:
        _warn_of_untold(model)
    spaces = choose_spaces(graph, targets)
    KINDS[compactor].check(spaces)
    pruner = _Wrapper(graph, spaces, compactor).build(ResRepModel)
    pruner.dtype_policy = model.dtype_policy
    return pruner


def _warn_of_untold(model: keras.Model) -> None:
    warnings.warn(
        f"The `call` of `{type(model).__name__}` has no argument `training`, so that "
        "Keras's `fit` runs it as in inference: BatchNorms keep their statistics and "
        "dropouts do nothing. In the wrapped model they work as in training.",
        stacklevel=3,
    )


class _Wrapper(Rebuilder):
    """Copies a model with a compactor behind each producer of the given spaces."""

    def __init__(self, graph: ChannelGraph, spaces: list[Space], kind: str):
        super().__init__(graph)
        self._kind = kind
        self._scaled = {p for space in spaces for p in space.scaled}
        self._names = {step.op.name for step in graph.calls.values()}
        self._compactors: dict[Producer, Compactor] = {}
        self._producers: dict[int, Producer] = {}  # By id of the tail call.
        # By id of a layer, the producers whose compactor it shares.
        self._sharing: dict[int, tuple[Producer, ...]] = {}
        self._split: dict[int, SplitActivation] = {}
        layouts = [x for s in spaces for x in (*s.layouts, *s.scaled_layouts)]
        for layout in layouts:
            for producer in layout:
                self._sharing[id(producer.layer)] = layout
                for call in producer.tail:
                    self._producers[id(call)] = producer

    def make(self, call):
        op, weights = super().make(call)
        if id(call.op) in self._sharing and _has_activation(op):
            config = op.get_config()
            config["activation"] = "linear"
            op = type(op).from_config(config)
        return op, weights

    def call(self, call, values, trainable):
        outputs = super().call(call, values, trainable)
        producer = self._producers.get(id(call))
        if producer is None:
            return outputs
        outputs = self._compactor(self._sharing[id(producer.layer)], call)(outputs)
        if not _has_activation(producer.layer):
            return outputs
        return self._activation(producer.layer)(outputs)

    def _compactor(self, sharing: tuple[Producer, ...], call) -> Compactor:
        first = sharing[0]
        if first not in self._compactors:
            scaled = first in self._scaled
            kind = VECTOR if scaled else self._kind
            self._compactors[first] = KINDS[kind](
                targets=[producer.name for producer in sharing],
                kind=kind,
                axis=call.outputs[0].axis,
                groups=1 if scaled else first.groups,
                name=self._unique(f"{first.name}_compactor"),
                dtype=first.layer.dtype_policy,
            )
        return self._compactors[first]

    def _activation(self, layer: keras.Layer) -> SplitActivation:
        if id(layer) not in self._split:
            self._split[id(layer)] = SplitActivation(
                layer.activation,
                name=self._unique(f"{layer.name}_activation"),
                dtype=layer.dtype_policy,
            )
        return self._split[id(layer)]

    def _unique(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _has_activation(layer: keras.Layer) -> bool:
    linear = keras.activations.linear
    return getattr(layer, "activation", linear) is not linear
