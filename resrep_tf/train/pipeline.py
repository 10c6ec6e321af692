"""The training command: base, pruning, conversion, export, report."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import keras

import resrep_tf
from resrep_tf import data
from resrep_tf.cli import architectures, export, output
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.workers import Workers, start
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train import methods, reporting, training
from resrep_tf.train import settings as settings_module
from resrep_tf.train.checkpoints import Checkpoints
from resrep_tf.train.methods import Method
from resrep_tf.train.metrics import MetricsFile
from resrep_tf.train.settings import Settings
from resrep_tf.train.training import Trainer


def run(arguments: Sequence[str]) -> None:
    """Runs the training command on a command line without the program's name."""
    settings, flagfile = settings_module.parse(arguments)
    folder = output.choose(settings.output, settings.arch, settings.dataset, flagfile)
    if complete(settings, folder):
        print(f"This run is complete. To repeat it, remove {folder}.\n")
        print(_finished(folder))
        return
    workers, interruption = start(settings.strategy), Interruption()
    with interruption.watching():
        if workers.chief:
            output.check(folder)  # Before the data are loaded.
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


def complete(settings: Settings, folder: Path) -> bool:
    """Whether a folder holds the whole of a run; raises if that is another run."""
    if not output.holds_run(folder):
        return False
    _check_same(settings, folder)
    return (folder / output.REPORT).exists()


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
        method: Prunes.
    """

    settings: Settings
    trainer: Trainer
    method: Method

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
        dataset = training.load_data(settings, workers.count, workers.index)
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
        job = cls(settings, trainer, methods.make(settings, trainer))
        if settings.epochs:
            # Not the base itself: building it draws random numbers.
            job.method.check(job.build(settings.init_weights))
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
        with self.trainer.together():
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
        outcome = self.method.finish(base, self.method.train(base))
        base, slim = self.deployable(base), self.deployable(outcome.model)
        export.write(slim, self.folder, self.settings.export)
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
            outcome,
            resrep_tf.explain(base),
            self.trainer.metrics.rows,
        )

    def work(self) -> None:
        """Does another worker's part: training.

        A signal is noted only: all workers stop together, at the next step.
        """
        trainer = self.trainer
        with trainer.interruption.handled(at_once=False), trainer.together():
            base = self.make_base()
            if self.settings.epochs:
                self.method.train(base)

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
        if self.trainer.workers.chief:
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
