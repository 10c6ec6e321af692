"""The names that examples in docstrings and on pages use, with small values."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L

import resrep_tf


def network() -> keras.Model:
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(6, 3, padding="same", use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Conv2D(6, 3, activation="relu", name="second")(x)
    outputs = L.Dense(3, activation="softmax")(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


def names(batch_size: int = 4) -> dict:
    """Returns a model, a pruner half of whose rows are forgotten, and data."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 8, 8, 1)), rng.integers(0, 3, 80)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model = network()
    model.compile("sgd", loss)
    pruner = resrep_tf.wrap(model)
    pruner.compile("sgd", loss)
    for compactor in pruner.compactors:
        compactor.kernel.assign(np.eye(6) * [1, 0, 1, 0, 1, 0])
    return {
        "keras": keras,
        "resrep_tf": resrep_tf,
        "criteria": resrep_tf.criteria,
        "minimal_structure": resrep_tf.minimal.minimal_structure,
        "model": model,
        "pruner": pruner,
        "data": data,
        "train": data,
        "validation": data,
        "test_batches": [(x, y)],
        "loss": loss,
    }


def write_images(folder: Path, counts: dict[str, int], size: int = 16) -> None:
    """Writes dark and light images: `FOLDER/SPLIT/CLASS/NUMBER.png`."""
    rng = np.random.default_rng(0)
    for split, count in counts.items():
        for number, name in enumerate(("dark", "light")):
            (folder / split / name).mkdir(parents=True)
            for image in range(count):
                pixels = rng.integers(0, 128, (size, size, 3)) + 128 * number
                path = folder / split / name / f"{image}.png"
                keras.utils.save_img(path, pixels, scale=False)


def write_trained(path: Path) -> None:
    """Writes a model for such images."""
    inputs = keras.Input((16, 16, 3))
    x = L.Rescaling(1 / 255)(inputs)
    for _ in range(2):
        x = L.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    x = L.GlobalAveragePooling2D()(x)
    keras.Model(inputs, L.Dense(2, activation="softmax")(x)).save(path)
