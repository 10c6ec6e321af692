"""Losses and weights that are not finite."""

from collections.abc import Collection, Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import resrep_tf
from resrep_tf import data
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.workers import start as start_workers
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train import settings as settings_module
from resrep_tf.train import training
from resrep_tf.train.checkpoints import Position, values
from resrep_tf.train.loop import Loop, build_state


def spoilt(steps: Collection[int]):
    """Training data with images of NaN at some steps."""
    whole = data.Dataset.train_from

    def train_from(self, step=0):
        def spoil(index, batch):
            bad = tf.reduce_any(index == tf.constant(list(steps), tf.int64))
            return tf.where(bad, np.nan, batch[0]), batch[1]

        return whole(self, step).enumerate(step).map(spoil)

    return train_from


def train(
    on_nan: str,
    wrapped: bool,
    saved: list[Position],
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> keras.Model:
    """Trains for 40 steps, and notes when checkpoints are written."""
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(6, 3, name="conv")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    callbacks, arguments = list(callbacks), {}
    if wrapped:
        model = resrep_tf.wrap(model, "conv")
        callbacks += [resrep_tf.ChannelSelection(0.3, 2, 5, schedule="auto")]
        arguments = {"snap": True}
    settings, _ = settings_module.parse([f"--on_nan={on_nan}"])
    model.compile(
        training.optimizer(0.1, 0.9, settings),
        **evaluation.compile_arguments(model, 10),
        **arguments,
    )
    workers = start_workers("none")
    build_state(model, workers.strategy)
    Loop(
        model,
        data.load("digits", batch_size=16),
        workers,
        epochs=2,
        steps_per_epoch=20,
        callbacks=callbacks,
        evaluate=lambda after_batch: {},
        save=saved.append,
        save_every=3,
        interruption=Interruption(),
        on_nan=on_nan,
    ).run(Position())
    return model


@pytest.mark.parametrize("wrapped", [False, True])
def test_bad_steps_are_skipped_without_a_trace(monkeypatch, capsys, wrapped):
    monkeypatch.setattr(data.Dataset, "train_from", spoilt({4, 5, 30}))
    saved = []
    model = train("skip", wrapped, saved)
    assert capsys.readouterr().out.count("step skipped") == 3
    assert saved[-1] == Position(2, 0)
    for value in values(model):
        assert np.isfinite(value).all()
    # Of 40 batches, three were no steps.
    assert int(model.optimizer.iterations) == 37


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_bad_step_ends_the_run_and_is_not_saved(monkeypatch, wrapped):
    monkeypatch.setattr(data.Dataset, "train_from", spoilt({5}))
    saved = []
    with pytest.raises(
        CommandError,
        match=r"after epoch 0, step 3\. Received: NaN or infinity in epoch 1, step 6",
    ):
        train("stop", wrapped, saved)
    assert saved == [Position(0, 3)]


class Overflow(keras.callbacks.Callback):
    """A step whose loss was a number still and whose result is none."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            bias = self.model.trainable_variables[1]
            bias.assign(np.full(bias.shape, np.inf))


def test_bad_weights_are_not_saved():
    saved = []
    with pytest.raises(CommandError, match=r"The weights are no longer.*step 6"):
        train("stop", wrapped=False, saved=saved, callbacks=[Overflow()])
    assert saved == [Position(0, 3)]


def test_bad_steps_without_end_are_not_skipped(monkeypatch):
    monkeypatch.setattr(data.Dataset, "train_from", spoilt(range(4, 40)))
    with pytest.raises(CommandError, match="in 21 steps in a row"):
        train("skip", wrapped=False, saved=[])
