"""Makes the inputs of a traced model."""

import inspect
from typing import Any

import keras

from resrep_tf.graph.keras_calls import build_config
from resrep_tf.graph.keras_nodes import as_function, copy_input, structures


def make_inputs(model: keras.Model, input_shape: Any) -> tuple[list, dict[str, Any]]:
    """Returns inputs for the `call` of a model that is not Functional.

    Returns:
        The positional and the keyword arguments; their leaves are inputs of Keras.
    """
    required = _required(model)
    function = as_function(model)
    if input_shape is not None:
        shapes = _map_shapes(lambda shape: (None, *shape), input_shape)
        if len(required) > 1:
            if isinstance(shapes, list) and len(shapes) == len(required):
                shapes = dict(zip(required, shapes, strict=True))
            _check_arguments(required, shapes, input_shape)
            return [], {name: _named(shape, name) for name, shape in shapes.items()}
    elif function is not None:
        inputs = keras.tree.map_structure(
            lambda tensor: copy_input(tensor, tensor.shape), structures(function)[0]
        )
        alone = isinstance(inputs, (list, tuple)) and len(inputs) == 1
        return [inputs[0] if alone else inputs], {}
    else:
        config = _recorded(model, required)
        if "shapes_dict" in config:
            return [], {
                name: _named(_map_shapes(_open_batch, shape), name)
                for name, shape in (
                    (key.removesuffix("_shape"), shape)
                    for key, shape in config["shapes_dict"].items()
                )
            }
        shapes = _map_shapes(_open_batch, config["input_shape"])
    return [_named(shapes, required[0] if required else "inputs")], {}


def _required(model: keras.Model) -> list[str]:
    """Returns the names of the required arguments of `call`."""
    return [
        parameter.name
        for parameter in inspect.signature(model.call).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


def _check_arguments(required: list[str], shapes: Any, given: Any) -> None:
    if not isinstance(shapes, dict) or set(shapes) < set(required):
        raise ValueError(
            f"The model's `call` takes {len(required)} arguments, so `input_shape` "
            f"must be a list of {len(required)} shapes, or a dict with a shape for "
            f"each of {required}. Received: input_shape={given}"
        )


def _recorded(model: keras.Model, required: list[str]) -> dict[str, Any]:
    config = build_config(model) if model.built else None
    if config is not None and "shapes_dict" not in config and len(required) > 1:
        config = None  # Keras recorded the shape of the first argument only.
    if config is None or None in config.values():
        raise ValueError(
            f"The input of `{model.name}` ({type(model).__name__}) is not known. Call "
            "the model once on data, or give the shape of one example: "
            "`input_shape=(32, 32, 3)`, with a list or a dict of shapes for several "
            "inputs. Received: input_shape=None"
        )
    return config


def _open_batch(shape: tuple) -> tuple:
    return (None, *shape[1:])


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


def _named(shapes: Any, name: str) -> Any:
    if _is_shape(shapes):
        return keras.Input(batch_shape=shapes, name=name)
    if isinstance(shapes, dict):
        # Keras finds the inputs of a dict by their names.
        return {key: _named(inner, str(key)) for key, inner in shapes.items()}
    return [_named(inner, f"{name}_{i}") for i, inner in enumerate(shapes)]
