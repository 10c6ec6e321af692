"""The phases of a run, which are trained one after the other."""

import dataclasses
from collections.abc import Callable

import keras

import resrep_tf

# All phases that a run can have, in their order.
ORDER = BASE, PRUNE, RECOVER = ("base", "prune", "recover")

# A learning rate: a number, or a function of the optimizer's step.
Rate = float | keras.optimizers.schedules.LearningRateSchedule


@dataclasses.dataclass(frozen=True)
class Ready:
    """A model that can be trained at once.

    Attributes:
        model: The model, compiled.
        callbacks: Keras callbacks for its training.
        plan: The plan of its training, printed before it starts.
        note: A text that is printed with the plan.
    """

    model: keras.Model
    callbacks: tuple[keras.callbacks.Callback, ...] = ()
    plan: resrep_tf.Plan | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Phase:
    """One training of one model.

    Attributes:
        name: One of `ORDER`; its name in checkpoints, metrics and TensorBoard.
        title: The line that is printed when it starts.
        epochs: The epochs that it trains. If it continues another phase, `range(12,
            20)` trains epochs 13 to 20 on the data of these epochs.
        rate: The learning rate of the main optimizer.
        make: Makes the model to train from the model before this phase (for the first
            one, the network before all training) and `rate`. Called in the strategy's
            scope.
        plain: Returns a model without replicas from the model before this phase and
            the trained one.
        file: The file in the run's folder that holds the trained model after the phase.
            A run that is resumed reads it instead of training again.
        keeps_state: True if that file holds the optimizer's state too. The trainer then
            writes it at the end of the phase.
        over: Returns true if a model needs no further epoch of this phase.
        after: The name of the phase that this one continues, at the epoch at which that
            phase has ended.
        needed: Returns false if the phase is to be skipped for a model.
    """

    name: str
    title: str
    epochs: range
    rate: Rate
    make: Callable[[keras.Model, Rate], Ready]
    plain: Callable[[keras.Model, keras.Model], keras.Model]
    file: str | None = None
    keeps_state: bool = False
    over: Callable[[keras.Model], bool] = lambda model: False
    after: str | None = None
    needed: Callable[[keras.Model], bool] = lambda model: True
