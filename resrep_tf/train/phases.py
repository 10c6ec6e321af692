"""The phases of a run: the trainings that follow each other."""

import dataclasses
from collections.abc import Callable

import keras

import resrep_tf

# All phases that a run can have, in the order in which they follow each other.
ORDER = BASE, PRUNE = ("base", "prune")

# A number, or a function of the optimizer's step.
Rate = float | keras.optimizers.schedules.LearningRateSchedule


@dataclasses.dataclass(frozen=True)
class Ready:
    """A model that can be trained at once.

    Attributes:
        model: The model, compiled.
        callbacks: Keras callbacks for its training.
        plan: The plan of its training, printed before it starts.
    """

    model: keras.Model
    callbacks: tuple[keras.callbacks.Callback, ...] = ()
    plan: resrep_tf.Plan | None = None


@dataclasses.dataclass(frozen=True)
class Phase:
    """One training of one model.

    Attributes:
        name: One of `ORDER`; its name in checkpoints, metrics and TensorBoard.
        title: The line that is printed when it starts.
        epochs: The epochs that it trains. Where it takes over from another phase,
            `range(12, 20)` trains epochs 13 to 20 on the data of these epochs.
        rate: The learning rate of the main optimizer.
        make: Makes the model to train from the model before this phase (for the first
            one, the network before all training) and `rate`. Called in the strategy's
            scope.
        plain: Returns a model without replicas from the model before this phase and
            the trained one.
        file: The file of the run's folder that holds the trained model when the phase
            is over. A run that is taken up reads it instead of training again.
    """

    name: str
    title: str
    epochs: range
    rate: Rate
    make: Callable[[keras.Model, Rate], Ready]
    plain: Callable[[keras.Model, keras.Model], keras.Model]
    file: str | None = None
