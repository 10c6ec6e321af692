"""Writes the results of a study as tables, figures and an HTML page."""

import dataclasses
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
from matplotlib.figure import Figure

import resrep_tf
from resrep_tf.cli import output
from resrep_tf.report import figures, html_page, plotting, run_page
from resrep_tf.report.drawing import Drawing
from resrep_tf.report.run_drawings import narrower
from resrep_tf.study.results import TITLES, Result, as_csv, as_markdown, summarise
from resrep_tf.study.trajectory import Trace
from resrep_tf.train import settings

RESULTS, TABLE, TRAJECTORY, FIGURES = (
    *("results.csv", "results.md", "trajectory.csv"),
    "figures",
)
# Settings that are paths of one machine, which mean nothing to other readers.
PLACES = ("init_weights", "data_dir", "output")
# A model that lost more than this share of its accuracy is left out of figures, since
# the scale that it needs would hide the differences between all others.
RUINED = 0.2


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure of a study.

    Attributes:
        name: The name of its files.
        figure: A figure of matplotlib.
        caption: A sentence about its content.
    """

    name: str
    figure: Figure
    caption: str


def write(
    folder: Path,
    title: str,
    command: str,
    results: Sequence[Result],
    traces: Sequence[Trace] = (),
) -> None:
    """Writes results.csv, results.md, figures/ and report.html; prints the table.

    Args:
        folder: The folder of the study.
        title: The title of the page.
        command: The command that was run.
        results: One for each method and seed.
        traces: One for each run whose training was recorded.
    """
    output.create(folder)
    output.write_text(folder / RESULTS, as_csv([result.row() for result in results]))
    if traces:
        rows = [row for trace in traces for row in trace.rows()]
        output.write_text(folder / TRAJECTORY, as_csv(rows))
    pictures = list(_pictures(results, traces))
    if pictures:
        with output.atomic(folder / FIGURES) as path:
            path.mkdir()
            for picture in pictures:
                plotting.save(picture.figure, path / picture.name)
    table = as_markdown(summarise(results))
    output.write_text(
        folder / TABLE, _markdown(title, command, results, table, pictures)
    )
    page = _page(folder, title, command, results, pictures)
    output.write_text(folder / output.REPORT_PAGE, page)
    print(f"\n{table}\nEverything is in {folder}")


def _about(results: Sequence[Result]) -> str:
    seeds = sorted({result.seed for result in results})
    base = statistics.fmean(result.base_accuracy for result in results)
    report = results[0].report
    return (
        f"{report['arch']} on {report['dataset']}. The base has a top-1 accuracy of "
        f"{base:.2%}. Seeds: {', '.join(map(str, seeds))}. All methods train on the "
        "same data in the same order for the same number of epochs; ± is the standard "
        "deviation over seeds."
    )


def _markdown(
    title: str,
    command: str,
    results: Sequence[Result],
    table: str,
    pictures: Sequence[Picture],
) -> str:
    parts = [f"# {title}", _about(results), f"```bash\n{command}\n```", table.strip()]
    parts += [
        f"![{picture.caption}]({FIGURES}/{picture.name}.svg)\n\n{picture.caption}"
        for picture in pictures
    ]
    return "\n\n".join(parts) + "\n"


# === Figures ===


def _pictures(results: Sequence[Result], traces: Sequence[Trace]) -> Iterator[Picture]:
    if not traces:
        yield from _methods(results)
    first = {r.case.name: r for r in results if r.seed == results[0].seed}
    if "resrep" in first and "l2" in first:
        yield Picture(
            "curves",
            figures.curves(
                {first[n].case.label: first[n].metrics() for n in ("resrep", "l2")}
            ),
            "Training loss and accuracy by epoch (Fig. 2 of the paper), "
            f"seed {results[0].seed}.",
        )
    if "resrep" in first:
        layers = first["resrep"].report["conversion"]["layers"]
        yield Picture(
            "widths",
            figures.widths(narrower(layers)),
            "Width of every layer that ResRep made narrower (Fig. 3 of the paper), "
            f"seed {results[0].seed}.",
        )
    yield from _traced([trace for trace in traces if trace.result in first.values()])


def _methods(results: Sequence[Result]) -> Iterator[Picture]:
    """Yields the figure that compares the methods."""
    base = statistics.fmean(result.base_accuracy for result in results)
    if not any(result.case.group for result in results):
        points = [
            figures.Point(result.case.label, result.flops_removed, result.accuracy)
            for result in results
        ]
        yield Picture(
            "accuracies",
            figures.accuracies(points, base),
            "Top-1 accuracy of every run; a bar is a method's mean.",
        )
        return
    points, ruined = [], []
    for summary in summarise(results):
        accuracy = summary.mean("accuracy")
        point = figures.Point(
            summary.case.group, summary.mean("flops_removed"), accuracy
        )
        (ruined if accuracy < (1 - RUINED) * base else points).append(point)
    caption = "FLOPs reduction against accuracy, means over seeds (Fig. 4, left)."
    if ruined:
        caption += " Not shown: " + ", ".join(
            f"{p.method} ({p.flops_removed:.1%}, {p.accuracy:.1%})" for p in ruined
        )
        caption += "."
    if points:
        yield Picture("tradeoff", figures.tradeoff(points, base), caption)


def _traced(traces: Sequence[Trace]) -> Iterator[Picture]:
    if not traces:
        return

    def pairs(solid: str, dashed: str) -> list[figures.Pair]:
        return [
            figures.Pair(
                trace.result.case.label,
                [moment.epoch for moment in trace.moments],
                [getattr(moment, solid) for moment in trace.moments],
                [getattr(moment, dashed) for moment in trace.moments],
            )
            for trace in traces
        ]

    yield Picture(
        "recovery",
        figures.recovery(pairs("accuracy", "pruned_accuracy")),
        "Accuracy of the model at each epoch, as it was and pruned to the final "
        "structure (Fig. 4, middle).",
    )
    yield Picture(
        "magnitudes",
        figures.magnitudes(pairs("surviving", "pruned")),
        "Sums of squares of the rows that stay and of those that do not (Fig. 4, "
        "right).",
    )
    trace = traces[0]
    yield Picture(
        "norms",
        figures.norms(
            [moment.epoch for moment in trace.moments],
            [moment.norms for moment in trace.moments],
            trace.kept,
            trace.epsilon,
            unit="epoch",
        ),
        f"Norms of all rows, epoch by epoch: {trace.result.case.label}.",
    )


# === The page ===


def _page(
    folder: Path,
    title: str,
    command: str,
    results: Sequence[Result],
    pictures: Sequence[Picture],
) -> str:
    drawings = [
        Drawing(plotting.svg(picture.figure), picture.caption, picture.caption)
        for picture in pictures
    ]
    main = results[0]
    base = keras.models.load_model(main.folder / output.BASE, compile=False)
    found, _ = settings.parse([f"--flagfile={main.folder / output.FLAGS}"])
    details = run_page.sections(
        main.report, main.metrics(), resrep_tf.explain(base).to_dict()
    )
    values = {
        key: value
        for key, value in dataclasses.asdict(found).items()
        if key not in PLACES
    }
    name = html_page.text(f"{main.case.label}, seed {main.seed}")
    return html_page.page(
        title,
        html_page.text(_about(results)),
        (),
        [
            ("Methods", _methods_table(results)),
            ("Figures", html_page.figures(drawings)),
            ("Runs", _runs_table(folder, results)),
            *((f"{name}: {part.lower()}", content) for part, content in details),
            (f"{name}: settings", html_page.settings(values)),
            ("To repeat it", html_page.command(command)),
        ],
        main.report.get("versions"),
    )


def _methods_table(results: Sequence[Result]) -> str:
    rows = []
    for summary in summarise(results):
        label, *cells = summary.cells()
        rows.append([html_page.row_header(label), *map(html_page.number, cells)])
    numbers = range(1, len(TITLES))
    return html_page.table("Means over seeds.", TITLES, rows, numbers=numbers)


def _runs_table(folder: Path, results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        place = Path(os.path.relpath(result.folder, folder)).as_posix()
        rows.append(
            [
                html_page.row_header(result.case.label),
                html_page.number(result.seed),
                html_page.number(f"{100 * result.flops_removed:.2f}"),
                html_page.number(f"{100 * result.accuracy:.2f}"),
                f"<td><code>{html_page.text(place)}</code></td>",
            ]
        )
    return html_page.table(
        "Every run; its own report.html stands in its folder.",
        ["method", "seed", "FLOPs removed (%)", "top-1 (%)", "folder"],
        rows,
    )
