"""Prunes many random graphs, and measures how exact that is.

From the project's root:

    python benchmarks/random_graphs.py --first 0 --last 3000

Each graph is made of random blocks (subclassed ones, groups, shared channels and
shuffles among them) with random weights; about half of its channels are removed. All
checks that the tests make of such a graph are made. It prints each graph that fails,
then the largest difference between outputs of the wrapped and of the converted models,
relative to their scale, in float32 and in float64, and the number of graphs whose
difference only rounding explains (see `resrep_tf/surgery/rounding.py`).
"""

import argparse
import os
import sys
from pathlib import Path

# Both are read once, when Keras and TensorFlow are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A checkout works without being installed. Graphs and checks are those of the tests.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import keras

from resrep_tf.surgery.verify import compare
from support.checks import TOLERANCE, alive, outputs
from support.models.random_graphs import dtype_of, prune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=100)
    args = parser.parse_args()
    worst = dict.fromkeys(TOLERANCE, 0.0)
    pruned, living, failed, rounded = 0, 0, [], []
    for seed in range(args.first, args.last):
        keras.utils.clear_session(free_memory=seed % 20 == 0)
        keras.utils.set_random_seed(seed)
        try:
            models = prune(seed)
        except Exception as error:  # One failure must not hide the next.
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            failed.append(seed)
            continue
        if models is None:
            continue
        wrapped, slim = map(outputs, models)
        dtype, difference = dtype_of(seed), compare(wrapped, slim)
        pruned += 1
        living += bool(alive(slim))
        worst[dtype] = max(worst[dtype], difference)
        if difference > TOLERANCE[dtype]:
            rounded.append(seed)
    print(f"graphs {args.first} to {args.last - 1}: {pruned} with something to prune,")
    print(f"{living} of them with outputs that depend on the inputs")
    for dtype, difference in worst.items():
        print(f"  largest difference in {dtype}: {difference:.1e}")
    print(f"  above {TOLERANCE}, explained by rounding: {rounded}")
    print(f"  failed: {failed}")


if __name__ == "__main__":
    main()
