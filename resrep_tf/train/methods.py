"""The methods that `--method` names: ResRep, and those it is compared with.

Each trains on the same data, in the same order, for the same number of epochs, and
meets the same targets on the same channel graph.
"""

import abc
import dataclasses
import functools
import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

import resrep_tf
from resrep_tf import models
from resrep_tf.baselines import ablation, criteria, minimal
from resrep_tf.cli import output
from resrep_tf.cli.errors import blame
from resrep_tf.convert import UnfinishedWarning
from resrep_tf.convert.report import LayerChange
from resrep_tf.evaluate import accuracy
from resrep_tf.pruning.planning import targets_met
from resrep_tf.pruning.rows import unforgotten
from resrep_tf.pruning.state import number
from resrep_tf.surgery.fuse import fused
from resrep_tf.train import training
from resrep_tf.train.checkpoints import transfer
from resrep_tf.train.checks import blame_targets, goals
from resrep_tf.train.phases import PRUNE, RECOVER, Phase, Rate, Ready
from resrep_tf.train.settings import BASE_TEACHER, MINIMAL, Settings
from resrep_tf.train.snapshots import Snapshots
from resrep_tf.train.training import Trainer

# The number of batches that a criterion sees if it needs data.
BATCHES = 20
# The number of batches on which the statistics of fresh BatchNorms are measured.
SHRINK_BATCHES = 16


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


def make(
    settings: Settings, trainer: Trainer, teacher: keras.Model | None = None
) -> "Method":
    """Returns the method that `--method` names."""
    kind = ResRep if settings.method == "resrep" else OneShot
    return kind(settings, trainer, teacher)


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
        """Returns the phases that follow on that of the base."""

    @abc.abstractmethod
    def finish(
        self, base: keras.Model, trained: keras.Model, plan: resrep_tf.Plan | None
    ) -> Outcome:
        """Makes the result, prints what was done, and returns it.

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
        """Returns the arguments of `compile` that are about the teacher."""
        teacher = base if self.settings.teacher == BASE_TEACHER else self.teacher
        return {} if teacher is None else {"teacher": teacher}

    def _compiled(
        self,
        model: keras.Model,
        optimizer: keras.Optimizer,
        lesson: Mapping[str, Any],
    ) -> keras.Model:
        """Returns a plain model, compiled; with a teacher if there is one."""
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


class ResRep(Method):
    """Re-parameterise, forget, shrink, convert; with `--noreset`, the Lasso alone."""

    def phases(self, base):
        settings = self.settings
        epochs, rate = range(settings.epochs), self._rate(settings.learning_rate)
        title = f"Pruning, {settings.epochs} epochs"
        if not settings.shrink:
            return (Phase(PRUNE, title, epochs, rate, self._make, self._plain),)
        prune = Phase(
            PRUNE,
            f"{title}, shrinking when all masked channels are forgotten",
            epochs,
            rate,
            self._make,
            self._plain,
            file=output.PRUNER,
            keeps_state=True,
            over=self._forgotten,
        )
        recover = Phase(
            RECOVER,
            f"Training the shrunk network, to {settings.epochs} epochs in all",
            epochs,
            rate,
            functools.partial(self._shrink, self._lesson(base)),
            lambda pruner, trained: copy(trained),
            after=PRUNE,
            needed=self._forgotten,
        )
        return (prune, recover)

    def _forgotten(self, pruner: keras.Model) -> bool:
        """Returns whether the target is met and all masked rows are forgotten."""
        if not targets_met(pruner, goals(self.settings)):
            return False
        return not unforgotten(pruner, self.settings.epsilon)

    def _shrink(
        self, lesson: Mapping[str, Any], pruner: keras.Model, rate: Rate
    ) -> Ready:
        # Dropout's random numbers are then the same whenever it is made.
        keras.utils.set_random_seed(self.settings.seed)
        optimizer = self.trainer.optimizer(rate)
        slim, report = resrep_tf.shrink(
            pruner,
            self.trainer.same_batches(SHRINK_BATCHES),
            SHRINK_BATCHES,
            epsilon=self.settings.epsilon,
            optimizer=optimizer,
            return_report=True,
        )
        log = _Removed(number(pruner.state.flops_removed))
        return Ready(self._compiled(slim, optimizer, lesson), (log,), note=str(report))

    def _make(self, base: keras.Model, rate: Rate) -> Ready:
        settings = self.settings
        pruner = self._wrap(base, rate, self._lesson(base))
        plan = self._plan(pruner)
        if not settings.reset:
            return Ready(pruner, (ablation.LassoOnly(), *self._snapshots()))
        callback = _PlannedSelection(
            total_steps=self._total_steps, **self._asked(), **self._selection()
        )
        return Ready(pruner, (callback, *self._snapshots()), plan)

    def _wrap(
        self, base: keras.Model, rate: Rate, lesson: Mapping[str, Any]
    ) -> resrep_tf.ResRepModel:
        """Returns the wrapped, compiled model."""
        settings = self.settings
        # Dropout's random numbers are then the same whenever it is made.
        keras.utils.set_random_seed(settings.seed)
        with blame("targets"):
            pruner = resrep_tf.wrap(base, self._targets(), settings.compactor)
        with blame("teacher"):
            self.trainer.compile(
                pruner,
                self.trainer.optimizer(rate),
                compactor_optimizer=settings.compactor_momentum,
                lasso_strength=settings.lasso_strength,
                masked_strength=settings.masked_strength,
                snap=settings.snap,
                **lesson,
            )
        return pruner

    def _plan(self, pruner: resrep_tf.ResRepModel) -> resrep_tf.Plan:
        """Returns what is to be expected; raises if the target is out of reach."""
        with blame_targets():
            return resrep_tf.plan(
                pruner,
                total_steps=self._total_steps,
                **self._asked(),
                **self._selection(),
            )

    @property
    def _total_steps(self) -> int:
        return self.settings.epochs * self.trainer.steps_per_epoch

    def _selection(self) -> dict[str, Any]:
        settings, steps = self.settings, self.trainer.steps_per_epoch
        return {
            "warmup_steps": round(settings.warmup_epochs * steps),
            "interval": settings.selection_interval,
            "step": settings.selection_step,
            "min_width": settings.min_width,
            "round_to": settings.round_to,
            "epsilon": settings.epsilon,
            "schedule": settings.schedule,
        }

    def _snapshots(self) -> list[keras.callbacks.Callback]:
        every, trainer = self.settings.snapshot_epochs, self.trainer
        if not every:
            return []
        folder = trainer.folder / output.SNAPSHOTS
        return [Snapshots(folder, every, trainer.workers.chief)]

    def _plain(self, base: keras.Model, trained: keras.Model) -> keras.Model:
        if not self.trainer.workers.replicated:
            return trained
        # One worker can read this one without the others.
        plain = self._wrap(base, self._rate(self.settings.learning_rate), {})
        transfer(trained, plain)
        return plain

    def finish(self, base, trained, plan):
        settings = self.settings
        if not isinstance(trained, resrep_tf.ResRepModel):
            return self._finish_shrunk(base, trained, plan)
        with output.atomic(self.trainer.folder / output.PRUNER) as path:
            trained.save(path)
        keep = self._keep(trained)
        with warnings.catch_warnings():
            # The note below says the same in the words of the command's flags.
            warnings.simplefilter("ignore", UnfinishedWarning)
            slim, conversion = resrep_tf.convert(
                trained,
                epsilon=settings.epsilon,
                keep=keep,
                drop_masked=settings.drop_masked,
                return_report=True,
            )
        print(conversion)
        if not settings.drop_masked:
            print(advice(trained, settings.epsilon), end="")
        return Outcome(slim, conversion, plan)

    def _finish_shrunk(
        self, base: keras.Model, trained: keras.Model, plan: resrep_tf.Plan | None
    ) -> Outcome:
        with output.atomic(self.trainer.folder / output.SHRUNK) as path:
            trained.save(path)
        slim, difference = fused(trained)
        conversion = dataclasses.replace(_difference(base, slim), difference=difference)
        print(conversion)
        return Outcome(slim, conversion, plan)

    def _keep(self, pruner: resrep_tf.ResRepModel) -> dict[str, np.ndarray] | None:
        """Returns the channels that stay, where training has not decided on them."""
        settings = self.settings
        if settings.reset:
            return None
        if settings.remove == MINIMAL:
            print("Looking for the minimal structure")
            images = self.trainer.data.evaluation()
            structure = minimal.minimal_structure(
                pruner,
                accuracy.limited(images, settings.eval_steps),
                min_width=settings.min_width,
                verbose=int(accuracy.verbosity() == 1),
            )
            print(structure)
            return structure.keep
        return ablation.keep_largest(
            pruner,
            min_width=settings.min_width,
            round_to=settings.round_to,
            **self._asked(),
        )


def advice(pruner: resrep_tf.ResRepModel, epsilon: float) -> str:
    """Returns advice about masked rows that are not forgotten; empty if all are."""
    left = unforgotten(pruner, epsilon)
    if not left:
        return ""
    return (
        f"NOTE: {left} Train for longer (`--epochs`), let the constants fit the run "
        "(`--schedule=auto`), set rows to zero when they are near it (`--snap`), or "
        "remove them as they are, at some loss: `--drop_masked`, or for this run "
        "`python -m resrep_tf.convert --pruner=pruner.keras --drop_masked`.\n"
    )


class _Removed(keras.callbacks.Callback):
    """Logs for a shrunk network what the wrapped one logs about its channels."""

    def __init__(self, flops_removed: float):
        super().__init__()
        self._flops_removed = flops_removed

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs |= {"flops_removed": self._flops_removed, "forgotten": 1.0}


class _PlannedSelection(resrep_tf.ChannelSelection):
    """A selection whose plan the user has seen already."""

    def on_epoch_begin(self, epoch, logs=None):
        with warnings.catch_warnings():
            # It warns of a plan that does not fit, which the printed plan says too.
            warnings.simplefilter("ignore")
            super().on_epoch_begin(epoch, logs)


class OneShot(Method):
    """Choose the structure first, then train it like any model."""

    def phases(self, base):
        settings = self.settings
        scratch = settings.method == "shrink"
        start = settings.base_learning_rate if scratch else settings.learning_rate
        what = "Training from scratch" if scratch else "Finetuning"
        return (
            Phase(
                PRUNE,
                f"{what} ({settings.method}), {settings.epochs} epochs",
                range(settings.epochs),
                self._rate(start),
                self._make,
                self._plain,
            ),
        )

    def _make(self, base: keras.Model, rate: Rate) -> Ready:
        student = self._student(base)
        optimizer = self.trainer.optimizer(rate)
        return Ready(self._compiled(student, optimizer, self._lesson(base)))

    def _student(self, base: keras.Model) -> keras.Model:
        """Returns the model to train, the same one whenever it is made."""
        settings = self.settings
        keras.utils.set_random_seed(settings.seed)
        constraints = {
            "targets": self._targets(),
            "min_width": settings.min_width,
            "round_to": settings.round_to,
            **self._asked(),
        }
        with blame("method"):
            if settings.method == "finetune":
                return copy(base)
            if settings.method == "shrink":
                return criteria.shrink(base, **constraints)
            losses = accuracy.compile_arguments(base, self.trainer.data.classes)
            return criteria.prune_by_scores(
                base,
                settings.method,
                data=self.trainer.same_batches(BATCHES),
                loss=losses["loss"],
                seed=settings.seed,
                **constraints,
            )

    def _plain(self, base: keras.Model, trained: keras.Model) -> keras.Model:
        return copy(trained)  # Without the optimizer too.

    def finish(self, base, trained, plan):
        conversion = _difference(base, trained)
        print(conversion)
        return Outcome(trained, conversion, plan)


def copy(model: keras.Model) -> keras.Model:
    """Returns a plain model of the same weights that is not compiled."""
    if isinstance(model, resrep_tf.Student):
        model = model.plain()
    new = keras.models.clone_model(model)
    new.set_weights(model.get_weights())
    return new


def _difference(before: keras.Model, after: keras.Model) -> resrep_tf.ConversionReport:
    """Returns the change of each layer, from two plain models."""
    old, new = resrep_tf.explain(before), resrep_tf.explain(after)
    found = {layer.name: layer for layer in new.layers}
    layers = tuple(
        LayerChange(
            layer.name,
            layer.kind,
            layer.width,
            found[layer.name].width,
            layer.flops,
            found[layer.name].flops,
            folded=0,
        )
        for layer in old.layers
    )
    return resrep_tf.ConversionReport(
        layers,
        old.flops,
        new.flops,
        before.count_params(),
        after.count_params(),
        rows_dropped=0,
        largest_norm_dropped=0.0,
        kept={},
    )
