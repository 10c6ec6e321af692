"""The results of a run: the table, report.json and report.html."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import resrep_tf
from resrep_tf.cli import output
from resrep_tf.evaluate import accuracy, latency
from resrep_tf.export.files import size
from resrep_tf.report import run_page
from resrep_tf.report.comparison import Measurements, files_table, table
from resrep_tf.train.methods import Outcome
from resrep_tf.train.records.metrics import channel_history, cpu_seconds
from resrep_tf.train.settings import Settings


def measure(
    models: Mapping[str, keras.Model],
    scores: Mapping[str, accuracy.Scores],
    files: Mapping[str, Path],
    input_shape: tuple[int, int, int],
) -> dict[str, Measurements]:
    """Returns the measurements of models; their latencies are measured in turns.

    Args:
        models: The models, by any key.
        scores: Their accuracy.
        files: Their .keras files.
        input_shape: Height, width and channels of an image.
    """
    print("Measuring latency")
    predictors = {key: accuracy.predictor(model) for key, model in models.items()}
    seconds = latency.measure(predictors, input_shape)
    return {
        key: Measurements(
            flops=resrep_tf.count_flops(model, input_shape),
            params=model.count_params(),
            bytes=size(files[key]),
            latency=seconds[key],
            accuracy=scores[key].accuracy,
            top5_accuracy=scores[key].top5_accuracy,
        )
        for key, model in models.items()
    }


def write(
    folder: Path,
    settings: Settings,
    measured: Mapping[str, Measurements],
    outcome: Outcome,
    exports: Sequence[Mapping[str, Any]],
    explanation: resrep_tf.Explanation,
    metrics: Sequence[Mapping[str, Any]],
) -> None:
    """Writes report.html and report.json, and prints the table.

    Args:
        folder: The run's folder.
        settings: The run's settings.
        measured: The measurements of the models `before` and `after`.
        outcome: The result of the method.
        exports: A dictionary for each file that was exported.
        explanation: What can be pruned in the base.
        metrics: The rows of metrics.csv.
    """
    report = {
        "arch": settings.arch,
        "dataset": settings.dataset,
        "method": settings.method,
        "flops_target": settings.flops_target,
        **{key: found.to_dict() for key, found in measured.items()},
        "plan": None if outcome.plan is None else outcome.plan.to_dict(),
        "conversion": outcome.conversion.to_dict(),
        "cpu_seconds": cpu_seconds(metrics),
        "channels": channel_history(metrics),
        "exports": list(exports),
        "versions": {
            "resrep_tf": resrep_tf.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
    }
    page = run_page.render(
        report,
        metrics,
        explanation=explanation.to_dict(),
        settings=dataclasses.asdict(settings),
        command=f"python -m resrep_tf.train --flagfile={folder / output.FLAGS}",
    )
    output.write_text(folder / output.REPORT_PAGE, page)
    # The last file of a run: if it exists, the run is complete.
    output.write_json(folder / output.REPORT, report)
    print(f"\n{summary(report, folder)}")


def summary(report: Mapping[str, Any], folder: Path) -> str:
    """Returns the tables of a report, and the places of further results."""
    exports = report.get("exports", ())
    files = f"{files_table(exports)}\n\n" if exports else ""
    logs = shlex.quote(str(folder / output.TENSORBOARD))
    spent = report.get("cpu_seconds")
    cost = f"Training took {_duration(spent)} of CPU time.\n" if spent else ""
    return (
        f"{table(report['before'], report['after'])}\n\n{files}{cost}"
        f"Everything is in {folder}; {output.REPORT_PAGE} shows it in a browser.\n"
        "Curves and distributions: tensorboard --logdir "
        f'{logs} (pip install "resrep_tf[tensorboard]")'
    )


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
