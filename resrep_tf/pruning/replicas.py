"""What the replicas of a model must agree on, under a `tf.distribute` strategy."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops


def check_scope(model: keras.Model, optimizers: dict[str, keras.Optimizer]) -> None:
    """Refuses what would let the replicas drift apart, by argument."""
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    if not isinstance(model.variables[0].value, tf.distribute.DistributedValues):
        raise ValueError(
            "Call `wrap` within `strategy.scope()` too, where `compile` is called: "
            f"the model has no replicas. Received: model={model.name!r}, made outside "
            "of the scope"
        )
    for name, optimizer in optimizers.items():
        counter = optimizer.variables[0].value
        if not isinstance(counter, tf.distribute.DistributedValues):
            raise ValueError(
                "Create optimizers and call `compile` within `strategy.scope()`, "
                "where the model was made: its replicas would drift apart. "
                f"Received: {name}={optimizer!r}, created outside of the scope"
            )


def average_statistics(model: keras.Model) -> None:
    """Makes moving statistics the same on all replicas: their average.

    A BatchNorm that is not synchronised keeps those of its own replica's examples,
    and whoever reads them gets the first replica's. Averaging early or late gives the
    same: moving averages are linear. With several workers, all of them must call it.
    """
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    if model not in _AVERAGING:
        _AVERAGING[model] = _make_averaging(model)
    _AVERAGING[model]()


# Traced once for each model.
_AVERAGING: weakref.WeakKeyDictionary[keras.Model, Callable[[], None]]
_AVERAGING = weakref.WeakKeyDictionary()


def _make_averaging(model: keras.Model) -> Callable[[], None]:
    strategy = model.distribute_strategy
    # The states of a model of this package are its own, not a layer's, and the same
    # on all replicas at all times.
    statistics = [
        variable
        for layer in model.layers
        for variable in layer.non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]

    def average() -> None:
        context = tf.distribute.get_replica_context()
        for variable in statistics:
            value = tf.identity(variable.value)
            variable.assign(context.all_reduce(tf.distribute.ReduceOp.MEAN, value))

    return tf.function(lambda: strategy.run(average))


def number(scalar: Any) -> Any:
    """A scalar as a Python number; `int` and `float` fail where it has replicas."""
    return ops.convert_to_numpy(scalar).item()


def fail_together(gradients: Sequence[Any]) -> list[Any]:
    """Makes one non-finite gradient, on whichever replica, a bad step for all.

    A loss-scale optimizer looks at the gradients of its own variables on one replica
    and skips a bad step; a NaN added to all gradients makes all come to one verdict.
    """
    finite = [ops.all(ops.isfinite(g)) for g in gradients if g is not None]
    poison = ops.where(ops.all(ops.stack(finite)), 0.0, float("nan"))
    context = tf.distribute.get_replica_context()
    poison = context.all_reduce(tf.distribute.ReduceOp.SUM, poison)
    return [None if g is None else g + ops.cast(poison, g.dtype) for g in gradients]


@keras.saving.register_keras_serializable(package="resrep_tf")
class SharedLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """A loss-scale optimizer whose replicas skip the same steps."""

    def apply(self, grads, trainable_variables=None):
        super().apply(fail_together(grads), trainable_variables)
