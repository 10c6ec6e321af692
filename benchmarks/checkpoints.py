"""Measures the cost of checkpoints, as a share of training.

From the project's root:

    python benchmarks/checkpoints.py

Trains the wrapped ResNet-20 of the short CIFAR-10 recipe (batch 64, random images) with
the loop and the checkpoints of the training command. It prints the time of a step and
of a checkpoint, both medians of one run, and the share of the time that a checkpoint
every 200 steps takes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

# Both are read once, when Keras and TensorFlow are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A checkout works without being installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np

import resrep_tf
from resrep_tf import data, models
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.workers import start
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.train.checkpoints import Checkpoint, Checkpoints, Position, values
from resrep_tf.train.loop import Loop, build_state

BATCH, EVERY, LIMIT = 64, 200, 0.02


class StepTimes(keras.callbacks.Callback):
    """Records the seconds of each step."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def random_images(folder: Path) -> data.Dataset:
    rng = np.random.default_rng(0)
    path = folder / "images.npz"
    images = rng.integers(0, 256, (10 * BATCH, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, len(images))
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return data.load(f"npz:{path}", batch_size=BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    workers, times, saves = start("none"), StepTimes(), []
    pruner = resrep_tf.wrap(models.build("resnet20"), models.targets("resnet20"))
    pruner.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        snap=True,
        jit_compile=True,
        **evaluation.compile_arguments(pruner, 10),
    )
    build_state(pruner, workers.strategy)
    with tempfile.TemporaryDirectory() as folder:
        store = Checkpoints(Path(folder) / "checkpoints", keep=3)

        def save(position: Position) -> None:
            begin = time.perf_counter()
            checkpoint = Checkpoint("prune", position, [], values(pruner))
            path = store.save(checkpoint, position.steps(args.steps))
            saves.append((time.perf_counter() - begin, path.stat().st_size))

        Loop(
            pruner,
            random_images(Path(folder)),
            workers,
            epochs=1,
            steps_per_epoch=args.steps,
            callbacks=[times],
            evaluate=lambda after_batch: {},
            save=save,
            save_every=5,
            interruption=Interruption(),
            on_nan="stop",
            verbose=0,
        ).run(Position())
    step = statistics.median(times.seconds[1:])  # The first one compiles.
    save_seconds = statistics.median(seconds for seconds, _ in saves)
    share = save_seconds / (EVERY * step)
    print(
        f"step                        {1e3 * step:9.1f} ms, median of {args.steps - 1}"
    )
    print(
        f"checkpoint of {saves[-1][1] / 1e6:.1f} MB        {1e3 * save_seconds:9.1f} ms"
    )
    print(f"share, every {EVERY} steps      {share:9.2%}    (limit {LIMIT:.0%})")


if __name__ == "__main__":
    main()
