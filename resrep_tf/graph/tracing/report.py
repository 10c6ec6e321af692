"""The report of tracing: opaque layers, and what a graph does not contain."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import keras

from resrep_tf.graph.keras_calls import (
    is_stock,
    is_stock_method,
    lost_arguments,
    operations,
    takes_training,
)
from resrep_tf.graph.keras_nodes import as_function
from resrep_tf.rules import rule_for

# Methods of a subclassed model that no graph of its layers contains.
_OF_THE_CLASS = ("train_step", "test_step", "predict_step", "compute_loss")


@dataclass(frozen=True)
class Opaque:
    """A layer that could not be traced and is in the traced model unchanged.

    Attributes:
        path: The attributes that lead to it in the user's model.
        name: Its name in the traced model.
        kind: Its class.
        reason: Why it could not be traced.
    """

    path: str
    name: str
    kind: str
    reason: str

    def __str__(self):
        return f"`{self.path}` ({self.kind}): {self.reason}"


@dataclass(frozen=True)
class TraceReport:
    """The report of `resrep_tf.trace`; `print` it.

    Attributes:
        opaque: The layers that could not be traced.
        overridden: The methods of the user's class, such as `train_step`, that the
            traced model does not have.
        unused: The weights that `call` does not use, and which the traced model
            therefore does not have.
        told: Whether `fit` runs the model in training mode. Keras does not if the
            model's `call` has no argument `training`: BatchNorms then keep their
            statistics and dropouts do nothing, in the traced model too.
        paths: For each name in the traced model, the attributes that lead to the layer
            in the user's model.
    """

    opaque: tuple[Opaque, ...] = ()
    overridden: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    told: bool = True
    paths: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self):
        lines = [f"Not traced: {layer}." for layer in self.opaque]
        lines += [
            f"The model's own `{name}` is not part of the traced model."
            for name in self.overridden
        ]
        if self.unused:
            lines.append(f"Not used by its `call`: {', '.join(self.unused)}.")
        if not self.told:
            lines.append(
                "The model's `call` has no argument `training`, so that Keras trains "
                "it as if in inference: BatchNorms keep their statistics, and dropouts "
                "do nothing."
            )
        return "\n".join(lines or ["Everything was traced."])


def make_report(
    model: keras.Model,
    traced: keras.Model,
    opaque: list[Opaque],
    paths: Mapping[str, str],
) -> TraceReport:
    """Returns the report of tracing `model`."""
    names = {layer.name for layer in traced.layers}
    kept = {id(variable) for variable in traced.weights}
    return TraceReport(
        # A layer inside of an opaque one is not in the traced model by itself.
        opaque=tuple(layer for layer in opaque if layer.name in names),
        overridden=tuple(n for n in _OF_THE_CLASS if not is_stock_method(model, n)),
        unused=tuple(v.path for v in model.weights if id(v) not in kept),
        told=takes_training(model),
        paths=paths,
    )


def check_copyable(model: keras.Model) -> None:
    """Raises one error that names all custom layers without a usable config.

    Pruning copies models, and creates every layer again from its config.
    """
    wrong = []
    for layer in _custom_layers(model):
        if not rule_for(layer).opaque:
            continue  # Its rule copies it.
        try:
            type(layer).from_config(layer.get_config())
            lost = lost_arguments(layer)
        # A user's code may raise any exception.
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            wrong.append(
                f"`{layer.name}` ({type(layer).__name__}): "
                f"{type(error).__name__}: {reason[0]}"
            )
        else:
            if lost:
                names = ", ".join(f"`{name}`" for name in lost)
                wrong.append(
                    f"`{layer.name}` ({type(layer).__name__}): without {names}"
                )
    if wrong:
        raise ValueError(
            "These layers cannot be copied: each needs a `get_config()` that returns "
            "all arguments of its constructor. Received: " + "; ".join(wrong)
        )


def _custom_layers(model: keras.Model) -> list[keras.Layer]:
    found = []
    for op in operations(as_function(model)):
        if as_function(op) is not None:
            found += _custom_layers(op)
        elif isinstance(op, keras.Layer) and not is_stock(type(op)):
            found.append(op)
    return found
