"""The training command: base, pruning, conversion, export, report."""

import dataclasses
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import resrep_tf
from resrep_tf import data, models
from resrep_tf.commands import (
    architectures,
    evaluation,
    export,
    output,
    reporting,
    training,
)
from resrep_tf.commands import settings as settings_module
from resrep_tf.commands.checkpoints import Checkpoints, transfer
from resrep_tf.commands.errors import CommandError, blame
from resrep_tf.commands.interruption import Interruption
from resrep_tf.commands.metrics import MetricsFile
from resrep_tf.commands.settings import Settings
from resrep_tf.commands.training import Trainer
from resrep_tf.commands.workers import Workers, start


def run(arguments: Sequence[str]) -> None:
    """Runs the training command on a command line without the program's name."""
    settings, flagfile = settings_module.parse(arguments)
    folder = output.choose(settings.output, settings.arch, settings.dataset, flagfile)
    if output.holds_run(folder):
        _check_same(settings, folder)
        if (folder / output.REPORT).exists():
            print(f"This run is complete. To repeat it, remove {folder}.\n")
            print(_finished(folder))
            return
    workers, interruption = start(settings.strategy), Interruption()
    with interruption.watching():
        job = Job.prepare(settings, folder, workers, interruption)
        if not workers.chief:
            job.work()
            return
        output.create(folder)
        if not output.holds_run(folder):
            output.write_text(folder / output.FLAGS, _header(folder) + flagfile)
        with output.locked(folder):
            print(f"Writing to {folder}")
            job.lead()


def _check_same(settings: Settings, folder: Path) -> None:
    """Raises if a folder holds a run with other settings."""
    then, _ = settings_module.parse([f"--flagfile={folder / output.FLAGS}"])
    differences = settings_module.differences(then, settings)
    if differences:
        raise CommandError(
            f"`--output` holds another run: {'; '.join(differences)}. Name another "
            "folder, or give the same flags to go on with that run. "
            f"Received: --output={folder}"
        )


def _header(folder: Path) -> str:
    return (
        f"# A run of resrep_tf {resrep_tf.__version__}, with every flag resolved.\n"
        f"# Repeat it: python -m resrep_tf.train --flagfile={folder / output.FLAGS}\n\n"
    )


def _finished(folder: Path) -> str:
    report = json.loads((folder / output.REPORT).read_text("utf-8"))
    return reporting.summary(report, folder)


@dataclasses.dataclass(frozen=True)
class Job:
    """A run with its data at hand.

    Attributes:
        settings: What to do.
        trainer: Trains models, on all devices.
    """

    settings: Settings
    trainer: Trainer

    @classmethod
    def prepare(
        cls,
        settings: Settings,
        folder: Path,
        workers: Workers,
        interruption: Interruption,
    ) -> "Job":
        """Loads the data and tries everything that can fail before training."""
        keras.utils.set_random_seed(settings.seed)
        if settings.mixed_precision != "float32":
            keras.config.set_dtype_policy(f"mixed_{settings.mixed_precision}")
        _check_replicas(settings, workers)
        with blame("dataset"):
            dataset = data.load(
                settings.dataset,
                batch_size=settings.batch_size,
                seed=settings.seed,
                image_size=settings.image_size,
                data_dir=settings.data_dir,
                download=settings.download,
                augment=settings.augment,
                num_shards=workers.count,
                shard_index=workers.index,
            )
        trainer = Trainer(
            settings,
            dataset,
            workers,
            settings.steps_per_epoch or dataset.steps_per_epoch,
            folder,
            MetricsFile(folder / output.METRICS),
            Checkpoints(folder / output.CHECKPOINTS, settings.keep_checkpoints),
            interruption,
        )
        job = cls(settings, trainer)
        if settings.epochs:
            # Not the base itself: building it draws random numbers.
            job.wrap(job.build(settings.init_weights))
        return job

    @property
    def data(self) -> data.Dataset:
        return self.trainer.data

    @property
    def folder(self) -> Path:
        return self.trainer.folder

    @property
    def steps_per_epoch(self) -> int:
        return self.trainer.steps_per_epoch

    # === The whole of it ===

    def lead(self) -> None:
        """Does everything, and writes and prints it."""
        self._lead()
        self.trainer.checkpoints.remove()  # What is in them is in other files now.

    def _lead(self) -> None:
        base = self.make_base()
        with output.atomic(self.folder / output.BASE) as path:
            self.deployable(base).save(path)
        base_scores = self.evaluate(self.deployable(base), "the base")
        if self.settings.epochs == 0:
            print(f"base: {base_scores}\n--epochs=0: done after the base.")
            return
        pruner, plan = self.prune(base)
        with output.atomic(self.folder / output.PRUNER) as path:
            pruner.save(path)
        slim, conversion = self.convert(pruner)
        base = self.deployable(base)
        figures = reporting.measure(
            {"before": base, "after": slim},
            {"before": base_scores, "after": self.evaluate(slim, "the pruned model")},
            {
                "before": self.folder / output.BASE,
                "after": self.folder / output.PRUNED,
            },
            self.data.input_shape,
        )
        reporting.write(
            self.folder,
            self.settings,
            figures,
            plan,
            conversion,
            resrep_tf.explain(base),
            self.trainer.metrics.rows,
        )

    def work(self) -> None:
        """Does another worker's part: training."""
        base = self.make_base()
        if self.settings.epochs:
            self.prune(base)

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
        if not settings.base_epochs:
            return self.build(settings.init_weights)
        base = self.build()
        if (self.folder / output.BASE).exists():  # Of the run that is taken up.
            trained = keras.models.load_model(self.folder / output.BASE, compile=False)
        else:
            trained = self._train_base()
        # A fresh one, so that what is saved has no optimizer.
        base.set_weights(trained.get_weights())
        return base

    def _train_base(self) -> keras.Model:
        settings = self.settings
        print(f"Training the base, {settings.base_epochs} epochs")
        rate = training.learning_rate(
            settings.base_learning_rate,
            settings.base_lr_schedule,
            settings.base_lr_boundaries,
            self.steps_per_epoch,
            settings.base_epochs,
        )
        with self.trainer.workers.strategy.scope():
            base = self.build(settings.init_weights)
            if settings.sync_batchnorm:
                training.synchronise(base)
            base.compile(
                training.optimizer(rate, settings.momentum, settings),
                jit_compile=settings.jit_compile,
                **evaluation.compile_arguments(base, self.data.classes),
            )
        self.trainer.train(base, "base", settings.base_epochs)
        return base

    def deployable(self, model: keras.Model) -> keras.Model:
        """The model in float32, whatever precision it is trained in."""
        if self.settings.mixed_precision == "float32":
            return model
        return architectures.in_float32(model)

    def evaluate(self, model: keras.Model, title: str) -> evaluation.Scores:
        predict = evaluation.predictor(model)
        return evaluation.evaluate(predict, self.data, title, self.settings.eval_steps)

    # === Pruning ===

    def wrap(self, base: keras.Model) -> tuple[Any, resrep_tf.Plan]:
        """The wrapped, compiled model, and what is to be expected of the run."""
        settings = self.settings
        with blame("targets"):
            pruner = resrep_tf.wrap(base, _targets(settings), settings.compactor)
        if settings.sync_batchnorm:
            training.synchronise(pruner)
        rate = training.learning_rate(
            settings.learning_rate,
            settings.lr_schedule,
            settings.lr_boundaries,
            self.steps_per_epoch,
            settings.epochs,
        )
        pruner.compile(
            training.optimizer(rate, settings.momentum, settings),
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
        with self.trainer.workers.strategy.scope():
            pruner, plan = self.wrap(base)
        if self.trainer.workers.chief:
            print(f"Pruning, {settings.epochs} epochs\n{plan}")
        selection = resrep_tf.ChannelSelection(
            settings.flops_target,
            total_steps=settings.epochs * self.steps_per_epoch,
            **self._selection(),
        )
        with warnings.catch_warnings():
            # What it warns of is in the plan, just printed.
            warnings.filterwarnings("ignore", module="resrep_tf.callbacks")
            self.trainer.train(pruner, "prune", settings.epochs, [selection])
        # The same without replicas, which one worker can read without the others.
        plain, _ = self.wrap(base)
        transfer(pruner, plain)
        return plain, plan

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


def _check_replicas(settings: Settings, workers: Workers) -> None:
    if workers.replicas == 1:
        return
    if settings.jit_compile:
        raise CommandError(
            "`--jit_compile` works on one device only: TensorFlow cannot compile a "
            f"step over several. Received: --jit_compile on {workers.describe()}"
        )
    if settings.batch_size % workers.replicas:
        raise CommandError(
            "`--batch_size` counts the images of all devices together and must be "
            f"divisible by their number. Received: --batch_size={settings.batch_size} "
            f"on {workers.describe()}"
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
