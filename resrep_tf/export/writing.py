"""Writes models to files: one function for each format."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.export.calibration import in_batches
from resrep_tf.export.packages import check_onnx


@dataclass(frozen=True, eq=False)
class Job:
    """A model to write, with the options of its format.

    Attributes:
        model: The model, in float32.
        spec: The file's input with its batch, None where open.
        inputs: Calibration inputs, if any.
        integer: The dtype of an int8 file's inputs and outputs.
        allow_float: Whether an int8 file may use float32 for operations that TensorFlow
            Lite does not have in integers.
        allow_tensorflow: Whether a TensorFlow Lite file may use TensorFlow's own
            operations, which needs the Flex delegate on the device.
    """

    model: keras.Model
    spec: tf.TensorSpec
    inputs: np.ndarray | None
    integer: str
    allow_float: bool
    allow_tensorflow: bool


def keras_file(job: Job, path: Path) -> None:
    """Writes Keras's own format."""
    job.model.save(path)


def saved_model(job: Job, path: Path) -> None:
    """Writes a SavedModel whose signature `serving_default` is the model's inference.

    `tf.saved_model.load(path).serve` is the same function.
    """
    job.model.export(str(path), verbose=False, input_signature=[job.spec])


def tflite(job: Job, path: Path) -> None:
    """Writes a TensorFlow Lite file that computes in float32."""
    path.write_bytes(_converted(job))


def tflite_float16(job: Job, path: Path) -> None:
    """Writes a TensorFlow Lite file with weights in float16, half of the size."""

    def configure(converter: Any) -> None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]

    path.write_bytes(_converted(job, configure))


def int8(job: Job, path: Path) -> None:
    """Writes a TensorFlow Lite file that computes in 8-bit integers throughout."""
    size = job.spec.shape[0] or 1

    def representative() -> Iterator[list[np.ndarray]]:
        for batch in in_batches(np.asarray(job.inputs), size):
            # The calibration runs at the file's batch size.
            yield [np.resize(batch, (size, *batch.shape[1:]))]

    def configure(converter: Any) -> None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = representative
        integers = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        if job.allow_float:
            integers.append(tf.lite.OpsSet.TFLITE_BUILTINS)
        if job.allow_tensorflow:
            integers.append(tf.lite.OpsSet.SELECT_TF_OPS)
        converter.target_spec.supported_ops = integers
        converter.inference_input_type = tf.as_dtype(job.integer)
        converter.inference_output_type = tf.as_dtype(job.integer)

    content = _converted(job, configure)
    if not job.allow_float:
        _check_integers(content)
    path.write_bytes(content)


def _check_integers(content: bytes) -> None:
    """Raises if a TensorFlow Lite file computes anything in float.

    The converter silently leaves operations in float that have no integer form.
    """
    tensors = tf.lite.Interpreter(model_content=content).get_tensor_details()
    floats = [
        tensor["name"]
        for tensor in tensors
        if np.issubdtype(tensor["dtype"], np.floating)
    ]
    if floats:
        raise ValueError(
            f"{len(floats)} tensors have no integer form, the first at "
            f"{floats[0]!r}; `allow_float=True` leaves them in float"
        )


def _converted(job: Job, configure: Callable[[Any], None] | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        saved_model(job, Path(folder))
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        operations = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if job.allow_tensorflow:
            operations.append(tf.lite.OpsSet.SELECT_TF_OPS)
        converter.target_spec.supported_ops = operations
        if configure is not None:
            configure(converter)
        return converter.convert()


def onnx(job: Job, path: Path) -> None:
    """Writes an ONNX file, with the packages of the extra `onnx`."""
    check_onnx("Writing ONNX", "onnx", "tf2onnx", received="format='onnx'")
    job.model.export(
        str(path), format="onnx", verbose=False, input_signature=[job.spec]
    )


WRITERS: dict[str, Callable[[Job, Path], None]] = {
    "keras": keras_file,
    "saved_model": saved_model,
    "tflite": tflite,
    "tflite_float16": tflite_float16,
    "int8": int8,
    "onnx": onnx,
}
