"""Measures how much faster pruned networks are, depending on the budget used.

From the project's root:

    taskset -c 0 python benchmarks/latency.py --networks resnet50 --runtimes litert

Channels go by random norms, the same for all rows of a table:

* `FLOPs`: until half of the FLOPs are gone;
* `uniform`: the same share of every layer, until half of the FLOPs are gone;
* `at FLOPs`: in the bundles of the latency budget, until half of the FLOPs are gone;
* `latency`: until half of the predicted latency is gone.

For each, converted by `resrep_tf.convert`, it prints the fraction of FLOPs removed,
how many times fewer FLOPs and how many times faster than the base that is, their
ratio, and the latency predicted from the table over the measured one. All networks
of a table take turns, so that a busy machine slows all of them. One thread only: CPU
time is measured then.
"""

import argparse
import os
import sys
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

import resrep_tf
from resrep_tf import models
from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.budget.measuring import measure_latency
from resrep_tf.budget.runtimes import runtime_for
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.selection import Constraints, select
from resrep_tf.surgery.slicing import space_name

NETWORKS = {
    "resnet50": lambda: models.build("resnet50", (224, 224, 3)),
    "mobilenet_v2": lambda: keras.applications.MobileNetV2(weights=None),
    "resnet56": lambda: models.build("resnet56"),
}
RUNTIMES = ("saved_model", "litert")
TARGET = 0.5
# A latency target that is always met: only the bundles of its budget matter.
_LEAST = 1e-6
Keep = dict[int, np.ndarray]


def choices(graph: ChannelGraph, table: LatencyTable) -> dict[str, Keep]:
    """Chooses channels from the same norms by each of the budgets."""
    spaces = [space for space in graph.spaces if space.prunable and space.internal]
    rows = RowChannels.of(graph, [space.channels for space in spaces])
    rng = np.random.default_rng(0)
    norms = [rng.random(space.width) for space in spaces]
    shares = [np.arange(space.width, 0, -1) / space.width for space in spaces]

    def chosen(norms: list[np.ndarray], goals: Goals) -> Keep:
        masks = select(norms, rows, goals.budget(graph), Constraints()).masks
        return {s.index: mask > 0.5 for s, mask in zip(spaces, masks, strict=True)}

    return {
        "base": {},
        "FLOPs": chosen(norms, Goals(TARGET)),
        "uniform": chosen(shares, Goals(TARGET)),
        "at FLOPs": chosen(norms, Goals(TARGET, None, _LEAST, table)),
        "latency": chosen(norms, Goals(None, None, TARGET, table)),
    }


def convert(model: keras.Model, graph: ChannelGraph, keep: Keep) -> keras.Model:
    named = {
        space_name(graph, space): keep[space.index]
        for space in graph.spaces
        if space.index in keep
    }
    return resrep_tf.convert(resrep_tf.wrap(model), keep=named, verify=False)


def mask(graph: ChannelGraph, keep: Keep) -> np.ndarray:
    kept = np.ones(graph.num_channels, bool)
    for space in graph.spaces:
        if space.index in keep:
            kept[space.channels] = keep[space.index]
    return kept


def find_table(
    network: str, model: keras.Model, runtime: str, batch: int, args
) -> LatencyTable:
    """Reads a table from an earlier run, or measures it."""
    path = Path(args.tables) / f"{network}_{runtime}_{batch}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        measure_latency(model, runtime, batch, threads=1, rounds=args.rounds).save(path)
    return LatencyTable.load(path)


def take_turns(runs, clock, rounds: int) -> np.ndarray:
    taken = np.zeros((rounds, len(runs)))
    for run in runs:
        run()
    for number in range(rounds):
        for place, run in enumerate(runs):
            begin = clock()
            run()
            taken[number, place] = clock() - begin
    return np.median(taken, axis=0)


def compare(network: str, runtime_name: str, batch: int, args) -> None:
    """Prints one table: a network on a runtime at a batch size."""
    model = NETWORKS[network]()
    graph = ChannelGraph(model)
    table = find_table(network, model, runtime_name, batch, args)
    print(f"\n{network} on {runtime_name}, batch {batch}")
    chosen = choices(graph, table)
    slim = {name: convert(model, graph, keep) for name, keep in chosen.items()}
    flops = {name: resrep_tf.count_flops(each) for name, each in slim.items()}
    runtime = runtime_for(runtime_name, 1)
    runs = runtime.prepare(list(slim.values()), batch)
    times = take_turns(runs, runtime.clock, args.rounds)
    print("  chosen by   removed   fewer FLOPs   faster   ratio   ms   predicted")
    for (name, keep), seconds in zip(chosen.items(), times, strict=True):
        fewer = flops["base"] / flops[name]
        faster = times[0] / seconds
        predicted = table.predict(graph, mask(graph, keep)) / seconds
        print(
            f"  {name:9s} {1 - 1 / fewer:9.1%} {fewer:12.2f}x {faster:8.2f}x "
            f"{faster / fewer:7.2f} {seconds * 1e3:7.2f} {predicted:7.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--tables", default="latency_tables", help="folder for measured tables"
    )
    parser.add_argument(
        "--quick", action="store_true", help="ResNet-56 at batch 1, few rounds"
    )
    args = parser.parse_args()
    if args.quick:
        args.networks, args.batches, args.rounds = ["resnet56"], [1], 5
    for network in args.networks:
        for runtime in args.runtimes:
            for batch in args.batches:
                compare(network, runtime, batch, args)


if __name__ == "__main__":
    main()
