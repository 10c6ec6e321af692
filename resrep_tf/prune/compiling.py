"""Compiles a model as another one was compiled."""

from contextlib import AbstractContextManager
from typing import Any

import keras


def scope_of(model: Any) -> AbstractContextManager:
    """Returns the scope in which a model was made, for what is to train with it.

    Raises:
        TypeError: If it is no model.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model`. "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    return model.distribute_strategy.scope()


def compiled_like(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of `compile` with which another model trains the same way.

    The optimizer is a new one of the same class and configuration, with the present
    learning rate of the model's optimizer. Metrics are new too, since they have states.

    Raises:
        ValueError: If the model is not compiled, or its metrics cannot be created
            again.
    """
    if not model.compiled:
        raise ValueError(
            "`model` must be compiled, so that it is clear how to train it. Call "
            "`model.compile(optimizer, loss, metrics=...)` as for finetuning. "
            f"Received: model={model.name!r}, which is not compiled"
        )
    arguments: dict[str, Any] = {
        "optimizer": another(model.optimizer),
        # The same object: losses have no state, and Keras may not know a function of
        # the user's own by its name.
        "loss": model.loss,
    }
    config = model.get_compile_config() or {}
    for name in ("loss_weights", "run_eagerly", "steps_per_execution", "jit_compile"):
        if name in config:
            arguments[name] = config[name]
    for name in ("metrics", "weighted_metrics"):
        try:
            arguments[name] = keras.saving.deserialize_keras_object(config.get(name))
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"The `{name}` of `model` cannot be created again for the pruned one. "
                "Decorate metrics of your own with "
                "`@keras.saving.register_keras_serializable()`, or compile `model` "
                f"with others. Received: {name}={config.get(name)}"
            ) from error
    return arguments


def another(optimizer: keras.Optimizer) -> keras.Optimizer:
    """Returns a new optimizer of the same class and configuration."""
    return type(optimizer).from_config(optimizer.get_config())
