"""Renders a run's report as one HTML file, without scripts and without other files.

It needs only the values of `report.json` and `metrics.csv`, so that a report can be
written again from a run's folder. All text from models and files is escaped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from resrep_tf.markup import prose
from resrep_tf.report import html_page
from resrep_tf.report.comparison import Change, changes, signed
from resrep_tf.report.run_drawings import draw

Rows = Sequence[Mapping[str, Any]]


def render(
    report: Mapping[str, Any],
    metrics: Rows = (),
    *,
    explanation: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """Returns the text of the HTML file.

    Args:
        report: The content of `report.json`.
        metrics: The rows of `metrics.csv`; cells may be text.
        explanation: `resrep_tf.explain(model).to_dict()`, for the layers that could
            not be pruned and the reasons.
        settings: The run's settings by name.
        command: The command that repeats the run.

    Example:

    ```python
    page = report_html.render(json.loads(Path("report.json").read_text()))
    Path("report.html").write_text(page, encoding="utf-8")
    ```
    """
    compared = changes(report["before"], report["after"])
    title = f"{_name(report['arch'])} on {_name(report['dataset'])}"
    return html_page.page(
        title,
        _subtitle(report),
        _headline(compared),
        [
            *sections(report, metrics, explanation),
            ("Settings", html_page.settings(settings)),
            ("To repeat it", html_page.command(command)),
        ],
        report.get("versions"),
    )


# === Parts of the page ===


def sections(
    report: Mapping[str, Any],
    metrics: Rows = (),
    explanation: Mapping[str, Any] | None = None,
) -> list[tuple[str, str]]:
    """Returns titles and contents of the sections about the run."""
    return [
        (
            "Before and after",
            _comparison(changes(report["before"], report["after"])),
        ),
        ("Figures", html_page.figures(draw(report, metrics))),
        ("Layer by layer", _layers(report["conversion"]["layers"])),
        ("What stays, and why", _stays(report["conversion"], explanation)),
        ("How it went", _course(report)),
        ("Files to deploy", _exports(report.get("exports", ()))),
    ]


def _name(path: str) -> str:
    """Returns `photos` for `folder:/data/photos`; other names stay as they are."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _subtitle(report: Mapping[str, Any]) -> str:
    removed = report["conversion"]["flops_removed"]
    method = report.get("method", "resrep").replace("resrep", "ResRep")
    target = report["flops_target"]
    asked = "" if target is None else f", {target:.1%} asked for"
    return (
        f"Method: {method}. {removed:.1%} of the FLOPs removed{asked}. FLOPs are "
        "multiply-adds."
    )


def _headline(compared: Iterable[Change]) -> Iterable[str]:
    """Returns the most important numbers."""
    for change in compared:
        if change.label.startswith(("FLOPs", "parameters", "latency", "top-1")):
            number, _, unit = change.change.partition(" ")
            label = f"{change.label} ({unit})" if unit else change.label
            yield (
                f"<div><dt>{html_page.text(label)}</dt><dd>{number}"
                f"<span>{change.before} → {change.after}</span></dd></div>"
            )


def _comparison(compared: Iterable[Change]) -> str:
    rows = [
        [
            html_page.row_header(change.label),
            html_page.number(change.before),
            html_page.number(change.after),
            html_page.number(
                change.change, {True: "good", False: "bad"}.get(change.better, "")
            ),
        ]
        for change in compared
    ]
    return html_page.table(
        "The base and the pruned model. Latency is the median of many calls on "
        "the machine that ran this.",
        ["", "before", "after", "change"],
        rows,
    )


def _layers(layers: Rows) -> str:
    rows = []
    for layer in layers:
        share = layer["new_flops"] / layer["flops"] if layer["flops"] else 1.0
        width, new_width = layer["width"], layer["new_width"]
        rows.append(
            [
                html_page.row_header(layer["name"]),
                html_page.number(
                    f"{width} → {new_width}" if width != new_width else width
                ),
                html_page.number(signed(100 * (share - 1), 1, "%")),
                html_page.number(f"{layer['flops'] / 1e6:,.3f}"),
                html_page.number(f"{layer['new_flops'] / 1e6:,.3f}"),
                '<td class="bar" aria-hidden="true"><span>'
                f'<i style="width:{100 * share:.1f}%"></i></span></td>',
                f"<td>{html_page.text(layer['kind'])}</td>",
            ]
        )
    same = [layer["flops"] == layer["new_flops"] for layer in layers]
    return html_page.table(
        "Output channels and millions of multiply-adds (MMACs) of every layer with a "
        "kernel.",
        ["layer", "width", "MMACs change", "before", "after", "left", "type"],
        rows,
        kind="layers",
        row_kinds=["same" if unchanged else "" for unchanged in same],
        numbers=(1, 2, 3, 4),
    )


def _stays(conversion: Mapping[str, Any], explanation: Mapping[str, Any] | None) -> str:
    """Returns the layers and the channels that had to stay, with the reasons."""
    items = []
    reasons: dict[str, list[str]] = {}
    shared = []
    for layer in (explanation or {}).get("layers", ()):
        if layer["status"] == "pinned":
            reasons.setdefault(layer["reason"], []).append(layer["name"])
        elif layer["status"] == "shared":
            shared.append(layer["name"])
    for reason, names in reasons.items():
        items.append(f"{html_page.names(names)}: {prose(reason)}.")
    if shared:
        items.append(
            f"{html_page.names(shared)}: their channels are shared with other layers "
            "(a residual stream); they are pruned with <code>targets=all</code> only."
        )
    for reason, channels in conversion.get("kept", {}).items():
        items.append(f"{channels} pruned channels: {prose(reason)}.")
    unknown = ", ".join((explanation or {}).get("unknown", ()))
    if unknown:
        items.append(f"Without a rule, so that their channels stay: {prose(unknown)}.")
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def _course(report: Mapping[str, Any]) -> str:
    plan, conversion = report.get("plan") or {}, report["conversion"]
    lines = []
    if plan:
        lines.append(
            f"{plan['total_steps']:,} training steps; channels were selected from step "
            f"{plan['warmup_steps']:,} on, every {plan['interval']:,} steps, up to "
            f"{plan['step']:,} more each time."
        )
    if conversion["rows_dropped"]:
        lines.append(
            f"{conversion['rows_dropped']:,} compactor rows were dropped, the largest "
            f"of norm {conversion['largest_norm_dropped']:.3g}."
        )
    if conversion.get("difference") is not None:
        on = conversion.get("verified_on") or "random inputs"
        lines.append(
            f"The converted model was compared with the trained one on {prose(on)}: "
            f"outputs differ by {conversion['difference']:.2g} of their scale at most."
        )
    if conversion.get("damage") is not None:
        lines.append(
            "Setting the dropped rows to exactly zero changed the outputs by "
            f"{conversion['damage']:.2g} of their scale at most."
        )
    return "\n".join(f"<p>{line}</p>" for line in lines)


def _exports(exports: Rows) -> str:
    """Returns the table of exported files; empty for a report without them."""
    rows = []
    for file in exports:
        shares = (file["class_agreement"], file.get("accuracy"))
        agreement, accuracy = (
            "" if share is None else f"{share:.2%}" for share in shares
        )
        difference, times = file["difference"], file.get("latency")
        rows.append(
            [
                html_page.row_header(file["file"]),
                f"<td>{html_page.text(file['format'])}</td>",
                html_page.number(f"{1e-3 * file['bytes']:,.1f}"),
                html_page.number("" if difference is None else f"{difference:.2g}"),
                html_page.number(agreement),
                html_page.number(accuracy),
                *(
                    html_page.number(f"{1e3 * times[batch]:.2f}" if times else "")
                    for batch in ("1", "32")
                ),
            ]
        )
    if not rows:
        return ""
    return html_page.table(
        "Each file was loaded again and compared with the pruned model on training "
        "images: the largest difference of outputs relative to their scale, and how "
        "often the class is the same. Accuracy is on held-out images, for formats that "
        "compute in other numbers than the model. Latency is in ms, by batch size.",
        [
            *("file", "format", "kB", "difference", "same class", "top-1 accuracy"),
            *("batch 1", "batch 32"),
        ],
        rows,
        numbers=range(2, 8),
    )
