"""Activation functions that act on every element alone."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from resrep_tf.rules.base import Call
from resrep_tf.rules.channels import Channels

# Not included: softmax, log_softmax, sparsemax (they mix channels) and glu (it halves
# them). Nothing is assumed about a function that is not in this list.
_NAMES = """
    celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh
    leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid silu soft_shrink softplus
    softsign sparse_plus sparse_sigmoid squareplus swish tanh tanh_shrink threshold
"""
_ELEMENTWISE = {
    getattr(keras.activations, name)
    for name in _NAMES.split()
    if hasattr(keras.activations, name)
}
LINEAR = keras.activations.linear


def is_elementwise(activation: Callable[[Any], Any]) -> bool:
    """Returns whether a function is known to act on every element alone."""
    return activation in _ELEMENTWISE or isinstance(
        activation, (keras.layers.ReLU, keras.layers.LeakyReLU, keras.layers.ELU)
    )


def apply(activation: Callable[[Any], Any], values: np.ndarray) -> np.ndarray:
    """Applies an activation to concrete values, in their own precision."""
    return np.asarray(keras.ops.convert_to_numpy(activation(values)))


def pin_unless_elementwise(call: Call, channels: Channels, ids: np.ndarray) -> None:
    """Pins channels behind an activation that may look at several of them."""
    function = call.op.activation
    if not is_elementwise(function):
        name = getattr(function, "__name__", None) or type(function).__name__
        channels.pin(
            ids,
            f"the activation `{name}` of {call.describe()} is not known to act on "
            "each channel alone",
        )
