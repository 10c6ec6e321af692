"""The training command: base, pruning, conversion, export, report."""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import resrep_tf
from resrep_tf import data, models
from resrep_tf.commands import (
    architectures,
    evaluation,
    export,
    latency,
    output,
    training,
)
from resrep_tf.commands import settings as settings_module
from resrep_tf.commands.errors import blame
from resrep_tf.commands.metrics import EpochLog, MetricsFile
from resrep_tf.commands.settings import Settings
from resrep_tf.commands.table import Figures, table


def run(arguments: Sequence[str]) -> None:
    """Runs the training command on a command line without the program's name."""
    settings, flagfile = settings_module.parse(arguments)
    folder = output.choose(settings.output, settings.arch, settings.dataset)
    job = Job.prepare(settings, folder)
    output.create(folder)
    output.write_text(folder / output.FLAGS, _header(folder) + flagfile)
    print(f"Writing to {folder}")
    base = job.make_base()
    base_scores = job.evaluate(job.deployable(base), "the base")
    if settings.epochs == 0:
        print(f"base: {base_scores}\n--epochs=0: done after the base.")
        return
    pruner, plan = job.prune(base)
    slim, conversion = job.convert(pruner)
    job.report(job.deployable(base), slim, base_scores, plan, conversion)


def _header(folder: Path) -> str:
    return (
        f"# A run of resrep_tf {resrep_tf.__version__}, with every flag resolved.\n"
        f"# Repeat it: python -m resrep_tf.train --flagfile={folder / output.FLAGS}\n\n"
    )


@dataclasses.dataclass(frozen=True)
class Job:
    """A run with its data at hand.

    Attributes:
        settings: What to do.
        data: The data set.
        folder: Where results go.
        metrics: The file for each epoch's metrics.
        steps_per_epoch: Training steps of an epoch.
    """

    settings: Settings
    data: data.Dataset
    folder: Path
    metrics: MetricsFile
    steps_per_epoch: int

    @classmethod
    def prepare(cls, settings: Settings, folder: Path) -> "Job":
        """Loads the data and tries everything that can fail before training."""
        keras.utils.set_random_seed(settings.seed)
        if settings.mixed_precision != "float32":
            keras.config.set_dtype_policy(f"mixed_{settings.mixed_precision}")
        with blame("dataset"):
            dataset = data.load(
                settings.dataset,
                batch_size=settings.batch_size,
                seed=settings.seed,
                image_size=settings.image_size,
                data_dir=settings.data_dir,
                download=settings.download,
                augment=settings.augment,
            )
        steps = settings.steps_per_epoch or dataset.steps_per_epoch
        metrics = MetricsFile(folder / output.METRICS)
        job = cls(settings, dataset, folder, metrics, steps)
        if settings.epochs:
            # Not the base itself: building it draws random numbers.
            job.wrap(job.build(settings.init_weights))
        return job

    # === Base ===

    def build(self, weights: str | None = None) -> keras.Model:
        """The network, always with the same weights if none are given."""
        keras.utils.set_random_seed(self.settings.seed)
        return architectures.build(
            self.settings.arch,
            self.data.input_shape,
            self.data.classes,
            options=self.settings.arch_options,
            weight_decay=self.settings.weight_decay,
            init_weights=weights,
        )

    def make_base(self) -> keras.Model:
        """The model to prune: as given, or trained first."""
        settings = self.settings
        base = self.build(settings.init_weights)
        if settings.base_epochs:
            print(f"Training the base, {settings.base_epochs} epochs")
            rate = training.learning_rate(
                settings.base_learning_rate,
                settings.base_lr_schedule,
                settings.base_lr_boundaries,
                self.steps_per_epoch,
                settings.base_epochs,
            )
            base.compile(
                keras.optimizers.SGD(rate, momentum=settings.momentum),
                jit_compile=settings.jit_compile,
                **evaluation.compile_arguments(base, self.data.classes),
            )
            self._train(base, "base", settings.base_epochs)
            # A fresh one, so that what is saved has no optimizer.
            trained, base = base, self.build()
            base.set_weights(trained.get_weights())
        with output.atomic(self.folder / output.BASE) as path:
            self.deployable(base).save(path)
        return base

    def deployable(self, model: keras.Model) -> keras.Model:
        """The model in float32, whatever precision it is trained in."""
        if self.settings.mixed_precision == "float32":
            return model
        return architectures.in_float32(model)

    def _train(
        self,
        model: keras.Model,
        phase: str,
        epochs: int,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        log = EpochLog(phase, self.metrics, self.folder / output.TENSORBOARD)
        training.train(
            model,
            self.data,
            epochs=epochs,
            steps_per_epoch=self.steps_per_epoch,
            eval_steps=self.settings.eval_steps,
            callbacks=[*callbacks, log],
        )

    def evaluate(self, model: keras.Model, title: str) -> evaluation.Scores:
        predict = evaluation.predictor(model)
        return evaluation.evaluate(predict, self.data, title, self.settings.eval_steps)

    # === Pruning ===

    def wrap(self, base: keras.Model) -> tuple[Any, resrep_tf.Plan]:
        """The wrapped, compiled model, and what is to be expected of the run."""
        settings = self.settings
        with blame("targets"):
            pruner = resrep_tf.wrap(base, _targets(settings), settings.compactor)
        rate = training.learning_rate(
            settings.learning_rate,
            settings.lr_schedule,
            settings.lr_boundaries,
            self.steps_per_epoch,
            settings.epochs,
        )
        pruner.compile(
            keras.optimizers.SGD(rate, momentum=settings.momentum),
            compactor_optimizer=settings.compactor_momentum,
            lasso_strength=settings.lasso_strength,
            masked_strength=settings.masked_strength,
            snap=settings.snap,
            jit_compile=settings.jit_compile,
            **evaluation.compile_arguments(base, self.data.classes),
        )
        with blame("flops_target"):
            plan = resrep_tf.plan(
                pruner,
                settings.flops_target,
                settings.epochs * self.steps_per_epoch,
                **self._selection(),
            )
        return pruner, plan

    def _selection(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "warmup_steps": round(settings.warmup_epochs * self.steps_per_epoch),
            "interval": settings.selection_interval,
            "step": settings.selection_step,
            "min_width": settings.min_width,
            "round_to": settings.round_to,
            "epsilon": settings.epsilon,
            "schedule": settings.schedule,
        }

    def prune(self, base: keras.Model) -> tuple[Any, resrep_tf.Plan]:
        """Trains the wrapped model until its channels are forgotten."""
        settings = self.settings
        pruner, plan = self.wrap(base)
        print(f"Pruning, {settings.epochs} epochs\n{plan}")
        selection = resrep_tf.ChannelSelection(
            settings.flops_target, **self._selection()
        )
        with warnings.catch_warnings():
            # What it warns of is in the plan, just printed.
            warnings.filterwarnings("ignore", module="resrep_tf.callbacks")
            self._train(pruner, "prune", settings.epochs, [selection])
        with output.atomic(self.folder / output.PRUNER) as path:
            pruner.save(path)
        return pruner, plan

    # === Conversion ===

    def convert(self, pruner: Any) -> tuple[keras.Model, resrep_tf.ConversionReport]:
        """Makes the plain, narrower model and writes it in all its forms."""
        settings = self.settings
        slim, conversion = resrep_tf.convert(
            pruner,
            epsilon=settings.epsilon,
            drop_masked=settings.drop_masked,
            return_report=True,
        )
        slim = self.deployable(slim)
        print(conversion)
        if not settings.drop_masked:
            print(leftover(pruner, settings.epsilon), end="")
        print("Exporting")
        export.write(slim, self.folder)
        return slim, conversion

    def report(
        self,
        base: keras.Model,
        slim: keras.Model,
        base_scores: evaluation.Scores,
        plan: resrep_tf.Plan,
        conversion: resrep_tf.ConversionReport,
    ) -> None:
        """Measures, prints the table and writes report.json."""
        scores = self.evaluate(slim, "the pruned model")
        print("Measuring latency")
        seconds = latency.measure(
            {
                "before": evaluation.predictor(base),
                "after": evaluation.predictor(slim),
            },
            self.data.input_shape,
        )
        before = self._figures(base, output.BASE, seconds["before"], base_scores)
        after = self._figures(slim, output.PRUNED, seconds["after"], scores)
        output.write_json(
            self.folder / output.REPORT,
            {
                "arch": self.settings.arch,
                "dataset": self.settings.dataset,
                "flops_target": self.settings.flops_target,
                "before": before.to_dict(),
                "after": after.to_dict(),
                "plan": plan.to_dict(),
                "conversion": conversion.to_dict(),
                "versions": {
                    "resrep_tf": resrep_tf.__version__,
                    "keras": keras.__version__,
                    "tensorflow": tf.__version__,
                },
            },
        )
        print(f"\n{table(before, after)}\n\nEverything is in {self.folder}")

    def _figures(
        self,
        model: keras.Model,
        file: str,
        seconds: dict[int, float],
        scores: evaluation.Scores,
    ) -> Figures:
        return Figures(
            flops=resrep_tf.count_flops(model, self.data.input_shape),
            params=model.count_params(),
            bytes=output.size(self.folder / file),
            latency=seconds,
            accuracy=scores.accuracy,
            top5_accuracy=scores.top5_accuracy,
        )


def _targets(settings: Settings) -> Any:
    if settings.targets == "paper":
        return models.targets(settings.arch)
    if settings.targets == "internal":
        return None
    if settings.targets == "all":
        return "all"
    return re.compile(settings.targets)


def leftover(pruner: Any, epsilon: float) -> str:
    """Says what to do about masked rows that are not forgotten; empty if all are."""
    masked, left, largest = 0, 0, 0.0
    for compactor in pruner.compactors:
        norms = np.asarray(compactor.row_norms())
        rows = np.asarray(compactor.mask) < 0.5
        masked += int(rows.sum())
        left += int((rows & (norms >= epsilon)).sum())
        largest = max(largest, float(norms[rows].max(initial=0.0)))
    if not left:
        return ""
    return (
        f"NOTE: {left:,} of {masked:,} masked channels are not forgotten yet (norm up "
        f"to {largest:.2g}, epsilon {epsilon:g}), so they stay and less is removed "
        "than was asked for. Train for longer (`--epochs`), let the constants fit the "
        "run (`--schedule=auto`), set rows to zero when they are near it (`--snap`), "
        "or remove them as they are, at some loss: `--drop_masked`, or for this run "
        "`python -m resrep_tf.convert --pruner=pruner.keras --drop_masked`.\n"
    )
