"""Keeps the replicas of a model equal, under a `tf.distribute` strategy."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops


def check_scope(model: keras.Model, optimizers: dict[str, keras.Optimizer]) -> None:
    """Raises if the model or an optimizer was made outside of the strategy's scope.

    Args:
        model: The model.
        optimizers: Its optimizers, by the names of the arguments that gave them.
    """
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

    A BatchNorm that is not synchronised has statistics of its own replica's examples,
    and reading them returns only the first replica's. It does not matter when they are
    averaged, because moving averages are linear. With several workers, all of them must
    call this function.
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
    # The state of a wrapped model belongs to no layer, and is equal on all replicas.
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


def total(value: Any) -> Any:
    """Returns the sum of a tensor over all replicas."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return value
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def fail_together(gradients: Sequence[Any]) -> list[Any]:
    """Makes all gradients NaN on all replicas if one is not finite on one of them.

    A loss-scale optimizer skips a step if the gradients of its own variables on its
    own replica are not finite. So all optimizers skip the same steps.
    """
    finite = [ops.all(ops.isfinite(g)) for g in gradients if g is not None]
    poison = ops.where(ops.all(ops.stack(finite)), 0.0, float("nan"))
    poison = total(poison)
    return [None if g is None else g + ops.cast(poison, g.dtype) for g in gradients]


class EqualReplicas(keras.Model):
    """A model whose moving statistics are averaged before anything reads them.

    They are read by `evaluate`, `predict`, `export` and saving. They are also averaged
    at the end of `fit`, after which users may read weights one by one.
    """

    def evaluate(self, *args, **kwargs):
        average_statistics(self)
        return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        average_statistics(self)
        return super().predict(*args, **kwargs)

    def export(self, *args, **kwargs):
        average_statistics(self)
        return super().export(*args, **kwargs)

    def save_own_variables(self, store):
        # Every way of saving a model calls this method first.
        average_statistics(self)
        super().save_own_variables(store)

    def fit(self, *args, **kwargs):
        history = super().fit(*args, **kwargs)
        average_statistics(self)
        return history


@keras.saving.register_keras_serializable(package="resrep_tf")
class SharedLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """A loss-scale optimizer whose replicas skip the same steps."""

    def apply(self, grads, trainable_variables=None):
        super().apply(fail_together(grads), trainable_variables)
