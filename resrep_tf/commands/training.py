"""The training loop, the same for the base and for pruning."""

from collections.abc import Sequence

import keras
import numpy as np

from resrep_tf.commands.errors import CommandError
from resrep_tf.commands.evaluation import blame_images, limited, verbosity
from resrep_tf.data import Dataset

Rate = float | keras.optimizers.schedules.LearningRateSchedule


def learning_rate(
    start: float,
    schedule: str,
    boundaries: Sequence[int],
    steps_per_epoch: int,
    epochs: int,
) -> Rate:
    """The learning rate as a function of the step.

    Args:
        start: Its first value.
        schedule: `"cosine"` to zero at the end, `"constant"`, or `"step"`.
        boundaries: For `"step"`, the epochs at which it is divided by ten.
        steps_per_epoch: Steps of an epoch.
        epochs: Epochs of the run.
    """
    if schedule == "constant":
        return start
    if schedule == "cosine":
        return keras.optimizers.schedules.CosineDecay(start, epochs * steps_per_epoch)
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [epoch * steps_per_epoch for epoch in boundaries],
        [start * 0.1**count for count in range(len(boundaries) + 1)],
    )


def train(
    model: keras.Model,
    data: Dataset,
    *,
    epochs: int,
    steps_per_epoch: int,
    eval_steps: int | None,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Trains a compiled model, from the step on that its optimizer is at.

    Where in the data that is follows from the step alone.
    """
    with blame_images():
        history = model.fit(
            data.train_from(int(model.optimizer.iterations)),
            steps_per_epoch=steps_per_epoch,
            epochs=epochs,
            validation_data=limited(data.evaluation(), eval_steps),
            callbacks=[keras.callbacks.TerminateOnNaN(), *callbacks],
            shuffle=False,
            verbose=verbosity(),
        )
    losses = history.history["loss"]
    if not np.isfinite(losses).all():
        raise CommandError(
            "The loss is no longer a number, so training has stopped. Try a lower "
            "`--learning_rate` (`--base_learning_rate` for the base). "
            f"Received: loss={losses[-1]} in epoch {len(losses)}"
        )
