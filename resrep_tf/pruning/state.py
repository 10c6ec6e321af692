"""The state of pruning: the weights that are the wrapped model's own."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from resrep_tf.selection.schedule import Schedule


def number(scalar: Any) -> Any:
    """Returns a scalar weight or tensor as a Python number.

    `int` and `float` fail where it has several replicas.
    """
    return ops.convert_to_numpy(scalar).item()


@dataclass(frozen=True, eq=False)
class State:
    """Scalars that must survive a restart, as non-trainable weights of the model.

    Attributes:
        selection_limit: How many rows may be masked.
        lasso_strength: The Lasso's strength on rows that are not masked.
        masked_strength: The Lasso's strength on masked rows.
        epsilon: The norm below which a row counts as forgotten.
        flops_removed: The fraction of FLOPs that goes with the masked rows.
    """

    selection_limit: keras.Variable
    lasso_strength: keras.Variable
    masked_strength: keras.Variable
    epsilon: keras.Variable
    flops_removed: keras.Variable

    @classmethod
    def of(cls, model: keras.Model) -> "State":
        """Adds the weights to a model, in the order in which files have them."""

        def add(name: str, value: float = 0.0, dtype: str = "float32") -> Any:
            return model.add_weight(
                name=name,
                shape=(),
                dtype=dtype,
                initializer=keras.initializers.Constant(value),
                trainable=False,
                autocast=False,
            )

        return cls(
            selection_limit=add("selection_limit", dtype="int64"),
            lasso_strength=add("lasso_strength", Schedule.lasso_strength),
            masked_strength=add("masked_strength", Schedule.lasso_strength),
            epsilon=add("epsilon", Schedule.epsilon),
            flops_removed=add("flops_removed"),
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """All weights of the state."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]
