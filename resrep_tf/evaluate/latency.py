"""Measures the latency of inference."""

import statistics
import time
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from resrep_tf.evaluate.accuracy import Predict

BATCHES = (1, 32)
# Each model is called `MOST` times, or after `ENOUGH` seconds only `LEAST` times.
MOST, LEAST, ENOUGH = 50, 5, 4.0


def measure(
    models: Mapping[str, Predict], input_shape: tuple[int, ...]
) -> dict[str, dict[int, float]]:
    """Returns the median seconds of a call, for each model and batch size.

    The models take turns, so that other work of the machine slows all alike.
    """
    seconds = {name: {} for name in models}
    for batch in BATCHES:
        rng = np.random.default_rng(0)
        images = tf.constant(rng.standard_normal((batch, *input_shape)), tf.float32)
        taken = _take_turns(models, images)
        for name, times in taken.items():
            seconds[name][batch] = statistics.median(times)
    return seconds


def _take_turns(
    models: Mapping[str, Predict], images: tf.Tensor
) -> dict[str, list[float]]:
    for predict in models.values():
        for _ in range(3):  # Tracing and the first allocations.
            np.asarray(predict(images))
    taken = {name: [] for name in models}
    start = time.perf_counter()
    for turn in range(MOST):
        if turn >= LEAST and time.perf_counter() - start > ENOUGH:
            break
        for name, predict in models.items():
            begin = time.perf_counter()
            np.asarray(predict(images))  # Waits for the result.
            taken[name].append(time.perf_counter() - begin)
    return taken
