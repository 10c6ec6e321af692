"""Times `convert` against copying the same model, and measures its memory.

From the project's root, on Linux:

    python benchmarks/conversion.py

For ResNet-152 and EfficientNetB7 with random weights, every space of channels
pruned to half at random, prints the seconds of `wrap`, of `convert(verify=False)` and
of `keras.models.clone_model` with `set_weights`, interleaved so that a busy machine
slows all of them, and the ratio of the last two. Then the peak of the memory that
`convert` takes on top of the model it is given, in multiples of the original weights.
"""

import argparse
import ctypes
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Both are read once, when Keras and TensorFlow are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A checkout works without being installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np

import resrep_tf

NETWORKS = ("ResNet152", "EfficientNetB7")
LIMIT = 3.0


def prepare(name: str) -> tuple[keras.Model, keras.Model, dict[str, np.ndarray]]:
    """Returns a network, the same network wrapped, and the rows to keep.

    Compactors are moved away from the identity, as if they were trained: merging a
    dense matrix is the work that a real conversion has to do.
    """
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    model = getattr(keras.applications, name)(weights=None)
    pruner = resrep_tf.wrap(model, "all")
    keep = {}
    for compactor in pruner.compactors:
        noise = 0.1 * rng.standard_normal(compactor.kernel.shape, np.float32)
        compactor.kernel.assign(np.asarray(compactor.kernel) + noise)
        keep[compactor.name] = rng.random(compactor.width) < 0.5
    return model, pruner, keep


def copy(model: keras.Model) -> keras.Model:
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def seconds(function: Callable, *args, **kwargs) -> float:
    gc.collect()  # Freeing the previous run's memory is not a part of this one.
    start = time.perf_counter()
    function(*args, **kwargs)
    return time.perf_counter() - start


def measure_time(name: str, repeats: int) -> None:
    model, pruner, keep = prepare(name)
    runs = []
    for _ in range(repeats + 1):
        copied = seconds(copy, model)
        converted = seconds(resrep_tf.convert, pruner, keep=keep, verify=False)
        runs.append((seconds(resrep_tf.wrap, model, "all"), converted, copied))
    # TensorFlow prepares its kernels at the first run of each.
    wrapped, converted, base = map(statistics.median, zip(*runs[1:], strict=True))
    print(f"{name}, {model.count_params():,} parameters, median of {repeats}")
    print(f"  wrap                      {wrapped:8.2f} s")
    print(f"  clone_model + set_weights {base:8.2f} s")
    print(f"  convert(verify=False)     {converted:8.2f} s")
    print(f"  ratio                     {converted / base:8.2f}   (limit {LIMIT:g})")


def measure_memory(name: str) -> None:
    model, pruner, keep = prepare(name)
    weights = sum(np.asarray(w).nbytes for w in model.weights)
    del model
    gc.collect()
    # The process could reuse memory that was freed but not returned to the system.
    ctypes.CDLL(None).malloc_trim(0)
    # Makes Linux forget the peak so far.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    resrep_tf.convert(pruner, keep=keep, verify=False)
    extra = resident("VmHWM") - before
    print(f"  original weights          {weights / 1e6:8.0f} MB")
    print(f"  peak of convert           {extra / 1e6:8.0f} MB")
    print(f"  ratio                     {extra / weights:8.2f}   (limit {LIMIT:g})")


def resident(field: str) -> int:
    """Returns the process's resident memory in bytes, now (VmRSS) or peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("time", "memory"))
    args = parser.parse_args()
    if args.only == "time":
        for name in args.networks:
            measure_time(name, args.repeats)
    elif args.only == "memory":
        for name in args.networks:
            measure_memory(name)
    else:
        # Each network has a process of its own: memory that one took and freed would
        # hide the memory that the next one takes.
        for name in args.networks:
            for part in ("time", "memory"):
                command = [sys.executable, __file__, "--networks", name]
                command += ["--repeats", str(args.repeats), "--only", part]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
