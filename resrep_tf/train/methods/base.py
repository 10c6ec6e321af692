"""The base class of all methods."""

import abc
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import keras

import resrep_tf
from resrep_tf import models
from resrep_tf.cli.errors import blame
from resrep_tf.train import training
from resrep_tf.train.phases import Phase, Rate
from resrep_tf.train.settings import BASE_TEACHER, Settings
from resrep_tf.train.training import Trainer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a method.

    Attributes:
        model: The plain model.
        conversion: The change of each layer.
        plan: The plan of the training, for ResRep.
    """

    model: keras.Model
    conversion: resrep_tf.ConversionReport
    plan: resrep_tf.Plan | None = None


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
    """A way from a base to a narrower model.

    Attributes:
        settings: The settings of the run.
        trainer: Trains models, on all devices.
        teacher: The model that `--teacher` names by its path.
    """

    settings: Settings
    trainer: Trainer
    teacher: keras.Model | None = None

    @abc.abstractmethod
    def phases(self, base: keras.Model) -> tuple[Phase, ...]:
        """Returns the phases after that of the base."""

    @abc.abstractmethod
    def finish(
        self, base: keras.Model, trained: keras.Model, plan: resrep_tf.Plan | None
    ) -> Outcome:
        """Makes the result, prints a report, and returns the result.

        Args:
            base: The model before all phases.
            trained: The model after the last one, without replicas.
            plan: The plan of the training, if there was one.
        """

    def _rate(self, start: float) -> Rate:
        return training.learning_rate(
            start,
            self.settings.lr_schedule,
            self.settings.lr_boundaries,
            self.trainer.steps_per_epoch,
            self.settings.epochs,
        )

    def _lesson(self, base: keras.Model) -> dict[str, Any]:
        """Returns the arguments of `compile` for the teacher."""
        teacher = base if self.settings.teacher == BASE_TEACHER else self.teacher
        return {} if teacher is None else {"teacher": teacher}

    def _compiled(
        self,
        model: keras.Model,
        optimizer: keras.Optimizer,
        lesson: Mapping[str, Any],
    ) -> keras.Model:
        """Returns a compiled plain model, with a teacher if there is one."""
        if lesson:
            model = resrep_tf.Student.of(model)
        with blame("teacher"):
            self.trainer.compile(model, optimizer, **lesson)
        return model

    def _asked(self) -> dict[str, Any]:
        """Returns the fractions to remove, as arguments."""
        settings = self.settings
        return {
            "flops_target": settings.flops_target,
            "params_target": settings.params_target,
            "latency_target": settings.latency_target,
            "latency_table": settings.latency_table,
        }

    def _targets(self) -> Any:
        settings = self.settings
        if settings.targets == "paper":
            return models.targets(settings.arch)
        if settings.targets == "internal":
            return None
        if settings.targets == "all":
            return "all"
        return re.compile(settings.targets)


def copy(model: keras.Model) -> keras.Model:
    """Returns a plain model with the same weights that is not compiled."""
    if isinstance(model, resrep_tf.Student):
        model = model.plain()
    new = keras.models.clone_model(model)
    new.set_weights(model.get_weights())
    return new
