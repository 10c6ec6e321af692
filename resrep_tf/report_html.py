"""A run's report as one HTML file: no script, no network, nothing beside it.

It takes what `report.json` and `metrics.csv` hold, as plain values, so that a report
can be written again from a run's folder. All text that comes from outside is escaped.
"""

import html
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from resrep_tf.comparison import Change, changes, signed
from resrep_tf.report_figures import NO_FIGURES, draw

Rows = Sequence[Mapping[str, Any]]


def render(
    report: Mapping[str, Any],
    metrics: Rows = (),
    *,
    explanation: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """The text of the HTML file.

    Args:
        report: What is in `report.json`.
        metrics: The rows of `metrics.csv`; cells may be text.
        explanation: `resrep_tf.explain(model).to_dict()`, for what could not be
            pruned and why.
        settings: The run's settings by name.
        command: The command that repeats the run.

    Example:

    ```python
    page = report_html.render(json.loads(Path("report.json").read_text()))
    Path("report.html").write_text(page, encoding="utf-8")
    ```
    """
    compared = changes(report["before"], report["after"])
    title = f"{report['arch']} on {report['dataset']}"
    sections = [
        ("Before and after", _comparison(compared)),
        ("Figures", _figures(report, metrics)),
        ("Layer by layer", _layers(report["conversion"]["layers"])),
        ("What stays, and why", _stays(report["conversion"], explanation)),
        ("How it went", _course(report)),
        ("Settings", _settings(settings)),
        (
            "To repeat it",
            f"<pre><code>{_text(command)}</code></pre>" if command else "",
        ),
    ]
    template = resources.files("resrep_tf").joinpath("templates", "report.html")
    return string.Template(template.read_text(encoding="utf-8")).substitute(
        title=_text(title),
        subtitle=_subtitle(report),
        headline="\n".join(_headline(compared)),
        sections="\n".join(
            f"<section>\n<h2>{name}</h2>\n{body}\n</section>"
            for name, body in sections
            if body
        ),
        footer=_footer(report.get("versions", {})),
    )


# === Parts of the page ===


def _subtitle(report: Mapping[str, Any]) -> str:
    removed = report["conversion"]["flops_removed"]
    method = report.get("method", "resrep").replace("resrep", "ResRep")
    return (
        f"Method: {method}. {removed:.1%} of the FLOPs removed, "
        f"{report['flops_target']:.1%} asked for. FLOPs are multiply-adds."
    )


def _headline(compared: Iterable[Change]) -> Iterable[str]:
    """The figures that people look for first."""
    for change in compared:
        if change.label.startswith(("FLOPs", "parameters", "latency", "top-1")):
            number, _, unit = change.change.partition(" ")
            label = f"{change.label} ({unit})" if unit else change.label
            yield (
                f"<div><dt>{_text(label)}</dt><dd>{number}"
                f"<span>{change.before} → {change.after}</span></dd></div>"
            )


def _comparison(compared: Iterable[Change]) -> str:
    rows = [
        [
            _row_header(change.label),
            _number(change.before),
            _number(change.after),
            _number(change.change, {True: "good", False: "bad"}.get(change.better, "")),
        ]
        for change in compared
    ]
    return _table(
        "The original model and the pruned one. Latency is the median of many calls on "
        "the machine that ran this.",
        ["", "before", "after", "change"],
        rows,
    )


def _figures(report: Mapping[str, Any], metrics: Rows) -> str:
    try:
        drawings = draw(report, metrics)
    except ImportError:
        return f"<p>{_text(NO_FIGURES)}</p>"
    figures = []
    for number, drawing in enumerate(drawings, start=1):
        svg = drawing.inline(f"figure{number}")
        if drawing.wide:
            svg = _scroll(svg, drawing.caption)
        kind = ' class="wide"' if drawing.wide else ""
        figures.append(
            f"<figure{kind}>\n{svg}\n<figcaption>{_text(drawing.caption)}</figcaption>"
            "\n</figure>"
        )
    return f'<div class="figures">\n{"".join(figures)}\n</div>' if figures else ""


def _layers(layers: Rows) -> str:
    rows = []
    for layer in layers:
        share = layer["new_flops"] / layer["flops"] if layer["flops"] else 1.0
        width, new_width = layer["width"], layer["new_width"]
        rows.append(
            [
                _row_header(layer["name"]),
                _number(f"{width} → {new_width}" if width != new_width else width),
                _number(signed(100 * (share - 1), 1, "%")),
                _number(f"{layer['flops'] / 1e6:,.3f}"),
                _number(f"{layer['new_flops'] / 1e6:,.3f}"),
                '<td class="bar" aria-hidden="true"><span>'
                f'<i style="width:{100 * share:.1f}%"></i></span></td>',
                f"<td>{_text(layer['kind'])}</td>",
            ]
        )
    same = [layer["flops"] == layer["new_flops"] for layer in layers]
    return _table(
        "Output channels and millions of multiply-adds (MMACs) of every layer with a "
        "kernel.",
        ["layer", "width", "MMACs change", "before", "after", "left", "type"],
        rows,
        kind="layers",
        row_kinds=["same" if unchanged else "" for unchanged in same],
        numbers=(1, 2, 3, 4),
    )


def _stays(conversion: Mapping[str, Any], explanation: Mapping[str, Any] | None) -> str:
    """Layers that cannot be pruned, by reason, and channels that had to stay."""
    items = []
    reasons: dict[str, list[str]] = {}
    shared = []
    for layer in (explanation or {}).get("layers", ()):
        if layer["status"] == "pinned":
            reasons.setdefault(layer["reason"], []).append(layer["name"])
        elif layer["status"] == "shared":
            shared.append(layer["name"])
    for reason, names in reasons.items():
        items.append(f"{_names(names)}: {_prose(reason)}.")
    if shared:
        items.append(
            f"{_names(shared)}: their channels are shared with other layers (a "
            "residual stream); they are pruned with <code>targets=all</code> only."
        )
    for reason, channels in conversion.get("kept", {}).items():
        items.append(f"{channels} pruned channels: {_prose(reason)}.")
    unknown = ", ".join((explanation or {}).get("unknown", ()))
    if unknown:
        items.append(
            f"Without a rule, so that what they touch stays: {_prose(unknown)}."
        )
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
        lines.append(
            "The converted model was compared with the trained one on random inputs: "
            f"outputs differ by {conversion['difference']:.2g} of their scale at most."
        )
    if conversion.get("damage") is not None:
        lines.append(
            "Setting the dropped rows to exactly zero changed the outputs by "
            f"{conversion['damage']:.2g} of their scale at most."
        )
    return "\n".join(f"<p>{line}</p>" for line in lines)


def _settings(settings: Mapping[str, Any] | None) -> str:
    if not settings:
        return ""
    entries = (
        f"<div><dt>{_text(name)}</dt><dd>{_text(_value(value))}</dd></div>"
        for name, value in settings.items()
    )
    return f'<dl class="settings">\n{"".join(entries)}\n</dl>'


def _footer(versions: Mapping[str, str]) -> str:
    used = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{_text(used)}. ResRep: Ding et al., ICCV 2021, "
        '<a href="https://arxiv.org/abs/2007.03260">arXiv:2007.03260</a>.'
    )


# === HTML ===


def _table(
    caption: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    kind: str = "",
    row_kinds: Sequence[str] | None = None,
    numbers: Sequence[int] = (1, 2, 3),
) -> str:
    head = "".join(
        f'<th scope="col"{_class("number" if i in numbers else "")}>{_text(title)}</th>'
        for i, title in enumerate(titles)
    )
    kinds = row_kinds or [""] * len(rows)
    body = "\n".join(
        f"<tr{_class(row_kind)}>{''.join(cells)}</tr>"
        for row_kind, cells in zip(kinds, rows, strict=True)
    )
    table = (
        f"<table{_class(kind)}>\n<caption><span>{_text(caption)}</span></caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )
    return _scroll(table, caption)


def _scroll(content: str, label: str) -> str:
    """A part that may be wider than a phone; it can be reached by keyboard."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{_text(label)}">'
        f"\n{content}\n</div>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _row_header(label: str) -> str:
    return f'<th scope="row">{_text(label)}</th>'


def _number(value: Any, kind: str = "") -> str:
    return f"<td{_class(f'number {kind}'.strip())}>{_text(value)}</td>"


def _names(names: Sequence[str], most: int = 12) -> str:
    listed = ", ".join(f"<code>{_text(name)}</code>" for name in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None or value == "" else value


def _prose(text: str) -> str:
    """Text in which names stand between backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", _text(text))


def _text(value: Any) -> str:
    return html.escape(str(value))
