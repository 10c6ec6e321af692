"""Trains the phases of a run one after the other."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from resrep_tf import data, models
from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError, blame, brief
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.models import architectures, pixels
from resrep_tf.cli.workers import Workers
from resrep_tf.data import Dataset
from resrep_tf.evaluate import accuracy
from resrep_tf.export.reading.keras_file import load_keras
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.replicas import SharedLossScaleOptimizer
from resrep_tf.train.checkpoints import (
    Checkpoint,
    Checkpoints,
    Position,
    assign,
    values,
)
from resrep_tf.train.loop import Loop, build_state
from resrep_tf.train.phases import ORDER, Phase, Rate, Ready
from resrep_tf.train.records.metrics import EpochLog, MetricsFile
from resrep_tf.train.records.progress import PhaseBar
from resrep_tf.train.settings import Settings


def load_data(settings: Settings, num_shards: int = 1, shard_index: int = 0) -> Dataset:
    """Loads the data of a run, or a worker's share, with the network's pixels."""
    shape, kind = (), architectures.kind(settings.arch)
    if kind == "file":
        model = architectures.load_file(settings.arch)
        if isinstance(model, ResRepModel):
            raise CommandError(
                "`--arch` must be a plain model; this one is wrapped already, such as "
                "pruner.keras of a run. Go on with that run by its own command, or "
                "take its shrunk.keras, which still has BatchNorms, or its base.keras. "
                f"Received: --arch={settings.arch}"
            )
        shape = model.inputs[0].shape
    elif kind == "package" and settings.dataset.startswith("folder:"):
        shape = (None, *models.default_input_shape(settings.arch))
    with blame("dataset"):
        dataset = data.load(
            settings.dataset,
            batch_size=settings.batch_size,
            seed=settings.seed,
            image_size=pixels.image_size(settings.image_size, settings.dataset, shape),
            data_dir=settings.data_dir,
            download=settings.download,
            augment=settings.augment,
            num_shards=num_shards,
            shard_index=shard_index,
        )
    return _as_wanted(settings, pixels.coloured(dataset, shape))


def _as_wanted(settings: Settings, dataset: Dataset) -> Dataset:
    """Returns the data with pixels in the network's scale."""
    kind = architectures.kind(settings.arch)
    if kind == "package" and settings.pixels == pixels.AUTO:
        return dataset
    network = architectures.build(
        settings.arch,
        dataset.input_shape,
        dataset.classes,
        options=settings.arch_options,
        init_weights=settings.init_weights,
    )
    if kind == "file":
        dataset = pixels.shown(dataset, network)
    # With published weights the head may be new, so the model cannot be tried.
    untrained = (None, models.IMAGENET)
    trained = kind == "file" or settings.init_weights not in untrained
    return pixels.for_model(dataset, settings.pixels, network, trained)


def learning_rate(
    start: float,
    schedule: str,
    boundaries: Sequence[int],
    steps_per_epoch: int,
    epochs: int,
) -> Rate:
    """Returns the learning rate as a function of the step.

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


def optimizer(rate: Rate, momentum: float, settings: Settings) -> keras.Optimizer:
    """Returns SGD; it skips bad steps if the settings say so."""
    sgd = keras.optimizers.SGD(rate, momentum=momentum)
    if settings.mixed_precision == "float16":
        return SharedLossScaleOptimizer(sgd)
    if settings.on_nan == "skip":
        # The scale stays 1: the optimizer is used only because it skips steps.
        return SharedLossScaleOptimizer(
            sgd, initial_scale=1.0, dynamic_growth_steps=2**31 - 1
        )
    return sgd


def synchronise(model: keras.Model) -> None:
    """Makes BatchNorms use the batch of all replicas."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            synchronise(layer)
        elif isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Trains the models of a run, each from its last checkpoint on.

    Attributes:
        settings: The settings of the run.
        data: The data set.
        workers: The devices and processes.
        steps_per_epoch: Training steps of an epoch.
        folder: The folder of the run.
        metrics: The file for each epoch's metrics.
        checkpoints: The run's checkpoints.
        interruption: Records signals.
    """

    settings: Settings
    data: Dataset
    workers: Workers
    steps_per_epoch: int
    folder: Path
    metrics: MetricsFile
    checkpoints: Checkpoints
    interruption: Interruption

    def optimizer(self, rate: Rate) -> keras.Optimizer:
        """Returns a new optimizer for all weights but the compactors'."""
        return optimizer(rate, self.settings.momentum, self.settings)

    def compile(
        self, model: keras.Model, optimizer: keras.Optimizer, **arguments: Any
    ) -> None:
        """Compiles a model for the data and the settings.

        Args:
            model: The model.
            optimizer: Its optimizer.
            **arguments: Further arguments of its `compile`.
        """
        settings = self.settings
        if settings.sync_batchnorm:
            synchronise(model)
        model.compile(
            optimizer,
            jit_compile=settings.jit_compile,
            **accuracy.compile_arguments(model, self.data.classes),
            **arguments,
        )

    def same_batches(self, count: int) -> tf.data.Dataset:
        """Returns the first training batches, the same ones for all workers."""
        data = dataclasses.replace(self.data, num_shards=1, shard_index=0)
        return data.train_from(0).take(count)

    # === Phases ===

    def finished(self, phase: Phase, before: keras.Model) -> keras.Model | None:
        """Returns the model after a finished phase; None if it must be trained."""
        if phase.file is None or not (self.folder / phase.file).exists():
            return None
        with blame("output"):
            trained = load_keras(self.folder / phase.file, compile=phase.keeps_state)
        return phase.plain(before, trained)

    def make(self, phase: Phase, before: keras.Model) -> Ready:
        """Makes the model of a phase, with its replicas."""
        with self.workers.strategy.scope():
            return phase.make(before, phase.rate)

    def run(
        self, phase: Phase, before: keras.Model, ready: Ready | None = None
    ) -> keras.Model:
        """Trains the model of a phase from its last checkpoint to the end.

        Args:
            phase: The phase.
            before: The model before the phase.
            ready: The phase's model, if it is made already.

        Returns:
            The trained model, without replicas.
        """
        if ready is None:
            ready = self.make(phase, before)
        if self.workers.chief:
            print(phase.title)
            for text in (ready.plan, ready.note):
                if text:
                    print(text)
        self._train(phase, ready)
        trained = phase.plain(before, ready.model)
        if phase.keeps_state and self.workers.chief:
            with output.atomic(self.folder / phase.file) as path:
                trained.save(path)
        return trained

    def _train(self, phase: Phase, ready: Ready) -> None:
        model, workers = ready.model, self.workers
        build_state(model, workers.strategy)
        start = self._resume(model, phase)
        callbacks, bar = list(ready.callbacks), None
        if workers.chief:
            folder = self.folder / output.TENSORBOARD
            callbacks.append(EpochLog(phase.name, self.metrics, folder, start.epoch))
            bar = PhaseBar(
                phase.epochs,
                self.steps_per_epoch,
                accuracy.count(self.data, self.settings.eval_steps),
                accuracy.verbosity() == 1,
            )
            callbacks.append(bar)  # After the callbacks that add to the logs.
        predict = accuracy.predictor(model, workers)
        loss = tf.function(model.loss, autograph=False, reduce_retracing=True)
        loop = Loop(
            model,
            self.data,
            workers,
            phase.epochs.stop,
            self.steps_per_epoch,
            callbacks,
            evaluate=lambda each: self._score(predict, loss, bar, each),
            save=lambda position: self._save(model, phase, position),
            save_every=self.settings.checkpoint_interval,
            over=lambda: phase.over(model),
            interruption=self.interruption,
            on_nan=self.settings.on_nan,
        )
        with accuracy.blame_images(self.data):
            loop.run(start)

    def _score(
        self,
        predict: accuracy.Predict,
        loss: accuracy.Loss,
        bar: PhaseBar | None,
        after_batch: Callable[[], None],
    ) -> dict[str, float]:
        batches = itertools.count()

        def after() -> None:
            if bar is not None:
                bar.on_test_batch_end(next(batches))
            after_batch()

        steps = self.settings.eval_steps
        scores = accuracy.score(predict, self.data, steps, loss, after)
        found = {"loss": scores.loss, "accuracy": scores.accuracy}
        if scores.top5_accuracy is not None:
            found["top5_accuracy"] = scores.top5_accuracy
        return found

    # === Checkpoints ===

    def _resume(self, model: keras.Model, phase: Phase) -> Position:
        """Restores the phase's newest checkpoint; writes one if there is none."""
        self.workers.wait()  # The chief may still write the end of another phase.
        found, chief = self.checkpoints.newest(), self.workers.chief
        if found is not None and chief:  # Even if it is of the phase before.
            self.metrics.replace(found.rows)
        elif chief:
            self.metrics.restore(ORDER[: ORDER.index(phase.name)])
        if found is None or found.phase != phase.name:
            start = Position(phase.epochs.start)
            if found is not None and found.phase == phase.after:
                start = Position(found.position.epoch)
            self._save(model, phase, start)
        else:
            assign(model, found.values)
            start = found.position
            if chief:
                print(f"Continuing after epoch {start.epoch}, step {start.step}")
        self._check_agreed(start)
        return start

    def _save(self, model: keras.Model, phase: Phase, position: Position) -> None:
        found = values(model)  # All workers call it: metrics are sums over them.
        if self.workers.chief:
            checkpoint = Checkpoint(phase.name, position, self.metrics.rows, found)
            self.checkpoints.save(checkpoint, position.steps(self.steps_per_epoch))

    def _check_agreed(self, position: Position) -> None:
        """Raises unless all workers start at the same step."""
        if self.workers.count == 1:
            return
        steps = position.steps(self.steps_per_epoch)
        if self.workers.total(steps) != steps * self.workers.replicas:
            raise CommandError(
                "`--output` must be a folder that all workers share: they have found "
                f"different checkpoints in it. Received: --output={self.folder}, step "
                f"{steps} on worker {self.workers.index}"
            )

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Turns the failure of a collective operation into a readable error.

        Not only steps are collective operations, but also the creation of variables,
        in which a worker may wait long for another one.
        """
        try:
            yield
        except tf.errors.OpError as error:
            if self.workers.count == 1 or self.interruption.requested:
                raise
            raise CommandError(
                "Training cannot continue without all workers, and one of them has "
                "ended or cannot be reached. Start all of them again with the same "
                "command: they continue from the last checkpoint. Received: "
                f"{type(error).__name__} on worker {self.workers.index} of "
                f"{self.workers.count}: {brief(error)}"
            ) from error
