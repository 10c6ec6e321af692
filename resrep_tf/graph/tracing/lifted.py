"""Layers that hold the variables which a `call` uses directly.

When a `call` combines a variable with a tensor, Keras records the variable as a
constant, which would neither be trained nor saved. In a traced graph it is a weight of
one of these layers.
"""

import operator
from typing import Any

import keras
import numpy as np

from resrep_tf.rules.base import Channelwise, Rule, pin_all, register

# The operations of Keras that `ApplyWeight` can stand for, and their operators.
FUNCTIONS = {
    "Add": "add",
    "Subtract": "sub",
    "Multiply": "mul",
    "Divide": "truediv",
    "TrueDivide": "truediv",
}


class Owner(keras.layers.Layer):
    """Owns one weight, either new or taken from another layer.

    Args:
        shape: The weight's shape.
        regularizer: The weight's regularizer.
        constraint: The weight's constraint.
        trained: Whether the weight is trainable.
    """

    def __init__(
        self,
        shape,
        regularizer=None,
        constraint=None,
        trained=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.shape = tuple(shape)
        self.regularizer = keras.regularizers.get(regularizer)
        self.constraint = keras.constraints.get(constraint)
        self.trained = trained

    @classmethod
    def of(cls, variable: keras.Variable, **kwargs: Any) -> "Owner":
        """Returns a layer whose weight is an existing variable."""
        layer = cls(
            tuple(variable.shape),
            regularizer=variable.regularizer,
            constraint=variable.constraint,
            trained=variable.trainable,
            **kwargs,
        )
        layer.weight = variable
        layer.built = True
        return layer

    def build(self, input_shape):
        self.weight = self.add_weight(
            shape=self.shape,
            initializer="zeros",
            regularizer=self.regularizer,
            constraint=self.constraint,
            trainable=self.trained,
            name="weight",
        )

    def get_config(self):
        return {
            **super().get_config(),
            "shape": self.shape,
            "regularizer": keras.regularizers.serialize(self.regularizer),
            "constraint": keras.constraints.serialize(self.constraint),
            "trained": self.trained,
        }


@keras.saving.register_keras_serializable("resrep_tf")
class Weight(Owner):
    """A layer that returns its weight, whatever its input."""

    def call(self, inputs):
        # Returning the variable itself would leave its cast to the layers that read it.
        return keras.ops.reshape(self.weight, self.shape)

    def compute_output_spec(self, inputs):
        floating = keras.backend.is_float_dtype(self.weight.dtype)
        dtype = self.compute_dtype if floating else self.weight.dtype
        return keras.KerasTensor(self.shape, dtype)


@keras.saving.register_keras_serializable("resrep_tf")
class ApplyWeight(Owner):
    """Multiplies, adds, subtracts or divides by a weight: one value, or one a channel.

    Args:
        function: The name of a function in Python's `operator`. Most models have
            `x + self.bias`; `keras.ops.add` would sum the bias's gradient in another
            order.
        first: Whether the weight is the function's first argument.
    """

    def __init__(self, shape, function, first=False, **kwargs):
        super().__init__(shape, **kwargs)
        self.function = function
        self.first = first

    def call(self, inputs):
        function = getattr(operator, self.function)
        pair = (self.weight, inputs) if self.first else (inputs, self.weight)
        return function(*pair)

    def compute_output_spec(self, inputs):
        function = getattr(operator, self.function)
        weight = keras.KerasTensor(self.shape, self.compute_dtype)
        pair = (weight, inputs) if self.first else (inputs, weight)
        spec = function(*pair)
        return keras.KerasTensor(spec.shape, spec.dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "function": self.function,
            "first": self.first,
        }


def applies(
    function: str, first: bool, variable: keras.Variable, tensor: keras.KerasTensor
) -> bool:
    """Returns True if `ApplyWeight` can replace a function of a tensor and a weight.

    The weight must be one value, or one for each channel along the last axis.
    """
    if function == "truediv" and first:
        return False
    weight, shape = tuple(variable.shape), tuple(tensor.shape)
    alone = all(n == 1 for n in weight[:-1])
    fits = not weight or (bool(shape) and weight[-1] in (1, shape[-1]))
    return bool(shape) and alone and fits and len(weight) <= len(shape)


# === Rules ===


@register(Weight)
class WeightRule(Rule):
    """Weights that a `call` uses directly keep all their channels."""

    def opaque_reason(self, call):
        return f"the model itself computes with the weight {call.describe()}"


@register(ApplyWeight)
class ApplyWeightRule(Channelwise):
    """The rule of one trained value for each channel, or one for all."""

    def relate(self, call, channels):
        (tensor,) = call.inputs
        if self._per_channel(call.op):
            if tensor.axis != len(tensor.shape) - 1:
                reason = f"{call.describe()} works on another axis than the channels"
                return pin_all(call, channels, reason)
            channels.of_weights(call.op, "in", tensor.channels)
        return super().relate(call, channels)

    def _per_channel(self, op: ApplyWeight) -> bool:
        return bool(op.shape) and op.shape[-1] > 1

    def keeps_zero(self, call):
        return call.op.function not in ("add", "sub")

    def narrow(self, call, keeps, fusion):
        op, weights = self.clone(call.op)
        if not self._per_channel(op):
            return op, weights
        (weight,) = weights
        weight = np.compress(keeps.inputs[0], weight, -1)
        return type(op).from_config({**op.get_config(), "shape": weight.shape}), [
            weight
        ]


# === A fixed mode ===


@keras.saving.register_keras_serializable("resrep_tf")
class FixedMode(keras.layers.Wrapper):
    """Calls a layer as in training, or as in inference, whatever the model's mode.

    Keras's graphs cannot do this: in `fit`, they run every layer in training mode, even
    if `training=False` was recorded.

    Args:
        layer: The layer.
        fixed_training: The value of `training` in every call.
    """

    def __init__(self, layer, fixed_training, **kwargs):
        super().__init__(layer, **kwargs)
        self.fixed_training = fixed_training

    def call(self, inputs):
        return self.layer(inputs, training=self.fixed_training)

    def compute_output_spec(self, inputs):
        spec = self.layer.compute_output_spec(inputs)
        return keras.tree.map_structure(
            lambda tensor: keras.KerasTensor(tensor.shape, tensor.dtype), spec
        )

    def get_config(self):
        return {**super().get_config(), "fixed_training": self.fixed_training}


@register(FixedMode)
class FixedModeRule(Rule):
    """A layer with a fixed mode is opaque: no rule knows what it computes then."""

    def opaque_reason(self, call):
        mode = "training" if call.op.fixed_training else "inference"
        return f"{call.describe()} always runs as in {mode}"
