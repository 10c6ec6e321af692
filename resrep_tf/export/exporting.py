"""Writes a model in a format for deployment, and compares the file with it."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from resrep_tf.export.calibration import fits, inputs_of, random_inputs
from resrep_tf.export.comparison import check, compared
from resrep_tf.export.files import atomic, size
from resrep_tf.export.precision import in_float32, is_float32
from resrep_tf.export.reading.loading import load, load_written
from resrep_tf.export.report import ExportReport
from resrep_tf.export.writing import WRITERS, Job
from resrep_tf.quiet import quiet

# Every format and the suffix of its path; a SavedModel is a folder.
FORMATS = {
    "keras": ".keras",
    "saved_model": "",
    "tflite": ".tflite",
    "tflite_float16": ".tflite",
    "int8": ".tflite",
    "onnx": ".onnx",
}
# How many examples a file is compared on at most.
_COMPARED = 64
_RANDOM = 8


def export(
    model: keras.Model,
    path: str | Path,
    format: str,
    calibration: Any = None,
    *,
    verify: bool = True,
    input_shape: Sequence[int | None] | None = None,
    integer: str = "int8",
    allow_float: bool = False,
    allow_tensorflow: bool = False,
    calibration_examples: int = 512,
) -> ExportReport:
    """Writes a model with one input and one output to a file, and verifies the file.

    The file is loaded again and its outputs are compared with the model's. Float
    formats must agree up to rounding; an int8 file is an error only if it clearly does
    not compute the model's function. Only a complete, verified file appears under its
    name; otherwise an older one stays. Everything that the process prints meanwhile is
    discarded, since TensorFlow's converters cannot be silenced.

    Args:
        model: It is not changed. Mixed precision becomes float32, except with `keras`.
        path: Where to write. The suffix must be that of the format.
        format: `keras` (for more training), `saved_model` (a folder with the signature
            `serving_default`), `tflite` (float32), `tflite_float16` (half of the size),
            `int8` (integers throughout: a quarter of the size), or `onnx` (with
            `pip install "resrep_tf[onnx]"`).
        calibration: Inputs as the model expects them: an array, or batches of inputs or
            of `(inputs, targets)`. The file is compared on these, or else on random
            inputs. `int8` needs some hundred typical ones.
        verify: Whether to compare the file with the model.
        input_shape: The shape of the file's input with its batch, None where it is to
            stay open. By default the model's, for `int8` with a batch of one.
        integer: The dtype of an int8 file's input and output, `"int8"` or `"uint8"`.
        allow_float: Whether an int8 file may use float32 for operations that TensorFlow
            Lite does not have in integers. Otherwise these are an error.
        allow_tensorflow: Whether a TensorFlow Lite file may use TensorFlow operations,
            with the Flex delegate on the device (`verify=False` if it lacks here).
        calibration_examples: How many calibration inputs to use at most.

    Example:

    ```python
    slim = resrep_tf.convert(pruner)
    report = resrep_tf.export(slim, "slim.tflite", "int8", calibration=data)
    print(report)
    predict = resrep_tf.export.load("slim.tflite")
    outputs = [predict(images) for images, _ in test_batches]
    ```
    """
    path = Path(path).expanduser()
    _check(model, path, format, integer, calibration)
    shape = _model_shape(model, input_shape, format)
    inputs = inputs_of(calibration, calibration_examples, shape)
    spec = _spec(model, shape, input_shape, format, inputs)
    if format != "keras" and not is_float32(model):
        model = in_float32(model)
    job = Job(model, spec, inputs, integer, allow_float, allow_tensorflow)
    return _written(job, path, format, verify)


def _written(job: Job, path: Path, format: str, verify: bool) -> ExportReport:
    with atomic(path) as temporary:
        with quiet(), _explained(job, format, path):
            WRITERS[format](job, temporary)
        report = ExportReport(format, path, size(temporary))
        if verify:
            report = _verified(job, report, temporary)
    return report


def _verified(job: Job, report: ExportReport, written: Path) -> ExportReport:
    if job.inputs is None:
        inputs, kind = random_inputs(tuple(job.spec.shape), _RANDOM), "random"
    else:
        inputs, kind = job.inputs[:_COMPARED], "calibration"
    with quiet():
        predictor = load_written(written, report.path)
        outputs = predictor(inputs)
        expected = job.model(inputs, training=False)
    report = compared(report, expected, outputs, f"{len(inputs)} {kind} inputs")
    check(report, expected, outputs)
    return report


@contextlib.contextmanager
def _explained(job: Job, format: str, path: Path) -> Iterator[None]:
    """Turns a converter's exception into one line that says what to do."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError):
        # TensorFlow's errors about a full disk and a folder that cannot be written.
        raise
    except Exception as error:
        # The converters raise all kinds of exceptions.
        raise ValueError(
            f"The model cannot be written as `format={format!r}`: "
            f"{_problem(job, format, error)} Received: path={str(path)!r}"
        ) from error


def _problem(job: Job, format: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    missing = sorted(set(re.findall(r"\btf\.[A-Z]\w+", text)))
    if format not in ("tflite", "tflite_float16", "int8") or not missing:
        return f"{type(error).__name__}: {text[:300]}."
    operations = ", ".join(missing)
    if job.allow_tensorflow:
        return f"Neither TensorFlow Lite nor its Flex delegate has {operations}."
    return (
        f"TensorFlow Lite has no {operations}. `allow_tensorflow=True` lets the file "
        "use TensorFlow's own, which needs the Flex delegate on the device."
    )


# === Arguments ===


def _check(
    model: keras.Model, path: Path, format: str, integer: str, calibration: Any
) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a `keras.Model`. "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    if format not in FORMATS:
        raise ValueError(
            f"`format` must be one of: {', '.join(FORMATS)}. "
            f"Received: format={format!r}"
        )
    if integer not in ("int8", "uint8"):
        raise ValueError(
            f"`integer` must be 'int8' or 'uint8'. Received: integer={integer!r}"
        )
    if format == "int8" and calibration is None:
        raise ValueError(
            "`calibration` is needed with `format='int8'`: the ranges of all "
            "activations are measured on typical inputs, such as some hundred training "
            "images. Received: calibration=None"
        )
    _check_path(path, format)


def _check_path(path: Path, format: str) -> None:
    suffix = FORMATS[format]
    if suffix:
        wrong = path.suffix != suffix
    else:
        wrong = path.suffix != "" and path.suffix in FORMATS.values()
    if wrong or not path.name:
        wanted = f"end with {suffix}" if suffix else "be the name of a folder"
        raise ValueError(
            f"`path` must {wanted} for `format={format!r}`. "
            f"Received: path={str(path)!r}"
        )
    if not path.exists():
        return
    if path.is_dir() and suffix:
        raise ValueError(
            f"`path` must be a file, and is a folder. Received: path={str(path)!r}"
        )
    if suffix or (path / "saved_model.pb").is_file():
        return
    if path.is_file() or any(path.iterdir()):
        # Refused, since the export would replace the contents of the folder.
        raise ValueError(
            "`path` must be a new or empty folder or that of a SavedModel. "
            f"Received: path={str(path)!r}"
        )


def _model_shape(
    model: keras.Model, input_shape: Sequence | None, format: str
) -> tuple:
    """Returns the shape of a model's input; raises if there are several tensors."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        if format == "keras":
            raise ValueError(
                "`format='keras'` is for models that are built from `keras.Input`; "
                "`model.save` writes others, which need their class to be loaded. "
                f"Received: model={model!r}"
            )
        if input_shape is None:
            raise ValueError(
                "`input_shape` is needed for a model that is not built from "
                f"`keras.Input`. Received: input_shape=None, model={model!r}"
            )
        return tuple(input_shape)
    if len(inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "`model` must have one input and one output; others can be written with "
            f"`model.export`. Received: a model with {len(inputs)} inputs and "
            f"{len(model.outputs)} outputs"
        )
    return tuple(inputs[0].shape)


def _spec(
    model: keras.Model,
    shape: tuple,
    input_shape: Sequence | None,
    format: str,
    inputs: Any,
) -> tf.TensorSpec:
    if input_shape is not None:
        wanted = tuple(input_shape)
        if format == "keras":
            raise ValueError(
                "`input_shape` must be None with `format='keras'`, which keeps the "
                f"model's. Received: input_shape={wanted}"
            )
        if not fits(wanted, shape):
            raise ValueError(
                f"`input_shape` must be, with its batch, one that the model accepts: "
                f"{shape}. Received: input_shape={wanted}"
            )
        shape = wanted
    elif format == "int8":
        # The calibration ran at one size, and most compilers for devices need one.
        shape = (1, *inputs.shape[1:])
    tensors = getattr(model, "inputs", None)
    name = tensors[0].name if tensors else "images"
    return tf.TensorSpec(shape, tf.float32, name=name)


# `resrep_tf.export` is this function, which hides the package of the same name. So that
# `resrep_tf.export.load` can be found, it is an attribute of the function.
export.load = load  # type: ignore[attr-defined]
