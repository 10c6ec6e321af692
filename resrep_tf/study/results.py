"""The results of the runs of a study, in numbers."""

import csv
import dataclasses
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resrep_tf.cli import output
from resrep_tf.report.comparison import signed
from resrep_tf.study.cases import Case


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a method with one seed.

    Attributes:
        case: The method.
        seed: The seed.
        folder: The run's folder.
        report: The content of its report.json.
    """

    case: Case
    seed: int
    folder: Path
    report: Mapping[str, Any]

    @classmethod
    def read(cls, case: Case, seed: int, folder: Path) -> "Result":
        """Reads the folder of a finished run."""
        return cls(case, seed, folder, output.read_report(folder))

    @property
    def flops_removed(self) -> float:
        """Returns the fraction of the base's FLOPs that the result does not have."""
        return 1 - self.report["after"]["flops"] / self.report["before"]["flops"]

    @property
    def params_removed(self) -> float:
        return 1 - self.report["after"]["params"] / self.report["before"]["params"]

    @property
    def base_accuracy(self) -> float:
        return self.report["before"]["accuracy"]

    @property
    def accuracy(self) -> float:
        return self.report["after"]["accuracy"]

    def metrics(self) -> list[dict[str, str]]:
        """Returns the run's metrics by epoch, of the method's own training."""
        path = self.folder / output.METRICS
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [row for row in csv.DictReader(file) if row["phase"] != "base"]
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise output.damaged(path, self.folder, error) from error

    def row(self) -> dict[str, Any]:
        """Returns a row of results.csv."""
        return {
            "method": self.case.name,
            "label": self.case.label,
            "seed": self.seed,
            "flops_target": self.report["flops_target"],
            "flops_removed": round(self.flops_removed, 6),
            "flops": self.report["after"]["flops"],
            "params": self.report["after"]["params"],
            "base_accuracy": round(self.base_accuracy, 6),
            "accuracy": round(self.accuracy, 6),
        }


@dataclasses.dataclass(frozen=True)
class Summary:
    """A method's results over all seeds.

    Attributes:
        case: The method.
        results: One for each seed.
    """

    case: Case
    results: Sequence[Result]

    def mean(self, name: str) -> float:
        """Returns the mean of a property of the results."""
        return statistics.fmean(getattr(result, name) for result in self.results)

    def accuracy(self) -> str:
        """Returns the mean accuracy as a percentage, with its standard deviation."""
        text = f"{100 * self.mean('accuracy'):.2f}"
        if len(self.results) > 1:
            spread = statistics.stdev(100 * result.accuracy for result in self.results)
            text += f" ± {spread:.2f}"
        return text

    def change(self) -> str:
        """Returns the difference from the base in points."""
        change = self.mean("accuracy") - self.mean("base_accuracy")
        return signed(100 * change, 2, "")

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of a row under `TITLES`."""
        return (
            self.case.label,
            f"{100 * self.mean('flops_removed'):.2f}",
            f"{100 * self.mean('params_removed'):.1f}",
            self.accuracy(),
            self.change(),
        )


TITLES = (
    *("method", "FLOPs removed (%)", "parameters removed (%)"),
    *("top-1 (%)", "change"),
)


def summarise(results: Sequence[Result]) -> list[Summary]:
    """Returns the results by method, in the order of the study."""
    found: dict[Case, list[Result]] = {}
    for result in results:
        found.setdefault(result.case, []).append(result)
    return [Summary(case, runs) for case, runs in found.items()]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a CSV file; the first row must have all columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(summaries: Sequence[Summary]) -> str:
    """Returns the methods as a table in Markdown."""
    lines = [TITLES, ("---", *["---:"] * (len(TITLES) - 1))]
    lines += [summary.cells() for summary in summaries]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
