"""Callbacks that would undo pruning: they bring back weights from before it.

Accuracy is best before channels are forgotten, so that "the best weights" are those
of the unpruned network.
"""

import warnings
from collections.abc import Sequence

import keras

_LATER = (
    "Train the pruner without it; then `resrep_tf.shrink` it, and train the narrower "
    "model with it."
)


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises or warns if callbacks of a wrapped model's `fit` work against pruning."""
    selecting = [c for c in callbacks if getattr(c, "selects_channels", False)]
    if len(selecting) > 1:
        raise ValueError(
            "One callback only may select channels: each would overwrite the masks of "
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
                "epoch, which is one from before channels were forgotten: converted, "
                f"they are as wide as before. {_LATER} Or save every epoch.",
                stacklevel=4,
            )


def _check_stopping(callback: keras.callbacks.EarlyStopping) -> None:
    if callback.restore_best_weights:
        raise ValueError(
            "`EarlyStopping(restore_best_weights=True)` would bring back the weights "
            f"from before channels were forgotten. {_LATER} "
            "Received: callbacks with EarlyStopping(restore_best_weights=True)"
        )
    warnings.warn(
        "`EarlyStopping` may end training before all masked channels are forgotten; "
        f"`convert` then leaves them in. {_LATER}",
        stacklevel=5,
    )
