"""A training run: base, pruning, conversion, export, report."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

import resrep_tf
from resrep_tf import data
from resrep_tf.cli import export, output
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.images import blame_images
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.models import architectures
from resrep_tf.cli.workers import Workers
from resrep_tf.evaluate import accuracy, latency
from resrep_tf.export import ExportReport, load
from resrep_tf.export.precision import in_float32
from resrep_tf.train import methods, training
from resrep_tf.train.checkpoints import Checkpoints
from resrep_tf.train.methods import Method
from resrep_tf.train.phases import BASE, ORDER, Phase, Rate, Ready
from resrep_tf.train.records import reporting
from resrep_tf.train.records.metrics import MetricsFile
from resrep_tf.train.settings import BASE_TEACHER, NO_TEACHER, Settings
from resrep_tf.train.training import Trainer


@dataclasses.dataclass(frozen=True)
class Job:
    """A run after its data have been loaded.

    Attributes:
        settings: The settings of the run.
        trainer: Trains models, on all devices.
        method: The method that prunes.
        network: The network before all training.
        base: The model to prune, or None if it must be trained first.
        ready: The model of the method's first phase, if it was made from `base`.
    """

    settings: Settings
    trainer: Trainer
    method: Method
    network: keras.Model
    base: keras.Model | None = None
    ready: Ready | None = None

    @classmethod
    def prepare(
        cls,
        settings: Settings,
        folder: Path,
        workers: Workers,
        interruption: Interruption,
    ) -> "Job":
        """Loads the data, and tries before training everything that can fail."""
        export.check(settings.export)
        keras.utils.set_random_seed(settings.seed)
        if settings.mixed_precision != "float32":
            keras.config.set_dtype_policy(f"mixed_{settings.mixed_precision}")
        _check_replicas(settings, workers)
        dataset = training.load_data(settings, workers.count, workers.index)
        # Resets the random state, which inspecting the network's pixels has changed.
        keras.utils.set_random_seed(settings.seed)
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
        method = methods.make(settings, trainer, _teacher(settings, dataset))
        job = cls(settings, trainer, method, _build(settings, dataset))
        if workers.chief:
            print(
                "".join(f"{note}\n" for note in architectures.notes(job.network)),
                end="",
            )
        return job._tried() if settings.epochs else job

    def _tried(self) -> "Job":
        """Makes the model of the method's first phase, to see whether that works.

        The model is kept if the base will not be trained any more. A model with
        replicas is made again when all workers have started.
        """
        base = self._known_base()
        model = self.network if base is None else base
        first = self.method.phases(model)[0]
        # Without a base, the untrained network shows whether flags fit, before hours
        # of training.
        ready = first.make(model, first.rate)
        if base is None or self.trainer.workers.replicated:
            return self
        return dataclasses.replace(self, base=base, ready=ready)

    @property
    def data(self) -> data.Dataset:
        return self.trainer.data

    @property
    def folder(self) -> Path:
        return self.trainer.folder

    # === The parts of a run, in order ===

    def lead(self) -> None:
        """Runs everything, as the process that writes and prints."""
        with self.trainer.together(), blame_images():
            self._lead()
        # Checkpoints are no longer needed: other files have all results now.
        self.trainer.checkpoints.remove()

    def _lead(self) -> None:
        # The metrics of finished phases; training restores its own from a checkpoint.
        self.trainer.metrics.restore(ORDER)
        base = self.make_base()
        with output.atomic(self.folder / output.BASE) as path:
            self.deployable(base).save(path)
        base_scores = self.evaluate(self.deployable(base), "the base")
        if self.settings.epochs == 0:
            print(f"base: {base_scores}\n--epochs=0: done after the base.")
            return
        outcome = self.method.finish(base, *self.train(base))
        base, slim = self.deployable(base), self.deployable(outcome.model)
        formats = self.settings.export
        images = export.inputs(self.data, formats)
        exports = export.write(slim, self.folder, formats, images)
        measured = reporting.measure(
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
            measured,
            outcome,
            self.described(exports),
            resrep_tf.explain(base),
            self.trainer.metrics.rows,
        )

    def described(self, exports: Sequence[ExportReport]) -> list[dict[str, Any]]:
        """Returns the report's entries about files: latencies, and some accuracies.

        The accuracy is measured for formats that do not compute exactly what the
        model does. For pruned.keras, it is that of the model.
        """
        files = {e.format: load(e.path) for e in exports if e.format != "keras"}
        seconds = latency.measure(files, self.data.input_shape)
        found = []
        for each in exports:
            entry = dict(export.entry(each))
            if each.format in files:
                times = seconds[each.format]
                entry["latency"] = {str(batch): time for batch, time in times.items()}
            if each.format not in export.DEFAULT:
                predict, steps = files[each.format], self.settings.eval_steps
                scores = accuracy.evaluate(predict, self.data, each.path.name, steps)
                entry["accuracy"] = scores.accuracy
            found.append(entry)
        return found

    def work(self) -> None:
        """Runs only the training, as one of the other processes.

        A signal is only recorded: all workers stop together, at the next step.
        """
        trainer = self.trainer
        with trainer.interruption.handled(at_once=False), trainer.together():
            base = self.make_base()
            if self.settings.epochs:
                self.train(base)

    def train(self, base: keras.Model) -> tuple[keras.Model, resrep_tf.Plan | None]:
        """Trains all phases of the method, on all workers.

        Returns:
            The model after the last phase, without replicas, and the plan.
        """
        model, plan, ready = base, None, self.ready
        for phase in self.method.phases(base):
            if not phase.needed(model):
                continue
            ready = ready or self.trainer.make(phase, model)
            plan = plan or ready.plan
            done = self.trainer.finished(phase, model)
            model = self.trainer.run(phase, model, ready) if done is None else done
            ready = None
        return model, plan

    # === Base ===

    def make_base(self) -> keras.Model:
        """Returns the model to prune: as given, or trained first."""
        base = self._known_base() if self.base is None else self.base
        if base is None:
            base = self.trainer.run(self._base_phase(), self.network)
        return base

    def _known_base(self) -> keras.Model | None:
        """Returns the model to prune; None if it must be trained first."""
        if not self.settings.base_epochs:
            return self.network
        return self.trainer.finished(self._base_phase(), self.network)

    def _base_phase(self) -> Phase:
        settings = self.settings
        rate = training.learning_rate(
            settings.base_learning_rate,
            settings.base_lr_schedule,
            settings.base_lr_boundaries,
            self.trainer.steps_per_epoch,
            settings.base_epochs,
        )
        return Phase(
            BASE,
            f"Training the base, {settings.base_epochs} epochs",
            range(settings.base_epochs),
            rate,
            self._compiled_base,
            self._plain_base,
            file=output.BASE,
        )

    def _compiled_base(self, network: keras.Model, rate: Rate) -> Ready:
        # A copy of the network, so that the saved one has neither replicas nor an
        # optimizer.
        base = _build(self.settings, self.data)
        self.trainer.compile(base, self.trainer.optimizer(rate))
        return Ready(base)

    def _plain_base(self, network: keras.Model, trained: keras.Model) -> keras.Model:
        network.set_weights(trained.get_weights())
        return network

    def deployable(self, model: keras.Model) -> keras.Model:
        """Returns the model in float32, whatever precision it was trained in."""
        if self.settings.mixed_precision == "float32":
            return model
        return in_float32(model)

    def evaluate(self, model: keras.Model, title: str) -> accuracy.Scores:
        """Returns the accuracy of a model on held-out images."""
        predict = accuracy.predictor(model)
        return accuracy.evaluate(predict, self.data, title, self.settings.eval_steps)


def _build(settings: Settings, dataset: data.Dataset) -> keras.Model:
    """Returns the network, always with the same weights if none are given."""
    keras.utils.set_random_seed(settings.seed)
    return architectures.build(
        settings.arch,
        dataset.input_shape,
        dataset.classes,
        options=settings.arch_options,
        weight_decay=settings.weight_decay,
        init_weights=settings.init_weights,
    )


def _teacher(settings: Settings, dataset: data.Dataset) -> keras.Model | None:
    """Returns the model that `--teacher` names by its path, if it does."""
    if settings.teacher in (NO_TEACHER, BASE_TEACHER):
        return None
    with blame("teacher"):
        teacher = keras.models.load_model(settings.teacher, compile=False)
    shape, classes = dataset.input_shape, dataset.classes
    architectures.check_fits(teacher, shape, classes, "teacher")
    return teacher


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
