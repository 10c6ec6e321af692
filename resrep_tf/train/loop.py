"""The training loop of all phases, on any number of devices.

Keras's `fit` fails with several workers and cannot start in the middle of an epoch.
This loop calls the same `train_step` and the same callbacks.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import Interrupted, Interruption
from resrep_tf.cli.workers import Workers
from resrep_tf.data import Dataset
from resrep_tf.pruning.replicas import average_statistics
from resrep_tf.train.checkpoints import Position

# At most this many bad steps in a row are skipped.
MOST_SKIPPED = 20
Logs = dict[str, float]


@dataclasses.dataclass
class Loop:
    """Trains a compiled model from any position to the end.

    Attributes:
        model: The model, made in the strategy's scope.
        data: The data set.
        workers: The devices and processes.
        epochs: The last epoch's number, counted from 1.
        steps_per_epoch: Steps of an epoch.
        callbacks: Keras callbacks.
        evaluate: Returns the logs of an evaluation. Called after every epoch with a
            function that it must call after every batch.
        save: Writes a checkpoint of a position. Called on all workers.
        save_every: Steps between checkpoints.
        interruption: Records signals.
        on_nan: `"stop"` to stop at a loss that is not finite, `"skip"` to skip the
            step.
        over: Returns true if no further epoch is needed.
    """

    model: keras.Model
    data: Dataset
    workers: Workers
    epochs: int
    steps_per_epoch: int
    callbacks: Sequence[keras.callbacks.Callback]
    evaluate: Callable[[Callable[[], None]], Logs]
    save: Callable[[Position], None]
    save_every: int
    interruption: Interruption
    on_nan: str
    over: Callable[[], bool] = lambda: False

    def run(self, position: Position) -> None:
        """Trains until the last epoch is over.

        Raises:
            Interrupted: After a signal, when a checkpoint has been written.
            CommandError: If the loss is not finite.
        """
        self._skipped = 0
        self._saved = position
        with self.interruption.handled(at_once=False):
            self._run(position)

    def _run(self, position: Position) -> None:
        callbacks = keras.callbacks.CallbackList(
            list(self.callbacks),
            model=self.model,
            epochs=self.epochs,
            steps=self.steps_per_epoch,
        )
        callbacks.on_train_begin()
        step = self._make_step()
        batches = iter(self._batches(position.steps(self.steps_per_epoch)))
        for epoch in range(position.epoch, self.epochs):
            first = position.step if epoch == position.epoch else 0
            if first == 0 and self.over():
                break
            callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(epoch, first, step, batches, callbacks)
            logs |= self._evaluate(Position(epoch, self.steps_per_epoch))
            callbacks.on_epoch_end(epoch, logs)
            self.model.reset_metrics()
            self._save(Position(epoch + 1, 0))
        callbacks.on_train_end()

    def _train_epoch(
        self,
        epoch: int,
        first: int,
        step: Callable[[Any, Any], Any],
        batches: Any,
        callbacks: keras.callbacks.CallbackList,
    ) -> Logs:
        """Takes the steps of an epoch from `first` on; returns its metrics."""
        for index in range(first, self.steps_per_epoch):
            callbacks.on_train_batch_begin(index)
            asked = tf.constant(int(self.interruption.requested))
            logs, (bad, stop) = step(next(batches), asked)
            position = Position(epoch, index + 1)
            self._judge(int(bad), position)
            try:
                callbacks.on_train_batch_end(index, logs)
            except FloatingPointError as error:
                found = self._diverged("The weights are no longer numbers", position)
                raise found from error
            if int(stop):
                self._save(position)
                raise Interrupted
            if position.steps(self.steps_per_epoch) % self.save_every == 0:
                self._save(position)
        return {
            name: float(value)
            for name, value in self.model.get_metrics_result().items()
        }

    def _evaluate(self, position: Position) -> Logs:
        average_statistics(self.model)
        try:
            results = self.evaluate(self._stop_if_asked)
        except Interrupted:
            self._save(position)
            raise
        return {f"val_{name}": value for name, value in results.items()}

    def _stop_if_asked(self) -> None:
        """Raises after a signal; several workers all raise after the same batch."""
        asked = self.interruption.requested
        if self.workers.count > 1:
            asked = self.workers.total(asked)
        if asked:
            raise Interrupted

    def _save(self, position: Position) -> None:
        average_statistics(self.model)
        if not all(_is_finite(weight) for weight in self.model.trainable_variables):
            # The loss was computed before the step. If the step has made weights NaN,
            # only the next loss would show it, after they have been saved.
            raise self._diverged("The weights are no longer numbers", position)
        self.save(position)
        self._saved = position

    def _judge(self, bad: int, position: Position) -> None:
        """Skips or raises if the loss was not finite on `bad` replicas."""
        if not bad:
            self._skipped = 0
            return
        self._skipped += 1
        if self.on_nan == "skip" and self._skipped <= MOST_SKIPPED:
            if self.workers.chief:
                print(
                    "\nNOTE: a loss that is not finite, step skipped: epoch "
                    f"{position.epoch + 1}, step {position.step}"
                )
            return
        again = f" in {self._skipped} steps in a row" if self._skipped > 1 else ""
        raise self._diverged(f"The loss is no longer a number{again}", position)

    def _diverged(self, what: str, position: Position) -> CommandError:
        saved = self._saved
        return CommandError(
            f"{what}, so training has stopped. Try a lower `--learning_rate` "
            "(`--base_learning_rate` for the base), or `--on_nan=skip` if single "
            "batches are to blame. The last good checkpoint is kept, that after epoch "
            f"{saved.epoch}, step {saved.step}. Received: NaN or infinity in epoch "
            f"{position.epoch + 1}, step {position.step}"
        )

    # === Steps ===

    def _batches(self, start: int) -> Any:
        """Returns training batches from a step on, divided among the replicas."""
        batches = self.data.train_from(start)
        share = self.data.batch_size // self.workers.replicas
        if self.workers.replicas > 1:
            batches = batches.rebatch(share, drop_remainder=True)
        strategy = self.workers.strategy
        return strategy.distribute_datasets_from_function(lambda context: batches)

    def _make_step(self) -> Callable[[Any, Any], Any]:
        """Returns a function that trains one batch on all replicas.

        It returns logs and, summed over all replicas, whether the loss was bad and
        whether a signal has come.
        """
        model, strategy = self.model, self.workers.strategy
        guarded = []
        if self.on_nan == "skip":
            # Optimizers skip a bad step by themselves; statistics do not.
            guarded = model.non_trainable_variables + model.metrics_variables

        def on_replica(batch: Any, asked: tf.Tensor) -> tuple[Any, tf.Tensor]:
            before = [tf.identity(variable.value) for variable in guarded]
            logs = model.train_step(batch)
            bad = ~tf.math.is_finite(logs["loss"])
            for variable, old in zip(guarded, before, strict=True):
                variable.assign(tf.where(bad, old, variable.value))
            verdict = tf.stack([tf.cast(bad, tf.int32), asked])
            context = tf.distribute.get_replica_context()
            # So all replicas of all workers decide in the same way.
            return logs, context.all_reduce(tf.distribute.ReduceOp.SUM, verdict)

        # Without autograph, as in Keras, since layers need no conversion of Python.
        @tf.function(
            jit_compile=model.jit_compile, reduce_retracing=True, autograph=False
        )
        def on_all(batch: Any, asked: tf.Tensor) -> tuple[Any, Any]:
            return strategy.run(on_replica, args=(batch, asked))

        def step(batch: Any, asked: tf.Tensor) -> tuple[Logs, Any]:
            logs, verdict = on_all(batch, asked)
            logs = {name: self._local_mean(value) for name, value in logs.items()}
            return logs, strategy.experimental_local_results(verdict)[0].numpy()

        return step

    def _local_mean(self, value: Any) -> float:
        """Returns the mean over this process's replicas, for the progress bar."""
        values = self.workers.strategy.experimental_local_results(value)
        return float(sum(values)) / len(values)


def _is_finite(variable: keras.Variable) -> bool:
    return bool(np.isfinite(keras.ops.convert_to_numpy(variable)).all())


def build_state(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Creates the variables that Keras would otherwise create at the first step."""
    shape = [1 if size is None else size for size in model.inputs[0].shape]

    def update() -> None:
        images, labels = tf.zeros(shape), tf.zeros([1], tf.int32)
        outputs = model(images, training=False)
        model.compute_metrics(images, labels, outputs)

    with strategy.scope():
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        update_all = tf.function(lambda: strategy.run(update), autograph=False)
        # A concrete function avoids TensorFlow's warning of retracing, which counts
        # the functions of all models.
        update_all.get_concrete_function()()
        model.reset_metrics()
