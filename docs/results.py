"""Makes the table of `docs/results.md` from the folders of finished runs.

To add runs, from the project's root, with the runs' images in a folder:

    python docs/results.py --data_dir=~/tensorflow_datasets runs/NAME ...

For each run it writes `docs/results/NAME.json`, the numbers that the page shows, and
`docs/results/NAME.keras`, the pruned network, whose accuracy anybody can check. Then it
writes the table and the figures again. Without arguments it does only that.
"""

import argparse
import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

DOCS = Path(__file__).resolve().parent
FOLDER, PAGE = DOCS / "results", DOCS / "results.md"
BEGIN, END = "<!-- made by docs/results.py: begin -->", "<!-- end -->"
# Flags that are paths of one machine, and the flag that names the folder.
PATHS = ("data_dir", "init_weights", "output")
CURVE = ("phase", "epoch", "val_accuracy", "flops_removed", "forgotten")

Run = dict[str, Any]


# === Adding runs ===


def numbers(folder: Path, halves: Mapping[str, Sequence[float]]) -> Run:
    """Returns the numbers of a run that the page shows.

    Args:
        folder: The run's folder.
        halves: The accuracy of the base and of the pruned network on the held-out
            images of even and of odd numbers.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] != "base"]
    shown = ("flops", "params", "bytes", "accuracy", "latency")
    return {
        "arch": report["arch"],
        "dataset": report["dataset"],
        "method": report["method"],
        "flags": _flags(folder),
        **{k: {n: report[k][n] for n in shown} for k in ("before", "after")},
        "halves": {name: list(found) for name, found in halves.items()},
        "trained": float(rows[-1]["val_accuracy"]),
        "cpu_seconds": report.get("cpu_seconds"),
        "curve": [[row[name] for name in CURVE] for row in rows],
        "exports": {
            each["format"]: each["class_agreement"] for each in report["exports"]
        },
        "widths": [
            [layer["name"], layer["width"], layer["new_width"]]
            for layer in report["conversion"]["layers"]
            if layer["new_width"] < layer["width"]
        ],
        "versions": report["versions"],
    }


def _flags(folder: Path) -> dict[str, str]:
    """Returns the flags of a run by name, without the machine's folders."""
    found = {}
    for line in (folder / "run.flags").read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            name, _, value = line[2:].partition("=")
            found[name] = Path(value).name if name in PATHS else value
    return found


def halves_of(model_path: Path, dataset: Any) -> list[float]:
    """Returns a network's accuracy on images of even and of odd numbers."""
    import numpy as np
    import tensorflow as tf

    from resrep_tf.evaluate import accuracy
    from resrep_tf.export import load

    predict, right = load(model_path), []
    for images, labels in accuracy.limited(dataset.evaluation(), None):
        classes = tf.argmax(predict(images), axis=-1, output_type=labels.dtype)
        right.extend(np.asarray(classes == labels).tolist())
    return [float(np.mean(right[half::2])) for half in (0, 1)]


def take_in(folders: Sequence[Path], data_dir: str | None) -> None:
    """Writes the numbers and the network of each run to `docs/results`."""
    from resrep_tf import data

    FOLDER.mkdir(exist_ok=True)
    for folder in folders:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        dataset = data.load(report["dataset"], batch_size=64, data_dir=data_dir)
        halves = {
            name: halves_of(folder / f"{file}.keras", dataset)
            for name, file in [("before", "base"), ("after", "pruned")]
        }
        text = json.dumps(numbers(folder, halves), indent=1)
        (FOLDER / f"{folder.name}.json").write_text(text + "\n", encoding="utf-8")
        shutil.copyfile(folder / "pruned.keras", FOLDER / f"{folder.name}.keras")


# === The page ===


def load() -> dict[str, Run]:
    """Returns the runs that were added, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(FOLDER.glob("*.json"))
    }


def groups(runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
    """Returns the runs of each network, target and length, by a name for files."""
    found: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        flags = run["flags"]
        target = f"{1000 * float(flags['flops_target']):.0f}"
        group = f"{run['arch']}_flops{target}_{flags['epochs']}_epochs"
        found.setdefault(group, {})[name] = run
    return found


def render(runs: Mapping[str, Run]) -> str:
    """Returns the tables and the figures of all runs, as Markdown."""
    parts = []
    for group, members in groups(runs).items():
        run = next(iter(members.values()))
        flags = run["flags"]
        parts += [
            f"### {run['arch']}, {float(flags['flops_target']):.1%} of the FLOPs, "
            f"{flags['epochs']} epochs\n".replace("%", " %"),
            _table(members),
            _means(members),
            f"![Accuracy on held-out images by epoch](results/{group}.svg)\n",
        ]
    return "\n".join(part for part in parts if part)


def _table(runs: Mapping[str, Run]) -> str:
    """Returns a row for each run."""
    lines = [
        "| network | method | epochs | base | trained | pruned | even, odd images "
        "| FLOPs | parameters | latency, 1 and 32 images | CPU hours |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_row(name, run) for name, run in runs.items()]
    return "\n".join(lines) + "\n"


def _means(runs: Mapping[str, Run]) -> str:
    """Returns what methods that ran with several seeds come to; empty if none did."""
    by_method: dict[str, list[Run]] = {}
    for run in runs.values():
        by_method.setdefault(_method(run), []).append(run)
    lines = []
    for method, members in by_method.items():
        if len(members) < 2:
            continue
        pruned = [run["after"]["accuracy"] for run in members]
        halves = [mean(half) for half in zip(*map(_halves, members), strict=True)]
        cells = [
            method,
            ", ".join(sorted(run["flags"]["seed"] for run in members)),
            f"**{mean(pruned):.2%}**",
            f"{min(pruned):.2%} to {max(pruned):.2%}",
            ", ".join(f"{half:.2%}" for half in halves),
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("%", " %"))
    if not lines:
        return ""
    head = [
        "| method | seeds | pruned, mean | range | even, odd images |",
        "|---|---|---:|---:|---:|",
    ]
    return "\n".join(head + lines) + "\n"


def _method(run: Run) -> str:
    flags = run["flags"]
    taught = "" if flags["teacher"] == "none" else ", with a teacher"
    schedule = f" `{flags['schedule']}`" if run["method"] == "resrep" else ""
    return f"{run['method']}{schedule}{taught}"


def _halves(run: Run) -> list[float]:
    return run["halves"]["after"]


def _row(name: str, run: Run) -> str:
    before, after, flags = run["before"], run["after"], run["flags"]
    hours = run["cpu_seconds"]
    latency = [after["latency"][b] / before["latency"][b] - 1 for b in ("1", "32")]
    cells = [
        f"[{name}](results/{name}.json)",
        f"{_method(run)}, seed {flags['seed']}",
        flags["epochs"],
        f"{before['accuracy']:.2%}",
        f"{run['trained']:.2%}",
        f"**{after['accuracy']:.2%}**",
        ", ".join(f"{half:.2%}" for half in _halves(run)),
        _change(after["flops"] / before["flops"] - 1, 1),
        _change(after["params"] / before["params"] - 1, 1),
        ", ".join(_change(change, 0) for change in latency),
        "not noted" if hours is None else f"{hours / 3600:.2f}",
    ]
    return f"| {' | '.join(cells)} |".replace("%", " %")


def _change(share: float, digits: int) -> str:
    return f"{share:+.{digits}%}".replace("-", "−")


def page_with(table: str, page: str) -> str:
    """Returns the page with a new table between the two marks."""
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:start]}\n\n{table}\n{page[end:]}"


def draw(runs: Mapping[str, Run]) -> None:
    """Draws the accuracy by epoch for each group, and the final widths of ResRep."""
    from resrep_tf import figures

    for group, members in groups(runs).items():
        curves = {
            name: [dict(zip(CURVE, row, strict=True)) for row in run["curve"]]
            for name, run in members.items()
        }
        _save(figures.curves(curves, ["val_accuracy"]), group)
    for name, run in runs.items():
        if run["method"] == "resrep":
            layers = [figures.LayerWidth(*layer) for layer in run["widths"]]
            _save(figures.widths(layers), f"{name}_widths")


def _save(figure: Any, name: str) -> None:
    from resrep_tf.report.plotting import svg

    (FOLDER / f"{name}.svg").write_text(svg(figure), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--data_dir", help="as for the training command")
    args = parser.parse_args()
    if args.runs:
        take_in(args.runs, args.data_dir)
    runs = load()
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with(render(runs), page), encoding="utf-8")
    draw(runs)


if __name__ == "__main__":
    main()
