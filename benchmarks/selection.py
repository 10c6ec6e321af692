"""Times channel selection on the channels of a ResNet-50.

From the project's root:

    python benchmarks/selection.py

Prints the median time of one selection to 54.5 % fewer FLOPs with the incremental
meter, the same with all FLOPs recounted for every masked row, their ratio, and how
the time grows with the number of channels.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# A checkout works without being installed.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.graph.terms import Term, count
from resrep_tf.selection.selection import Constraints, select

# Blocks and internal width of each stage.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
TARGET = 0.545


def resnet50(scale: int = 1) -> tuple[list[Term], list[np.ndarray], int]:
    """Builds the terms of ResNet-50 (v1.5, 224 x 224) with `scale` times the width.

    Returns:
        The terms, the two internal spaces of every block, and the number of channels.
    """
    channels = 0

    def space(width: int) -> np.ndarray:
        nonlocal channels
        channels += width
        return np.arange(channels - width, channels)

    def conv(name: str, kernel: int, size: int, inputs, outputs) -> None:
        terms.append(Term(name, kernel**2 * size**2, (inputs, outputs)))

    terms: list[Term] = []
    internal: list[np.ndarray] = []
    stream = space(64 * scale)
    conv("conv1", 7, 112, space(3), stream)
    size = 56
    for stage, (blocks, width) in enumerate(STAGES, start=1):
        inputs, stream = stream, space(4 * width * scale)
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            # The 3x3 convolution of a stage's first block halves the resolution.
            halve = 2 if stage > 1 and block == 1 else 1
            first, second = space(width * scale), space(width * scale)
            internal += [first, second]
            conv(f"{name}_conv1", 1, size, inputs, first)
            size //= halve
            conv(f"{name}_conv2", 3, size, first, second)
            conv(f"{name}_conv3", 1, size, second, stream)
            if block == 1:
                conv(f"{name}_shortcut", 1, size, inputs, stream)
            inputs = stream
    conv("classifier", 1, 1, stream, space(1000))
    return terms, internal, channels


def select_by_recount(
    norms: list[np.ndarray], spaces: list[np.ndarray], terms: list[Term], channels: int
) -> int:
    """Selects as `select` does, but recounts all FLOPs for every masked row.

    Returns:
        The number of masked rows.
    """
    keep = np.ones(channels, bool)
    owners = np.repeat(np.arange(len(spaces)), [len(space) for space in spaces])
    ids = np.concatenate(spaces)
    widths = [len(space) for space in spaces]
    total = count(terms)
    masked = 0
    for row in np.argsort(np.concatenate(norms), kind="stable"):
        if widths[owners[row]] == 1:
            continue
        widths[owners[row]] -= 1
        keep[ids[row]] = False
        masked += 1
        if (total - count(terms, keep)) / total >= TARGET:
            break
    return masked


def timed(function: Callable, *args) -> tuple[float, Any]:
    """Returns the seconds a call takes, and its result.

    Both ways to select use one thread, so that CPU time is the time on a quiet machine.
    """
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def compare_with_recount(repeats: int) -> None:
    """Prints the times of both ways to select, which must agree, and their ratio."""
    terms, spaces, channels = resnet50()
    meter = FlopsMeter(terms, channels)
    rng = np.random.default_rng(0)
    incremental, recount = [], []
    for _ in range(repeats):  # Interleaved, so that a busy machine slows both.
        norms = [rng.random(len(space)) for space in spaces]
        seconds, selection = timed(select, norms, spaces, meter, Constraints(TARGET))
        incremental.append(seconds)
        seconds, masked = timed(select_by_recount, norms, spaces, terms, channels)
        recount.append(seconds)
        if masked != selection.masked:
            raise RuntimeError(f"Masked {selection.masked} rows, recount {masked}.")
    fast, slow = statistics.median(incremental), statistics.median(recount)
    rows = sum(map(len, spaces))
    print(f"ResNet-50, {rows:,} rows, last selection: {selection}")
    print(f"incremental meter   {fast * 1e3:10.2f} ms  (median of {repeats})")
    print(f"recount every pick  {slow * 1e3:10.2f} ms")
    print(f"ratio               {slow / fast:10.1f} x")


def measure_scaling(repeats: int, scales: tuple[int, ...] = (1, 2, 4, 8)) -> None:
    """Prints the time of a selection for wider and wider networks."""
    rng = np.random.default_rng(0)
    times: dict[int, list[float]] = {scale: [] for scale in scales}
    cases = {}
    for scale in scales:
        terms, spaces, channels = resnet50(scale)
        cases[scale] = spaces, FlopsMeter(terms, channels)
    for _ in range(repeats):
        for scale, (spaces, meter) in cases.items():
            norms = [rng.random(len(space)) for space in spaces]
            times[scale].append(
                timed(select, norms, spaces, meter, Constraints(TARGET))[0]
            )
    print("\nchannels   rows     median ms   us per row")
    for scale in scales:
        rows = sum(map(len, cases[scale][0]))
        seconds = statistics.median(times[scale])
        print(
            f"{scale:6d} x {rows:7,} {seconds * 1e3:12.2f} {seconds * 1e6 / rows:12.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    compare_with_recount(repeats)
    measure_scaling(repeats)


if __name__ == "__main__":
    main()
