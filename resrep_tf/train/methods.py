"""What `--method` names: ResRep, and what it is compared with.

Each trains on the same data, in the same order, for the same number of epochs, and
meets the same FLOPs target on the same channel graph.
"""

import abc
import dataclasses
import re
import warnings
from typing import Any

import keras
import numpy as np

import resrep_tf
from resrep_tf import models
from resrep_tf.baselines import ablation, criteria, minimal
from resrep_tf.cli import output
from resrep_tf.cli.errors import blame
from resrep_tf.cli.unforgotten import unforgotten
from resrep_tf.convert.report import LayerChange
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train import training
from resrep_tf.train.checkpoints import transfer
from resrep_tf.train.settings import MINIMAL, Settings
from resrep_tf.train.snapshots import Snapshots
from resrep_tf.train.training import Trainer

# How many batches a criterion looks at that needs data.
BATCHES = 20


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a method has made of a base.

    Attributes:
        model: The plain model.
        conversion: What has become of each layer.
        plan: What was expected, for ResRep.
    """

    model: keras.Model
    conversion: resrep_tf.ConversionReport
    plan: resrep_tf.Plan | None = None


def make(settings: Settings, trainer: Trainer) -> "Method":
    """The method that `--method` names."""
    kind = ResRep if settings.method == "resrep" else OneShot
    return kind(settings, trainer)


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
    """A way from a base to a narrower model.

    Attributes:
        settings: What to do.
        trainer: Trains models, on all devices.
    """

    settings: Settings
    trainer: Trainer

    @abc.abstractmethod
    def check(self, base: keras.Model) -> None:
        """Tries what can fail before training."""

    @abc.abstractmethod
    def train(self, base: keras.Model) -> Any:
        """Trains, on all workers; returns a model without replicas."""

    @abc.abstractmethod
    def finish(self, base: keras.Model, trained: Any) -> Outcome:
        """Makes the result of what `train` returned, and prints what was done."""

    def _rate(self, start: float) -> training.Rate:
        return training.learning_rate(
            start,
            self.settings.lr_schedule,
            self.settings.lr_boundaries,
            self.trainer.steps_per_epoch,
            self.settings.epochs,
        )

    def _compile(self, model: keras.Model, start: float, **arguments: Any) -> None:
        settings = self.settings
        if settings.sync_batchnorm:
            training.synchronise(model)
        model.compile(
            training.optimizer(self._rate(start), settings.momentum, settings),
            jit_compile=settings.jit_compile,
            **evaluation.compile_arguments(model, self.trainer.data.classes),
            **arguments,
        )

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
    """Re-parameterise, forget, convert; with `--noreset`, the Lasso alone."""

    def check(self, base):
        self._plan(self._wrap(base))

    def _wrap(self, base: keras.Model) -> resrep_tf.ResRepModel:
        """The wrapped, compiled model."""
        settings = self.settings
        # Dropout's random numbers are then the same whenever it is made.
        keras.utils.set_random_seed(settings.seed)
        with blame("targets"):
            pruner = resrep_tf.wrap(base, self._targets(), settings.compactor)
        self._compile(
            pruner,
            settings.learning_rate,
            compactor_optimizer=settings.compactor_momentum,
            lasso_strength=settings.lasso_strength,
            masked_strength=settings.masked_strength,
            snap=settings.snap,
        )
        return pruner

    def _plan(self, pruner: resrep_tf.ResRepModel) -> resrep_tf.Plan:
        """What is to be expected of the run."""
        with blame("flops_target"):
            return resrep_tf.plan(
                pruner,
                self.settings.flops_target,
                self.settings.epochs * self.trainer.steps_per_epoch,
                **self._selection(),
            )

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

    def train(self, base):
        settings, workers = self.settings, self.trainer.workers
        with workers.strategy.scope():
            pruner = self._wrap(base)
            plan = self._plan(pruner)
        if workers.chief:
            print(f"Pruning, {settings.epochs} epochs")
        if settings.reset:
            if workers.chief:
                print(plan)
            callback = resrep_tf.ChannelSelection(
                settings.flops_target,
                total_steps=settings.epochs * self.trainer.steps_per_epoch,
                **self._selection(),
            )
        else:
            callback = ablation.LassoOnly()
        with warnings.catch_warnings():
            # What it warns of is in the plan, just printed.
            warnings.filterwarnings("ignore", module="resrep_tf.pruning.callbacks")
            self.trainer.train(
                pruner, "prune", settings.epochs, [callback, *self._snapshots()]
            )
        # The same without replicas, which one worker can read without the others.
        plain = self._wrap(base)
        transfer(pruner, plain)
        return plain, plan

    def _snapshots(self) -> list[keras.callbacks.Callback]:
        every, trainer = self.settings.snapshot_epochs, self.trainer
        if not every:
            return []
        folder = trainer.folder / output.SNAPSHOTS
        return [Snapshots(folder, every, trainer.workers.chief)]

    def _keep(self, pruner: Any) -> dict[str, np.ndarray] | None:
        """Which channels stay, where that is not decided by training."""
        settings = self.settings
        if settings.reset:
            return None
        if settings.remove == MINIMAL:
            print("Looking for the minimal structure")
            images = self.trainer.data.evaluation()
            structure = minimal.minimal_structure(
                pruner,
                evaluation.limited(images, settings.eval_steps),
                min_width=settings.min_width,
                verbose=int(evaluation.verbosity() == 1),
            )
            print(structure)
            return structure.keep
        return ablation.keep_largest(
            pruner, settings.flops_target, settings.min_width, settings.round_to
        )

    def finish(self, base, trained):
        settings = self.settings
        pruner, plan = trained
        with output.atomic(self.trainer.folder / output.PRUNER) as path:
            pruner.save(path)
        keep = self._keep(pruner)
        slim, conversion = resrep_tf.convert(
            pruner,
            epsilon=settings.epsilon,
            keep=keep,
            drop_masked=settings.drop_masked,
            return_report=True,
        )
        print(conversion)
        if not settings.drop_masked:
            print(unforgotten(pruner, settings.epsilon), end="")
        return Outcome(slim, conversion, plan if settings.reset else None)


class OneShot(Method):
    """Choose the structure first, then train it like any model."""

    def check(self, base):
        self._student(base)

    def _student(self, base: keras.Model) -> keras.Model:
        """The model to train, the same whenever it is made."""
        settings = self.settings
        keras.utils.set_random_seed(settings.seed)
        constraints = {
            "targets": self._targets(),
            "min_width": settings.min_width,
            "round_to": settings.round_to,
        }
        with blame("method"):
            if settings.method == "finetune":
                student = keras.models.clone_model(base)
                student.set_weights(base.get_weights())
                return student
            if settings.method == "shrink":
                return criteria.shrink(base, settings.flops_target, **constraints)
            # All workers look at the same images.
            data = dataclasses.replace(self.trainer.data, num_shards=1, shard_index=0)
            losses = evaluation.compile_arguments(base, data.classes)
            return criteria.prune_by_scores(
                base,
                settings.method,
                settings.flops_target,
                data=data.train_from(0).take(BATCHES),
                loss=losses["loss"],
                seed=settings.seed,
                **constraints,
            )

    def train(self, base):
        settings, workers = self.settings, self.trainer.workers
        scratch = settings.method == "shrink"
        start = settings.base_learning_rate if scratch else settings.learning_rate
        with workers.strategy.scope():
            student = self._student(base)
            self._compile(student, start)
        if workers.chief:
            what = "Training from scratch" if scratch else "Finetuning"
            print(f"{what} ({settings.method}), {settings.epochs} epochs")
        self.trainer.train(student, "prune", settings.epochs)
        plain = keras.models.clone_model(student)
        plain.set_weights(student.get_weights())
        return plain

    def finish(self, base, trained):
        conversion = _difference(base, trained)
        print(conversion)
        return Outcome(trained, conversion)


def _difference(before: keras.Model, after: keras.Model) -> resrep_tf.ConversionReport:
    """What has become of each layer, from two plain models."""
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
