"""The state of pruning: weights that belong to the wrapped model itself."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from resrep_tf.selection.schedule import Schedule


def number(scalar: Any) -> Any:
    """Returns a scalar weight or tensor as a Python number.

    `int` and `float` fail if it has several replicas.
    """
    return ops.convert_to_numpy(scalar).item()


@dataclass(frozen=True, eq=False)
class State:
    """The numbers that a restart needs, as non-trainable weights of the model.

    Attributes:
        selection_limit: The largest number of rows that may be masked now.
        lasso_strength: The Lasso's strength on rows that are not masked.
        masked_strength: The Lasso's strength on masked rows.
        epsilon: The norm below which a row counts as forgotten.
        flops_removed: The fraction of FLOPs that the masked rows take.
        rows_learn: 1 if rows that are not masked learn, 0 if they stay as they are.
        importance: For each row of all compactors, how much the loss depends on it.
    """

    selection_limit: keras.Variable
    lasso_strength: keras.Variable
    masked_strength: keras.Variable
    epsilon: keras.Variable
    flops_removed: keras.Variable
    rows_learn: keras.Variable
    importance: keras.Variable

    @classmethod
    def of(cls, model: keras.Model, rows: int) -> "State":
        """Adds the weights to a model, in the order in which files have them.

        Args:
            model: The model.
            rows: The number of rows of all its compactors.
        """

        def add(
            name: str,
            value: float = 0.0,
            dtype: str = "float32",
            shape: tuple[int, ...] = (),
        ) -> Any:
            return model.add_weight(
                name=name,
                shape=shape,
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
            rows_learn=add("rows_learn", 1.0),
            importance=add(
                "importance",
                dtype=keras.backend.result_type(model.variable_dtype, "float32"),
                shape=(rows,),
            ),
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """All weights of the state."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]
