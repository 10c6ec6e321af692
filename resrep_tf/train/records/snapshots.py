"""Writes weights of a wrapped model at several epochs of its training."""

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

from resrep_tf.cli import output


class Snapshots(keras.callbacks.Callback):
    """Writes the weights before the first epoch and after every few epochs.

    Args:
        folder: The folder for them.
        every: The number of epochs between two of them.
        writes: Whether this process writes them. All workers need the callback:
            some weights are read from all of them at once.
    """

    def __init__(self, folder: Path, every: int, writes: bool = True):
        super().__init__()
        self._folder = folder
        self._every = every
        self._writes = writes

    def on_train_begin(self, logs=None):
        # A resumed run has already written them, and its weights have changed since.
        self._write(0, anew=False)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._every == 0:
            self._write(epoch + 1)

    def _write(self, epochs: int, anew: bool = True) -> None:
        weights = self.model.get_weights()
        path = self._folder / f"epoch-{epochs:06d}.npz"
        if self._writes and (anew or not path.exists()):
            with output.atomic(path) as temporary:
                np.savez(temporary, *weights)


def read(folder: Path) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yields the epoch and the weights of each snapshot in a folder, in order."""
    for path in sorted(folder.glob("epoch-*.npz")):
        with np.load(path) as archive:
            weights = [archive[f"arr_{i}"] for i in range(len(archive.files))]
        yield int(path.stem.removeprefix("epoch-")), weights
