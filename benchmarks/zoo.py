"""Measures what can be pruned in the networks of keras.applications and keras-hub.

From the project's root:

    python benchmarks/zoo.py [--networks REGEX] [--fresh]

Measures the networks of `tests/support/models/networks.py` that have no figures in
`benchmarks/zoo.json` yet (with `--fresh`, all that the expression finds), one after
the other, and writes `docs/zoo.md` from that file. An interrupted run can be taken up.
Networks of keras-hub are left as they are if it is not installed.
"""

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

# Both are read once, when Keras and TensorFlow are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# A checkout works without being installed; networks are randomised as in its tests.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import keras
import numpy as np

import resrep_tf
from resrep_tf.graph import terms
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.rules import rule_for
from resrep_tf.surgery.verify import compare
from support.checks import TOLERANCE, forget_at_random, outputs, precision, randomise
from support.models.hub_presets import TRANSFORMERS
from support.models.networks import HUB, NETWORKS, Network

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "zoo.json"
PAGE = ROOT / "docs" / "zoo.md"
TARGETS = {"internal": None, "all": "all"}

Row = dict[str, Any]  # A network's figures, JSON-compatible.


# === Measuring ===


def measure(network: Network) -> Row:
    row = coverage(network.build(network.size))
    keras.utils.clear_session()
    for key, targets in TARGETS.items():
        if row["reduction"][key] > 0:
            row[key] = convert_half(randomise(network.build()), targets)
    differences = [row[key]["difference"] for key in TARGETS if key in row]
    if max(differences, default=0.0) > TOLERANCE["float32"]:
        with precision("float64"):
            row["float64"] = convert_half(randomise(network.build()), "all")
    return {**row, "environment": environment(network)}


def coverage(model: keras.Model) -> Row:
    """Returns figures of `explain`, and the share of MACs that pruning can reduce."""
    explanation = resrep_tf.explain(model)
    graph = ChannelGraph(model)
    total = terms.count(graph.terms)
    prunable = {}
    for key in TARGETS:
        channels = np.zeros(graph.num_channels, bool)
        for space in graph.spaces:
            if space.prunable and (space.internal or key == "all"):
                channels[space.channels] = True
        touched = [t for t in graph.terms if any(channels[f].any() for f in t.factors)]
        prunable[key] = terms.count(touched) / total
    return {
        "macs": total,
        "prunable": prunable,
        "reduction": {
            "internal": 1 - explanation.smallest_flops / total,
            "all": 1 - explanation.smallest_flops_all / total,
        },
        "pinned": pinned(explanation),
        "uncounted": uncounted(graph),
    }


def pinned(explanation: resrep_tf.Explanation) -> list[Row]:
    """Returns the layers that cannot be pruned, by reason, with their share of MACs."""
    found: dict[str, Row] = {}
    for layer in explanation.layers:
        if layer.status == "pinned":
            # Reasons that differ in names only are one reason.
            reason = re.sub(r"`[^`]+` \((\w+)\)", r"a `\1`", layer.reason)
            reason = re.sub(r"of (`[^`]+`(, )?)+ are", "of these layers are", reason)
            item = found.setdefault(reason, {"reason": reason, "share": 0, "names": []})
            item["share"] += layer.share
            item["names"].append(layer.name)
    return sorted(found.values(), key=lambda item: -item["share"])


def uncounted(graph: ChannelGraph) -> dict[str, int]:
    """Counts layers with kernels inside of opaque ones, whose MACs are not counted."""
    found: dict[str, int] = {}
    for calls in graph.calls_by_op():
        weights = getattr(calls[0].op, "weights", [])
        if rule_for(calls[0].op).opaque and any(len(w.shape) > 1 for w in weights):
            found[calls[0].kind] = found.get(calls[0].kind, 0) + 1
    return found


def convert_half(model: keras.Model, targets: str | None) -> dict[str, float]:
    """Wraps, prunes half of every space at random, converts and compares."""
    start = time.perf_counter()
    pruner = resrep_tf.wrap(model, targets)
    wrapped = time.perf_counter() - start
    forget_at_random(pruner, np.random.default_rng(0))
    start = time.perf_counter()
    slim = resrep_tf.convert(pruner, verify=False)
    converted = time.perf_counter() - start
    difference = compare(outputs(pruner), outputs(slim))
    return {"wrap": wrapped, "convert": converted, "difference": difference}


def environment(network: Network) -> str:
    """Returns the versions and the machine that the figures were measured with."""
    packages = ["keras", "tensorflow", "numpy"]
    packages += ["keras-hub"] if network in HUB else []
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    python = f"Python {platform.python_version()}"
    # The cores that this process may use, if the system can say.
    cores = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0))
    machine = f"{cores} core{'s' * (cores > 1)} of {platform.machine()}, no GPU"
    return ", ".join([f"resrep_tf {resrep_tf.__version__}", *versions, python, machine])


# === Writing ===

INTRODUCTION = """\
# The zoo

What `resrep_tf` can prune in the networks that come with Keras. There is no special
code for any of them: each is read like any model of yours. This page is written by a
command, from the project's root:

```bash
python benchmarks/zoo.py
```

- **MACs**: multiply-adds at the input size given after the name. A star: those
  inside of layers without a rule, which are listed below, are not counted; shares are
  then of the counted ones.
- **prunable**: the share of the MACs in layers that lose inputs or outputs; with
  `targets=None` (internal layers, as in the paper) and with `targets="all"` (residual
  streams too).
- **most**: the share of the MACs that is removed when every target has one
  channel left. No `flops_target` can be higher; sensible ones are far lower.
- **difference**: with random weights, compactors and BatchNorm statistics, and about
  half of the channels of every target removed at random: the largest difference between
  the outputs of the wrapped and of the converted model, in float32, relative to the
  outputs' scale; the larger one of both kinds of targets. If it is above 1e-5, the
  difference in float64 follows in brackets: it shows that the cause is rounding, which
  deep networks with random weights amplify.
- **wrap**, **convert**: seconds, with `targets="all"` and `verify=False`, while other
  programs kept the machine busy.

Differences and seconds are measured at the smallest input that a network accepts (32 ×
32 for most), with 10 classes. Preprocessing layers are left out where Keras has a
switch for it. Those of keras-hub are small networks made from constructor arguments
(see `tests/support/models/hub_presets.py`), with a head for classification,
segmentation or detection.
"""

REASONS = """\
## What cannot be pruned, and why

A layer that is listed here keeps all its output channels; it may still lose inputs. The
share is its part of the network's MACs. The reasons are explained here:

- **It is an output of the model**: its channels are the classes.
- **No pruning rule**: the library does not know what a layer of this type does with its
  channels, so all channels that it reads or makes stay. Some networks of keras-hub are
  made of layers that are whole blocks: if these cannot be traced, they are not changed.
  [A rule](rules.md) can be added for types of your own.
- **Computes each channel from others too**: a LayerNormalization takes its mean and
  variance over all channels, and these would be others without some channels. In a
  ConvNeXt, this pins the residual streams, but not the wide layers inside of its
  blocks.
- **A constant other than zero where a layer pads its input**: behind some activations,
  or after a number is added, a removed channel does not stay zero but becomes another
  constant. For a 1 × 1 convolution, this constant is folded into the bias. A larger one
  reads the constant inside of the image and zeros in the padding around it, and one
  bias cannot replace both. Behind a BatchNorm or a depthwise convolution it is
  possible: a second compactor, with one factor for each channel, is merged into its
  weights and keeps the channel at zero.
- **Not constant where a layer reads them**: before that layer, a removed channel's
  constant is combined with padding or with channels that stay, so that it differs from
  place to place; again, a bias cannot replace it.
- **Do not stay apart**: a reshape mixes channels with positions, as the heads of a
  detector do with their anchors and classes.
"""

KERAS_HUB = """\
## What keras-hub has, and what is not here

All CNNs of keras-hub are Functional models, and each is above, with the kinds of blocks
that its backbone can be made of: {kinds}.

Some are made of layers that are whole blocks; these are traced first
(`resrep_tf.trace`).

Two of these layers, in DeepLabV3 and RetinaNet, cannot be read from a `.keras` file as
part of any Functional model, pruned or not: their `build` takes tuples only, and a file
has lists. Such a model can be exported as a SavedModel, and its weights can be loaded
into a `keras.models.clone_model` of it. DeepLabV3, pruned or not, needs to know that
it is not being trained: `model.predict` and `model(x, training=False)` give correct
outputs, `model(x)` and `model.export` do not. A `keras.export.ExportArchive` takes
either.

The other networks of keras-hub for images are no CNNs. Attention has no rule, so these
are not measured:

{others}
"""


def render(rows: dict[str, Row]) -> str:
    missing = [name for name in NETWORKS if name not in rows]
    columns = ["network", "MACs", "prunable, internal", "prunable, all"]
    columns += ["most, internal", "most, all", "difference", "wrap", "convert"]
    lines = [
        INTRODUCTION,
        "| " + " | ".join(columns) + " |",
        "|---|" + "---:|" * (len(columns) - 1),
        *(table_row(NETWORKS[name], row) for name, row in rows.items()),
        "",
    ]
    if missing:
        lines += [f"Not measured yet: {', '.join(missing)}.", ""]
    measured: dict[str, list[str]] = {}
    for name, row in rows.items():
        measured.setdefault(row["environment"], []).append(name)
    for text, names in measured.items():
        lines += [f"Measured with {text}: {', '.join(names)}.", ""]
    lines += [keras_hub(rows), REASONS]
    for name, row in rows.items():
        lines += [f"### {name}", "", *map(reason_line, row["pinned"])]
        for kind, number in row["uncounted"].items():
            lines.append(f"- MACs not counted: {number} × `{kind}`, which has no rule.")
        lines.append("")
    return "\n".join(lines)


def keras_hub(rows: dict[str, Row]) -> str:
    """Returns the section about the networks of keras-hub that are measured or not."""
    hub = {
        network.name.removeprefix("keras_hub."): rows[network.name]
        for network in HUB
        if network.name in rows
    }
    others = [f"- {name}: {why}." for name, why in TRANSFORMERS.items()]
    return KERAS_HUB.format(
        kinds=", ".join(hub),
        others="\n".join(others),
    )


def table_row(network: Network, row: Row) -> str:
    runs = [row[key] for key in TARGETS if key in row]
    cells = [
        f"{network.name} ({network.size})",
        f"{row['macs'] / 1e9:.3f} G" + ("*" if row["uncounted"] else ""),
        *(f"{100 * row['prunable'][key]:.1f} %" for key in TARGETS),
        *(f"{100 * row['reduction'][key]:.1f} %" for key in TARGETS),
    ]
    if runs:
        difference = f"{max(run['difference'] for run in runs):.1e}"
        if "float64" in row:
            difference += f" ({row['float64']['difference']:.1e})"
        cells += [
            difference,
            *(f"{runs[-1][key]:.1f} s" for key in ("wrap", "convert")),
        ]
    else:
        cells += ["–"] * 3
    return "| " + " | ".join(cells) + " |"


def reason_line(item: Row) -> str:
    names = item["names"]
    listed = ", ".join(f"`{name}`" for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"- {100 * item['share']:.1f} %, {listed}{more}: {item['reason']}."


def save(rows: dict[str, Row]) -> None:
    lines = [json.dumps([name, rows[name]]) for name in NETWORKS if name in rows]
    FIGURES.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def load() -> dict[str, Row]:
    return dict(json.loads(FIGURES.read_text("utf-8"))) if FIGURES.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=re.compile, default=".", metavar="REGEX")
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    hub = importlib.util.find_spec("keras_hub") is not None
    for name, network in NETWORKS.items():
        wanted = re.search(args.networks, name) and (hub or network not in HUB)
        if not wanted or (name in load() and not args.fresh):
            continue
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        row = measure(network)
        save({**load(), name: row})
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
        keras.utils.clear_session()
        gc.collect()
    PAGE.write_text(render(load()), encoding="utf-8")


if __name__ == "__main__":
    main()
