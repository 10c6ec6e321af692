"""Compares the outputs of a file with the model's."""

import dataclasses
from typing import Any

import keras
import numpy as np

from resrep_tf.export.report import ExportReport
from resrep_tf.surgery.verify import compare

# The largest accepted difference, relative to the outputs' scale.
TOLERANCES = {
    "keras": 1e-5,
    "saved_model": 1e-5,
    "tflite": 1e-3,
    "tflite_float16": 5e-2,
    "onnx": 1e-3,
}
# An int8 file is broken if its outputs differ from the model's by more than the model's
# own outputs vary around their mean. This is the least variation, as a share of the
# outputs' scale, that counts.
_LEAST_SPREAD = 0.05


def compared(
    report: ExportReport, expected: Any, outputs: Any, on: str
) -> ExportReport:
    """Returns a report with the differences between expected and found outputs."""
    is_row = len(expected.shape) == 2
    expected, outputs = _rows(expected), _rows(outputs)
    if expected.shape != outputs.shape:
        raise ValueError(
            f"The {report.format} file has outputs of another shape than the model, "
            f"{expected.shape}. Received: {outputs.shape}"
        )
    scale = np.abs(expected).max(axis=1, keepdims=True)
    scale = np.maximum(scale, max(1e-3 * scale.max(), np.finfo("float32").tiny))
    return dataclasses.replace(
        report,
        verified_on=on,
        examples=len(expected),
        difference=compare(expected, outputs),
        mean_difference=float(np.mean(np.abs(expected - outputs) / scale)),
        class_agreement=_agreement(expected, outputs) if is_row else None,
    )


def _rows(outputs: Any) -> np.ndarray:
    array = keras.ops.convert_to_numpy(outputs).astype("float64")
    return array.reshape(len(array), -1)


def _agreement(expected: np.ndarray, outputs: np.ndarray) -> float:
    if expected.shape[1] > 1:
        return float(np.mean(expected.argmax(axis=1) == outputs.argmax(axis=1)))
    probabilities = expected.min() >= 0 and expected.max() <= 1
    middle = 0.5 if probabilities else 0.0
    return float(np.mean((expected > middle) == (outputs > middle)))


def check(report: ExportReport, expected: Any, outputs: Any) -> None:
    """Raises if a file does not compute what the model does."""
    if report.format == "int8":
        wrong = _is_broken(_rows(expected), _rows(outputs))
    else:
        wrong = not (report.difference or 0.0) <= TOLERANCES[report.format]
    if wrong:
        raise ValueError(
            f"The {report.format} file does not compute what the model does, and was "
            f"not kept. Received: outputs that differ by {report.difference:.3g} at "
            f"most and {report.mean_difference:.3g} on average, on "
            f"{report.verified_on}"
        )


def _is_broken(expected: np.ndarray, outputs: np.ndarray) -> bool:
    spread = np.sqrt(np.mean((expected - expected.mean()) ** 2))
    allowed = max(spread, _LEAST_SPREAD * np.abs(expected).max())
    return not np.sqrt(np.mean((expected - outputs) ** 2)) <= allowed
