"""Turns any model into an equal Functional one by tracing what its layers do."""

import weakref
from typing import Any

import keras

from resrep_tf.graph.keras_calls import (
    calls_forgotten,
    has_graph,
    is_leaf,
    operations,
    shapes_by_tracing,
)
from resrep_tf.graph.keras_nodes import as_function, check_model
from resrep_tf.graph.tracing.inputs import make_inputs
from resrep_tf.graph.tracing.report import TraceReport, make_report
from resrep_tf.graph.tracing.tracer import Tracer


def trace(
    model: keras.Model, input_shape: Any = None, return_report: bool = False
) -> keras.Model | tuple[keras.Model, TraceReport]:
    """Returns an equal Functional model of Keras's own layers and operations.

    The calls that a subclassed model or a custom layer makes are recorded as a graph.
    The result shares all weights with the given model, which is not changed: training
    one trains the other. Its layers are named after the attributes that lead to them:
    `stage1_blocks_0_conv1` for `model.stage1.blocks[0].conv1`. A Functional or
    Sequential model that needs no tracing is returned as it is.

    A layer that cannot be traced is opaque: it stays one layer, and the report names
    it with the reason.

    Args:
        model: Any model. If it has not been called yet, it needs `input_shape` and is
            built.
        input_shape: The shape of one example; a list or a dict of shapes for several
            inputs. By default the shape with which the model was built.
        return_report: Whether to return a `TraceReport` too.

    Example:

    ```python
    class MyNet(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv, self.head = keras.layers.Conv2D(8, 3), keras.layers.Dense(2)

        def call(self, x, training=None):
            return self.head(keras.ops.mean(self.conv(x), axis=(1, 2)))

    functional = resrep_tf.trace(MyNet(), input_shape=(32, 32, 3))
    functional.save("my_net.keras")  # Can be loaded without the class `MyNet`.
    ```
    """
    if not isinstance(model, keras.Model):
        check_model(model)
    if not needs_tracing(model):
        report = _TRACED.get(model, TraceReport())
        return (model, report) if return_report else model
    with calls_forgotten(model):
        built = None if has_graph(model) else _build(model, input_shape)
        if not needs_tracing(model):
            return (model, TraceReport()) if return_report else model
        with shapes_by_tracing(model):
            tracer, result = _trace(model, built)
    report = make_report(model, result, list(tracer.opaque.values()), tracer.paths)
    _TRACED[result] = report
    return (result, report) if return_report else result


def _trace(
    model: keras.Model, built: tuple[list, dict[str, Any]] | None
) -> tuple[Tracer, keras.Model]:
    separate: set[int] = set()
    closed: dict[int, str] = {}
    while True:
        tracer = Tracer(model, separate, closed)
        result = tracer.trace(built)
        # A weight in two layers would become two weights when the model is saved.
        more, closed_too = tracer.clashes()
        if not more and not closed_too:
            return tracer, result
        separate |= more
        closed |= closed_too


# Models that `trace` returned, with its reports. They are not traced again, as what is
# opaque in them would only fail again.
_TRACED: "weakref.WeakKeyDictionary[keras.Model, TraceReport]"
_TRACED = weakref.WeakKeyDictionary()


def needs_tracing(model: keras.Model) -> bool:
    """Returns False for a model with a graph in which nothing is left to trace."""
    if type(model).__module__.startswith("resrep_tf."):
        return False  # Made from a model that was traced.
    if not has_graph(model):
        return True
    if model in _TRACED:
        return False
    return any(
        not is_leaf(op) and (not has_graph(op) or needs_tracing(op))
        for op in operations(as_function(model))
    )


def _build(model: keras.Model, input_shape: Any) -> tuple[list, dict[str, Any]]:
    """Calls the model once on symbolic inputs, and returns these arguments."""
    args, kwargs = make_inputs(model, input_shape)
    if not model.built:
        try:
            model(*args, **kwargs)
        # A user's code may raise any exception.
        except Exception as error:
            raise ValueError(
                f"`{model.name}` cannot be called on inputs of this shape: "
                f"{type(error).__name__}: {error} Received: input_shape={input_shape}"
            ) from error
    return args, kwargs
