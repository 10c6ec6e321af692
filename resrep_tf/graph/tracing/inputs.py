"""The inputs of a traced model."""

from typing import Any

import keras

from resrep_tf.graph.keras_nodes import input_layer
from resrep_tf.graph.tracing.nodes import build_config


def copy_input(tensor: keras.KerasTensor) -> keras.KerasTensor:
    """Returns a new input like that of a Functional model."""
    layer = input_layer(tensor)
    new = type(layer).from_config(layer.get_config()).output
    # Keras names the tensor of an unnamed input otherwise than its layer, and that
    # name is the one an exported model shows.
    new.name = tensor.name
    return new


def make_inputs(model: keras.Model, input_shape: Any) -> tuple[list, dict[str, Any]]:
    """Returns inputs for a subclassed model, as they are handed to its `call`.

    Returns:
        The positional and the keyword arguments; their leaves are inputs of Keras.
    """
    first = next(iter(model.call_signature_parameters), "inputs")
    if input_shape is not None:
        shapes = _map_shapes(lambda shape: (None, *shape), input_shape)
        return [_named_inputs(shapes, first)], {}
    config = _recorded(model)
    if "input_shape" in config:
        shapes = _map_shapes(lambda shape: (None, *shape[1:]), config["input_shape"])
        return [_named_inputs(shapes, first)], {}
    shapes = {
        name.removesuffix("_shape"): _map_shapes(lambda s: (None, *s[1:]), shape)
        for name, shape in config["shapes_dict"].items()
    }
    return [], {name: _named_inputs(shape, name) for name, shape in shapes.items()}


def _recorded(model: keras.Model) -> dict[str, Any]:
    config = build_config(model) if model.built else None
    if config is None or None in config.values():
        raise ValueError(
            f"`{model.name}` ({type(model).__name__}) has not been called yet, so that "
            "its input is not known. Call it once on data, or say what the shape of "
            "one example is: `input_shape=(32, 32, 3)`, with a list or a dict of "
            "shapes for several inputs. Received: input_shape=None"
        )
    return config


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        n is None or isinstance(n, int) for n in value
    )


def _map_shapes(function: Any, shapes: Any) -> Any:
    """Applies a function to every shape in a structure of lists and dicts."""
    if _is_shape(shapes):
        return function(tuple(shapes))
    if isinstance(shapes, dict):
        return {key: _map_shapes(function, inner) for key, inner in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        return [_map_shapes(function, inner) for inner in shapes]
    raise ValueError(
        "`input_shape` must be the shape of one example, such as `(32, 32, 3)`, or a "
        f"list or a dict of shapes. Received: input_shape={shapes!r}"
    )


def _named_inputs(shapes: Any, name: str) -> Any:
    if _is_shape(shapes):
        return keras.Input(batch_shape=shapes, name=name)
    if isinstance(shapes, dict):
        # Keras finds the inputs of a dict by their names.
        return {key: _named_inputs(inner, str(key)) for key, inner in shapes.items()}
    return [_named_inputs(inner, f"{name}_{i}") for i, inner in enumerate(shapes)]
