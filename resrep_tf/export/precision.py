"""Copies models to float32, the precision of deployed files."""

from collections.abc import Collection

import keras


def is_float32(model: keras.Model) -> bool:
    """Returns whether all floats of a model are float32."""
    kinds = {layer.compute_dtype for layer in model._flatten_layers()}
    # Integers are allowed: inputs and indices may have them.
    return not kinds & {"float16", "bfloat16", "float64"}


def in_float32(model: keras.Model, only: Collection[str] | None = None) -> keras.Model:
    """Returns a copy of a model that computes in float32 instead of mixed precision.

    Args:
        model: The model.
        only: Names of the layers to change, such as the last one, whose outputs losses
            and metrics need in float32. By default all of them, for deployment.
    """

    def single(layer: keras.Layer) -> keras.Layer:
        config = layer.get_config()
        # Operations that are not layers have no precision of their own.
        if isinstance(layer, keras.Layer) and (only is None or layer.name in only):
            config["dtype"] = "float32"
        return type(layer).from_config(config)

    copy = keras.models.clone_model(model, clone_function=single, recursive=True)
    copy.set_weights(model.get_weights())
    return copy
