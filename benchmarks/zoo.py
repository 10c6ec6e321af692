"""Measures what can be pruned in the networks of keras.applications and keras-hub.

From the project's root:

    python benchmarks/zoo.py [--networks REGEX] [--output docs/zoo.md]

Writes a table, a row as soon as it is measured. Rows that are already there are kept
(`--fresh` measures them again), so that an interrupted run can be taken up. keras-hub
is optional: without it, its rows are left as they are.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from support import calibrate, outputs, perturb, precision, random_keep, randomise

import resrep_tf
from resrep_tf import flops
from resrep_tf.graph import ChannelGraph
from resrep_tf.rules import rule_for
from resrep_tf.verify import compare

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python benchmarks/zoo.py"
PACKAGES = ("resrep_tf", "keras", "keras-hub", "tensorflow", "numpy")


# === The networks ===


@dataclass(frozen=True)
class Network:
    """A network that can be built at any legal input size.

    Args:
        name: Its name in Keras.
        family: Networks that are built from the same blocks.
        size: The extent of its usual input.
        smallest: The smallest legal extent.
        make: Builds it from the extent.
    """

    name: str
    family: str
    size: int
    smallest: int
    make: Callable[[int], keras.Model]

    def build(self, size: int | None = None) -> keras.Model:
        return self.make(size or self.smallest)


def _application(name: str, family: str, size: int, smallest: int = 32) -> Network:
    def make(extent: int) -> keras.Model:
        options: dict[str, Any] = {"include_preprocessing": False}
        if not name.startswith(("ConvNeXt", "EfficientNetV2", "MobileNetV3")):
            options = {}
        return getattr(keras.applications, name)(
            weights=None,
            input_shape=(extent, extent, 3),
            classes=10,
            classifier_activation=None,
            **options,
        )

    return Network(name, family, size, smallest, make)


def _hub(
    name: str,
    arguments: dict[str, Any],
    shape: str = "image_shape",
    head: str | None = None,
) -> Network:
    """A classifier on a backbone of keras-hub, made from its constructor."""

    def make(extent: int) -> keras.Model:
        import keras_hub

        backbone = getattr(keras_hub.models, f"{name}Backbone")(
            **arguments, **{shape: (extent, extent, 3)}
        )
        classifier = getattr(keras_hub.models, head or f"{name}ImageClassifier")
        return classifier(backbone=backbone, preprocessor=None, num_classes=10)

    return Network(f"keras_hub {name}", f"keras_hub {name}", 224, 32, make)


def _applications() -> Iterator[Network]:
    for name in ("ResNet50", "ResNet101", "ResNet152"):
        yield _application(name, "ResNet", 224)
        yield _application(f"{name}V2", "ResNetV2", 224)
    yield _application("MobileNet", "MobileNet", 224)
    yield _application("MobileNetV2", "MobileNetV2", 224)
    for name in ("MobileNetV3Small", "MobileNetV3Large"):
        yield _application(name, "MobileNetV3", 224)
    for number, size in enumerate((224, 240, 260, 300, 380, 456, 528, 600)):
        yield _application(f"EfficientNetB{number}", "EfficientNet", size)
    for name, size in (
        *(("B0", 224), ("B1", 240), ("B2", 260), ("B3", 300)),
        *(("S", 384), ("M", 480), ("L", 480)),
    ):
        yield _application(f"EfficientNetV2{name}", "EfficientNetV2", size)
    for name in ("VGG16", "VGG19"):
        yield _application(name, "VGG", 224)
    for name in ("DenseNet121", "DenseNet169", "DenseNet201"):
        yield _application(name, "DenseNet", 224)
    yield _application("InceptionV3", "InceptionV3", 299, smallest=75)
    yield _application("InceptionResNetV2", "InceptionResNetV2", 299, smallest=75)
    yield _application("Xception", "Xception", 299, smallest=71)
    yield _application("NASNetMobile", "NASNet", 224)
    yield _application("NASNetLarge", "NASNet", 331)
    for name in ("Tiny", "Small", "Base", "Large", "XLarge"):
        yield _application(f"ConvNeXt{name}", "ConvNeXt", 224)


HUB = (
    _hub(
        "ResNet",
        {
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [7],
            "stackwise_num_filters": [64, 128, 256],
            "stackwise_num_blocks": [2, 2, 2],
            "stackwise_num_strides": [1, 2, 2],
            "block_type": "basic_block",
            "use_pre_activation": True,
        },
    ),
    _hub(
        "MobileNet",
        {
            "stackwise_expansion": [[40, 56], [64, 144, 144]],
            "stackwise_num_blocks": [2, 3],
            "stackwise_num_filters": [[16, 16], [24, 24, 24]],
            "stackwise_kernel_size": [[3, 3], [5, 5, 5]],
            "stackwise_num_strides": [[2, 1], [2, 1, 1]],
            "stackwise_se_ratio": [[None, None], [0.25, 0.25, 0.25]],
            "stackwise_activation": [["relu"] * 2, ["hard_swish"] * 3],
            "stackwise_padding": [[1, 1], [2, 2, 2]],
            "output_num_filters": 144,
            "depthwise_filters": 8,
            "depthwise_stride": 2,
            "depthwise_residual": False,
            "squeeze_and_excite": 0.5,
            "last_layer_filter": 144,
        },
    ),
    _hub(
        "EfficientNet",
        {
            "stackwise_kernel_sizes": [3, 3, 3],
            "stackwise_num_repeats": [1, 2, 2],
            "stackwise_input_filters": [24, 24, 32],
            "stackwise_output_filters": [24, 32, 48],
            "stackwise_expansion_ratios": [1, 4, 4],
            "stackwise_squeeze_and_excite_ratios": [0.0, 0.0, 0.25],
            "stackwise_strides": [1, 2, 2],
            "stackwise_block_types": ["fused", "fused", "unfused"],
            "stackwise_width_coefficients": [1.0] * 3,
            "stackwise_depth_coefficients": [1.0] * 3,
        },
        "input_shape",
    ),
    _hub("DenseNet", {"stackwise_num_repeats": [2, 3, 2], "growth_rate": 16}),
    _hub(
        "VGG",
        {
            "stackwise_num_repeats": [2, 2, 2],
            "stackwise_num_filters": [32, 64, 128],
        },
        head="ImageClassifier",  # Its own one takes no input below 7 x 7.
    ),
    _hub(
        "Xception",
        {
            "stackwise_conv_filters": [[32, 64], [64, 64], [64, 128], [128, 128]],
            "stackwise_pooling": [True, False, True, False],
        },
    ),
    _hub(
        "CSPNet",
        {
            "stem_filters": 32,
            "stem_kernel_size": 3,
            "stem_strides": 1,
            "stackwise_depth": [1, 2, 2],
            "stackwise_strides": [1, 2, 2],
            "stackwise_num_filters": [32, 64, 128],
            "block_type": "dark_block",
            "stage_type": "csp",
            "bottle_ratio": [0.5],
            "block_ratio": [0.5],
            "expand_ratio": [1.0],
        },
    ),
    _hub(
        "HGNetV2",
        {
            "depths": [1, 2],
            "embedding_size": 32,
            "hidden_sizes": [64, 128],
            "stem_channels": [3, 16, 32],
            "hidden_act": "relu",
            "use_learnable_affine_block": False,
            "stackwise_stage_filters": [(32, 16, 64, 1, 1, 3), (64, 32, 128, 2, 1, 3)],
            "apply_downsample": [False, True],
            "use_lightweight_conv_block": [False, False],
        },
    ),
    _hub(
        "MobileNetV5",
        {
            "stackwise_block_types": [["er"], ["uir", "uir"]],
            "stackwise_num_blocks": [1, 2],
            "stackwise_num_filters": [[24], [48, 48]],
            "stackwise_strides": [[2], [2, 1]],
            "stackwise_act_layers": [["relu"], ["relu", "relu"]],
            "stackwise_exp_ratios": [[4.0], [6.0, 6.0]],
            "stackwise_se_ratios": [[0.0], [0.0, 0.0]],
            "stackwise_dw_kernel_sizes": [[0], [5, 5]],
            "stackwise_dw_start_kernel_sizes": [[0], [0, 0]],
            "stackwise_dw_end_kernel_sizes": [[0], [0, 0]],
            "stackwise_exp_kernel_sizes": [[3], [0, 0]],
            "stackwise_pw_kernel_sizes": [[1], [0, 0]],
            "stackwise_num_heads": [[0], [0, 0]],
            "stackwise_key_dims": [[0], [0, 0]],
            "stackwise_value_dims": [[0], [0, 0]],
            "stackwise_kv_strides": [[0], [0, 0]],
            "stackwise_use_cpe": [[False], [False, False]],
            "use_msfa": False,
        },
    ),
)
APPLICATIONS = tuple(_applications())
NETWORKS = {network.name: network for network in APPLICATIONS + HUB}


# === Measuring ===


def measure(network: Network) -> dict[str, Any]:
    """One row of the table, as JSON-compatible values."""
    row: dict[str, Any] = {"size": network.size, "smallest": network.smallest}
    row |= coverage(network.build(network.size))
    keras.utils.clear_session()
    model = randomise(network.build())
    row["internal"] = convert_half(model, None)
    row["all"] = convert_half(model, "all")
    with precision("float64"):
        row["float64"] = convert_half(randomise(network.build()), "all")
    return row


def coverage(model: keras.Model) -> dict[str, Any]:
    """What `explain` says, and how many MACs pruning touches at all."""
    explanation = resrep_tf.explain(model)
    graph = ChannelGraph(model)
    touched = {}
    for key in ("internal", "all"):
        prunable = np.zeros(graph.num_channels, bool)
        for space in graph.spaces:
            if space.prunable and (space.internal or key == "all"):
                prunable[space.channels] = True
        touched[key] = sum(
            term.macs()
            for term in graph.terms
            if any(prunable[ids].any() for ids in term.factors)
        )
    total = flops.count(graph.terms)
    return {
        "macs": total,
        "touched": {key: macs / total for key, macs in touched.items()},
        "reduction": {
            "internal": 1 - explanation.smallest_flops / total,
            "all": 1 - explanation.smallest_flops_all / total,
        },
        "pinned": pinned(explanation),
        "uncounted": uncounted(graph),
    }


def uncounted(graph: ChannelGraph) -> dict[str, int]:
    """Layers with kernels that no rule looks into, so that their MACs are missing."""
    found: dict[str, int] = {}
    for calls in graph.calls_by_op():
        weights = getattr(calls[0].op, "weights", [])
        if rule_for(calls[0].op).opaque and any(len(w.shape) > 1 for w in weights):
            found[calls[0].kind] = found.get(calls[0].kind, 0) + 1
    return found


def pinned(explanation: resrep_tf.Explanation) -> list[dict[str, Any]]:
    """The layers that cannot be pruned, by reason, with their share of the MACs."""
    found: dict[str, tuple[list[str], float]] = {}
    for layer in explanation.layers:
        if layer.status == "pinned":
            # Reasons that differ in names only are one reason.
            reason = re.sub(r"`[^`]+` \((\w+)\)", r"a `\1`", layer.reason)
            reason = re.sub(r"of (`[^`]+`(, )?)+ are", "of these layers are", reason)
            names, share = found.get(reason, ([], 0.0))
            found[reason] = ([*names, layer.name], share + layer.share)
    rows = [
        {"reason": reason, "layers": len(names), "names": names[:3], "share": share}
        for reason, (names, share) in found.items()
    ]
    return sorted(rows, key=lambda row: -row["share"])


def convert_half(model: keras.Model, targets: str | None) -> dict[str, float] | None:
    """Wraps, prunes half of every space at random, converts, compares.

    Returns:
        Seconds and difference; None if there is nothing to prune.
    """
    rng = np.random.default_rng(0)
    if not any(
        space.prunable and (space.internal or targets == "all")
        for space in ChannelGraph(model).spaces
    ):
        return None
    start = time.perf_counter()
    pruner = resrep_tf.wrap(model, targets)
    wrapped = time.perf_counter() - start
    perturb(pruner, rng)
    keep = random_keep(pruner, rng)
    for compactor in pruner.compactors:
        kernel = np.asarray(compactor.kernel) * keep[compactor.name]
        compactor.kernel.assign(kernel)
    calibrate(pruner, rng)
    start = time.perf_counter()
    slim = resrep_tf.convert(pruner, verify=False)
    converted = time.perf_counter() - start
    difference = compare(outputs(pruner), outputs(slim))
    return {"wrap": wrapped, "convert": converted, "difference": difference}


# === Writing ===


def environment() -> dict[str, str]:
    """Versions and machine, without which seconds and differences say little."""
    found = {"resrep_tf": resrep_tf.__version__}
    for package in PACKAGES[1:]:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["python"] = platform.python_version()
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, no GPU"
    return found


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a page written before: they stand in a comment at its end."""
    if not path.exists():
        return {}
    found = re.search(r"^<!-- rows\n(.*)\n-->", path.read_text("utf-8"), re.S | re.M)
    lines = found[1].splitlines() if found else []
    return dict(json.loads(line) for line in lines)


def write(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    rows = {name: rows[name] for name in NETWORKS if name in rows}
    temporary = path.with_suffix(".tmp")
    temporary.write_text(render(rows), encoding="utf-8")
    temporary.replace(path)  # A reader never sees half a page.


def render(rows: dict[str, dict[str, Any]]) -> str:
    missing = [name for name in NETWORKS if name not in rows]
    lines = [
        "# The zoo",
        "",
        "What `resrep_tf` can prune in the networks that come with Keras. No network "
        "has code of its own: each is wrapped like any model of yours. This page is "
        "written by a command, from the project's root:",
        "",
        "```bash",
        COMMAND,
        "```",
        "",
        *HEADER,
        "",
        "| network | MACs | touched, internal | touched, all | largest reduction, "
        "internal | largest reduction, all | difference | in float64 | wrap "
        "| convert |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(table_row(name, row) for name, row in rows.items()),
    ]
    if missing:
        lines += ["", "Not measured yet: " + ", ".join(missing) + "."]
    lines += ["", *environments(rows), "", "## What cannot be pruned, and why", ""]
    lines += [
        "Shares are of the network's MACs. A layer that is listed here keeps its "
        "output channels; it may still lose inputs.",
    ]
    for name, row in rows.items():
        lines += ["", f"### {name}", "", *map(reason_line, row["pinned"])]
        for kind, number in row["uncounted"].items():
            lines.append(f"- MACs not counted: {number} × `{kind}`, which has no rule.")
    lines += ["", "<!-- rows", *(json.dumps(item) for item in rows.items()), "-->"]
    return "\n".join(lines) + "\n"


HEADER = (
    "- **MACs**: multiply-adds at the network's usual input size, which stands behind "
    "its name. A star: without those inside of layers that have no rule, listed below; "
    "all shares are then of the counted ones.",
    "- **touched**: the share of the MACs in layers that lose inputs or outputs when "
    "every target is pruned; with `targets=None` (internal layers, as in the paper) "
    'and with `targets="all"` (residual streams too).',
    "- **largest reduction**: the share of the MACs that is gone when every target "
    "has one channel left: no `flops_target` can be higher.",
    "- **difference**: all weights and compactors random, about half of the channels "
    "of every target removed at random; the largest difference between the outputs "
    "of the wrapped and of the converted model, relative to the scale of the outputs; "
    "the larger one of both kinds of targets. That it is rounding, which deep networks "
    "with random weights amplify, shows the same **in float64**.",
    '- **wrap**, **convert**: seconds, with `targets="all"` and `verify=False`.',
    "",
    "Difference and seconds are measured at the smallest input that the network "
    "accepts (32 × 32 for most), with 10 classes, in inference, on random images of "
    "two scales. Preprocessing layers are left out where Keras has a switch for it. "
    "The networks of keras-hub are small ones made from constructor arguments (see "
    "`benchmarks/zoo.py`), with a classification head.",
)


def table_row(name: str, row: dict[str, Any]) -> str:
    touched, reduction = row["touched"], row["reduction"]
    runs = [row[key] for key in ("internal", "all") if row[key]]
    cells = [
        f"{name} ({row['size']})",
        f"{row['macs'] / 1e9:.3f} G" + ("*" if row["uncounted"] else ""),
        *(f"{100 * touched[key]:.1f} %" for key in ("internal", "all")),
        *(f"{100 * reduction[key]:.1f} %" for key in ("internal", "all")),
    ]
    if runs:
        cells.append(f"{max(run['difference'] for run in runs):.1e}")
        cells.append(f"{row['float64']['difference']:.1e}")
        cells += [f"{runs[-1][key]:.1f} s" for key in ("wrap", "convert")]
    else:
        cells += ["–"] * 4
    return "| " + " | ".join(cells) + " |"


def environments(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Which rows were measured with what."""
    groups: dict[str, list[str]] = {}
    for name, row in rows.items():
        text = ", ".join(f"{key} {value}" for key, value in row["with"].items())
        groups.setdefault(text.replace("machine ", "", 1), []).append(name)
    if len(groups) == 1:
        return [f"Measured with {next(iter(groups))}."]
    return [f"- {', '.join(names)}: {text}." for text, names in groups.items()]


def reason_line(item: dict[str, Any]) -> str:
    listed = ", ".join(f"`{name}`" for name in item["names"])
    others = item["layers"] - len(item["names"])
    more = f" and {others} more" if others else ""
    return f"- {100 * item['share']:.1f} %, {listed}{more}: {item['reason']}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=re.compile, default=".", metavar="REGEX")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "zoo.md")
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(args.output)
    hub = importlib.util.find_spec("keras_hub") is not None
    for name, network in NETWORKS.items():
        wanted = re.search(args.networks, name) and (hub or network not in HUB)
        if not wanted or (name in rows and not args.fresh):
            continue
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        try:
            row = measure(network)
        except Exception as error:  # One network must not cost the others' rows.
            print(f"failed: {type(error).__name__}: {error}", flush=True)
            continue
        rows[name] = {**row, "with": environment()}
        write(args.output, rows)
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
        keras.utils.clear_session()
        gc.collect()
    write(args.output, rows)


if __name__ == "__main__":
    main()
