"""Runs of the commands: small networks, calls, and readers of what they write."""

import contextlib
import io
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import layers

ROOT = Path(__file__).resolve().parents[2]
# The images of `--dataset=digits`, and their classes.
SHAPE, CLASSES = (8, 8, 1), 10
# Of a quick run.
BASE_EPOCHS, EPOCHS, TARGET = 2, 4, 0.4
# All files of a finished run.
FILES = {
    "base.keras",
    "metrics.csv",
    "pruned.keras",
    "pruned.tflite",
    "pruner.keras",
    "report.html",
    "report.json",
    "run.flags",
    "saved_model",
    "shrunk.keras",
    "tensorboard",
}


# === Networks ===


def digits_network(
    batchnorm: bool = True, dropout: float = 0.0, averaged: bool = False
) -> keras.Model:
    """Returns a network of two convolutions, with 8 and 12 channels.

    Args:
        batchnorm: Whether BatchNorms follow the convolutions.
        dropout: The rate of Dropouts behind them.
        averaged: Pools once and globally, instead of twice and locally. Averages do
            not jump when replicas round in another way.
    """
    x = inputs = keras.Input(SHAPE, name="image")
    padding = "valid" if averaged else "same"
    for index, width in enumerate((8, 12)):
        conv = layers.Conv2D(
            width, 3, padding=padding, use_bias=not batchnorm, name=f"conv{index}"
        )
        x = conv(x)
        if batchnorm:
            x = layers.BatchNormalization(name=f"bn{index}")(x)
        x = layers.ReLU(name=f"relu{index}")(x)
        if dropout:
            x = layers.Dropout(dropout, name=f"dropout{index}")(x)
        if not averaged:
            x = layers.MaxPooling2D(name=f"pool{index}")(x)
    last = layers.GlobalAveragePooling2D if averaged else layers.Flatten
    outputs = layers.Dense(CLASSES, name="logits")(last(name="last")(x))
    return keras.Model(inputs, outputs, name="small")


def one_convolution(
    shape: Sequence[int] = SHAPE,
    classes: int = CLASSES,
    activation: str | None = None,
    name: str = "dense",
) -> keras.Model:
    """Returns the smallest network that can be pruned."""
    inputs = keras.Input(shape)
    x = layers.Conv2D(4, 3)(inputs)
    outputs = layers.Dense(classes, activation=activation)(layers.Flatten()(x))
    return keras.Model(inputs, outputs, name=name)


def save(path: Path, make: Callable[..., keras.Model], **options: Any) -> Path:
    """Writes a network to a .keras file, always with the same weights."""
    keras.utils.set_random_seed(0)
    make(**options).save(path)
    return path


def load(path: Path) -> keras.Model:
    """Returns the model in a .keras file, without an optimizer."""
    return keras.models.load_model(path, compile=False)


# === Commands ===


def quick_flags(folder: Path) -> list[str]:
    """Returns flags of the training command for a run that takes seconds."""
    model = save(folder / "small.keras", digits_network)
    return [
        f"--arch={model}",
        "--dataset=digits",
        f"--base_epochs={BASE_EPOCHS}",
        f"--epochs={EPOCHS}",
        "--batch_size=64",
        f"--flops_target={TARGET}",
    ]


def call(function: Callable[[Sequence[str]], None], *arguments: Any) -> str:
    """Runs a command in this process and returns what it printed."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        function([str(argument) for argument in arguments])
    return text.getvalue()


def process(module: str, *arguments: Any) -> subprocess.CompletedProcess:
    """Runs a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def free_ports(number: int) -> list[int]:
    """Returns ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


# === What they write ===


def events(folder: Path) -> list[tuple[str, int, Any]]:
    """Returns all that TensorBoard would show: phase, step and value, in order."""
    found = []
    for path in sorted(folder.glob("tensorboard/**/events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [
                (path.parent.name, event.step, value) for value in event.summary.value
            ]
    assert found
    return found
