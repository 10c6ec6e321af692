"""The checks of `fit`: callbacks, frozen layers and labels.

Some callbacks restore weights from before pruning. Accuracy is best before channels are
forgotten, so "the best weights" are those of the unpruned network.
"""

import contextlib
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

_LATER = (
    "Train the pruner without it; then `resrep_tf.shrink` it, and train the narrower "
    "model with it."
)


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises or warns if callbacks of a wrapped model's `fit` work against pruning."""
    selecting = [c for c in callbacks if getattr(c, "selects_channels", False)]
    if len(selecting) > 1:
        raise ValueError(
            "Only one callback may select channels: each would overwrite the masks of "
            "the other. Give all targets to one `ChannelSelection`. "
            f"Received: {len(selecting)} of them"
        )
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.EarlyStopping):
            _check_stopping(callback)
        elif (
            isinstance(callback, keras.callbacks.ModelCheckpoint)
            and callback.save_best_only
        ):
            warnings.warn(
                "`ModelCheckpoint(save_best_only=True)` keeps the weights of the best "
                "epoch, which is from before channels were forgotten: converted, they "
                f"are as wide as before. {_LATER} Or save every epoch.",
                stacklevel=4,
            )


def _check_stopping(callback: keras.callbacks.EarlyStopping) -> None:
    if callback.restore_best_weights:
        raise ValueError(
            "`EarlyStopping(restore_best_weights=True)` would restore the weights "
            f"from before channels were forgotten. {_LATER} "
            "Received: callbacks with EarlyStopping(restore_best_weights=True)"
        )
    warnings.warn(
        "`EarlyStopping` may end training before all masked channels are forgotten; "
        f"`convert` then keeps them. {_LATER}",
        stacklevel=5,
    )


def check_frozen(model: Any) -> None:
    """Warns if most of a model is frozen and cannot compensate for lost channels."""
    names = frozen_layers(model)
    frozen = sum(layer.count_params() for layer in _frozen(model))
    own = {id(variable) for variable in model.own_variables}
    trained = [v for v in model.trainable_weights if id(v) not in own]
    if frozen > sum(math.prod(variable.shape) for variable in trained):
        warnings.warn(
            f"Most of the weights are frozen, in {len(names)} layers "
            f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}). These can "
            "lose channels, but cannot learn to compensate for lost ones. To let them "
            "learn, set `trainable = True` in the model and compile it again.",
            stacklevel=3,
        )


def frozen_layers(model: keras.Model) -> list[str]:
    """Returns the names of layers that have weights and are not trained."""
    return [layer.name for layer in _frozen(model)]


def _frozen(model: keras.Model) -> Iterator[keras.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _frozen(layer)
        elif layer.variables and not layer.trainable:
            yield layer


@contextlib.contextmanager
def blame_labels(model: keras.Model) -> Iterator[None]:
    """Turns TensorFlow's error about a label into one that names the mistake."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(
            r"label value of (-?\d+) .*outside the valid range of \[0, (\d+)\)",
            str(error),
        )
        if found is None:
            raise
        raise ValueError(
            f"`y` must hold the numbers of classes, from 0 to {int(found[2]) - 1}: "
            f"{model.name!r} has {found[2]} outputs. Count classes from 0, or give the "
            f"model an output for each of them. Received: a label {found[1]}"
        ) from error
