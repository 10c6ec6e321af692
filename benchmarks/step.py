"""Times training steps: plain, wrapped, and shrunk by half of the FLOPs.

From the project's root:

    taskset -c 0 python benchmarks/step.py
    taskset -c 0 python benchmarks/step.py --network resnet50 --batch_size 8

All take turns on the same batch, so that a busy machine slows all of them, and CPU time
is measured. Prints the median step of each and its ratio to the plain one. Two more
lines tell where the time of the wrapped one goes: a step with the compactors as
ordinary layers, trained as all others are, and the multiplications of the compactors
alone, forwards and backwards. Last comes what a whole pruning run costs, compared with
training the plain network for as many steps: it is wrapped until everything is
forgotten, as each schedule plans it, and shrunk after. Without XLA, which Keras takes
where it can and which is slower on a CPU.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

# All are read once, when Keras and TensorFlow are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

# A checkout works without being installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import tensorflow as tf

import resrep_tf
from resrep_tf import models
from resrep_tf.budget.combined import CombinedBudget, Goal
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.selection.selection import Constraints, select

# Input shape and classes.
NETWORKS = {
    "resnet20": ((32, 32, 3), 10),
    "resnet56": ((32, 32, 3), 10),
    "resnet50": ((224, 224, 3), 1000),
}
TARGET = 0.5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sgd() -> keras.Optimizer:
    return keras.optimizers.SGD(0.01, momentum=0.9)


def mask_randomly(pruner: resrep_tf.ResRepModel) -> None:
    """Masks rows at random until the target is met."""
    rng = np.random.default_rng(0)
    budget = CombinedBudget([Goal(FlopsMeter.of(pruner.graph), TARGET)])
    norms = [rng.random(compactor.width) for compactor in pruner.compactors]
    chosen = select(norms, pruner.compactor_channels(), budget, Constraints())
    pruner.set_masks(chosen.masks)


def forget(pruner: resrep_tf.ResRepModel) -> None:
    for compactor in pruner.compactors:
        kernel = np.asarray(compactor.kernel)
        compactor.kernel.assign(kernel * (np.asarray(compactor.mask) > 0.5))


def networks(name: str, x: np.ndarray) -> dict[str, keras.Model]:
    """Returns the network plain, wrapped with half of it masked, and shrunk."""
    shape, classes = NETWORKS[name]
    plain = models.build(name, shape, classes)
    wrapped = resrep_tf.wrap(plain, targets=models.targets(name))
    for model in (plain, wrapped):
        model.compile(sgd(), LOSS, metrics=["accuracy"], jit_compile=False)
    mask_randomly(wrapped)
    forgotten = resrep_tf.wrap(plain, targets=models.targets(name))
    forgotten.compile(sgd(), LOSS)
    mask_randomly(forgotten)
    forget(forgotten)
    shrunk = resrep_tf.shrink(forgotten, x, verify=False)
    shrunk.compile(sgd(), LOSS, metrics=["accuracy"], jit_compile=False)
    copy = resrep_tf.wrap(plain, targets=models.targets(name))
    layers = keras.Model(copy.inputs, copy.outputs)
    layers.compile(sgd(), LOSS, metrics=["accuracy"], jit_compile=False)
    return {"plain": plain, "wrapped": wrapped, "shrunk": shrunk, "layers": layers}


def training(model: keras.Model, batch: tuple, steps: int) -> Callable[[], None]:
    """Returns a function that trains for some steps, always on the same batch."""
    data = tf.data.Dataset.from_tensors(batch).cache().repeat()

    def run() -> None:
        # Without `fit` of the wrapped model, which asks for a selection.
        keras.Model.fit(model, data, steps_per_epoch=steps, shuffle=False, verbose=0)

    return run


def products(
    pruner: resrep_tf.ResRepModel, batch_size: int, steps: int
) -> Callable[[], None]:
    """Returns a function that does what compactors multiply in some steps."""
    compactors = pruner.compactors
    inputs = [tf.random.normal((batch_size, *c.input.shape[1:])) for c in compactors]

    @tf.function
    def multiply() -> list[tf.Tensor]:
        found = []
        for compactor, x in zip(compactors, inputs, strict=True):
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = compactor(x)
            sources = [x, compactor.kernel.value]
            found += [outputs, *tape.gradient(outputs, sources, output_gradients=x)]
        return found

    def run() -> None:
        for _ in range(steps):
            multiply()

    return run


def measure(
    runs: dict[str, Callable[[], None]], steps: int, rounds: int
) -> dict[str, float]:
    """Returns the median CPU seconds of a step, by name."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if turn:  # The first one compiles.
                times[name].append((time.process_time() - start) / steps)
    return {name: float(np.median(found)) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each network")
    parser.add_argument(
        "--total_steps", type=int, default=7810, help="steps of the run that is costed"
    )
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    shape, classes = NETWORKS[args.network]
    x = rng.normal(size=(args.batch_size, *shape)).astype("float32")
    batch = (x, rng.integers(0, classes, args.batch_size))
    found = networks(args.network, x)
    runs = {name: training(model, batch, args.steps) for name, model in found.items()}
    runs["products"] = products(found["wrapped"], args.batch_size, args.steps)
    times = measure(runs, args.steps, args.rounds)
    for name, seconds in times.items():
        print(f"{name:<10}{1000 * seconds:10.1f} ms{seconds / times['plain']:8.3f}")
    for schedule in ("auto", "informed"):
        plan = resrep_tf.plan(
            found["wrapped"], TARGET, args.total_steps, schedule=schedule
        )
        share = plan.forgotten_by / plan.total_steps
        cost = share * times["wrapped"] + (1 - share) * times["shrunk"]
        print(f"run, {schedule:<14}{cost / times['plain']:8.3f}")


if __name__ == "__main__":
    main()
