"""`--export`: the formats in which a command writes a converted model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import resrep_tf
from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.flagset import flag
from resrep_tf.export.packages import check_onnx
from resrep_tf.export.report import ExportReport
from resrep_tf.lazy import keras, tf

if TYPE_CHECKING:
    from resrep_tf.data import Dataset

# The name of each format's file, in the order of writing.
FILES = {
    "keras": output.PRUNED,
    "saved_model": output.SAVED_MODEL,
    "tflite": output.TFLITE,
    "tflite_float16": "pruned_float16.tflite",
    "int8": "pruned_int8.tflite",
    "onnx": "pruned.onnx",
}
DEFAULT = ("keras", "saved_model", "tflite")
# The values that `--export` had when it could only be on or off.
_ON_OR_OFF = {
    "--export": DEFAULT,
    "--export=true": DEFAULT,
    "--noexport": ("keras",),
    "--export=false": ("keras",),
}
# How many inputs calibrate an int8 file, and how many other files are compared on.
_CALIBRATION, _COMPARED = 512, 64


def formats_flag() -> Any:
    """Declares `--export`."""
    return flag(
        list(DEFAULT),
        f"The files to write, of: {', '.join(FILES)}. pruned.keras is always "
        "written. All are compared with the model. --noexport: pruned.keras only.",
        clean=_clean,
        read=tuple,
    )


def read_on_or_off(arguments: Sequence[str]) -> list[str]:
    """Returns a command line whose `--export` and `--noexport` are lists of formats."""
    return [
        f"--export={','.join(_ON_OR_OFF[argument])}"
        if argument in _ON_OR_OFF
        else argument
        for argument in arguments
    ]


def _clean(formats: Sequence[str]) -> list[str]:
    """Returns formats in the order of writing; raises if one of them is unknown."""
    unknown = [format for format in formats if format not in FILES]
    if unknown:
        raise CommandError(
            f"`--export` must be a list of: {', '.join(FILES)}. "
            f"Received: --export={','.join(formats)}"
        )
    return [format for format in FILES if format in ("keras", *formats)]


def check(formats: Sequence[str]) -> None:
    """Raises if a package is missing for a format, before anything is trained."""
    if "onnx" not in formats:
        return
    with blame("export"):
        received = f"--export={','.join(formats)}"
        check_onnx("Writing ONNX", "onnx", "tf2onnx", received=received)


def inputs(data: Dataset, formats: Sequence[str]) -> tf.data.Dataset:
    """Returns training images without augmentation, as many as the formats need."""
    count = _CALIBRATION if "int8" in formats else _COMPARED
    return data.unvaried().train().unbatch().take(count).batch(32)


def write(
    model: keras.Model, folder: Path, formats: Sequence[str], calibration: Any = None
) -> list[ExportReport]:
    """Writes a model in some formats, and returns the reports of the files.

    A SavedModel's signature `serving_default` takes a batch of any size and returns
    the model's outputs: logits, for the networks of this package.

    Args:
        model: The model.
        folder: Where to write.
        formats: Some of `FILES`.
        calibration: Inputs for int8, and to compare all files on.
    """
    return list(_written(model, folder, formats, calibration))


def _written(
    model: keras.Model, folder: Path, formats: Sequence[str], calibration: Any
) -> Iterator[ExportReport]:
    for format in formats:
        path = folder / FILES[format]
        # Printed before the export, which may take minutes.
        print(f"Exporting {path.name}", flush=True)
        try:
            with output.writing(path):
                report = resrep_tf.export(model, path, format, calibration)
        except (ValueError, ImportError) as error:
            if format == "keras":
                raise
            # TensorFlow Lite lacks some operations. This must not stop the rest of the
            # run.
            print(f"NOTE: no {path.name}: {error}")
            continue
        print(f"  {_described(report)}")
        yield report


def _described(report: ExportReport) -> str:
    return str(report).removeprefix(f"{report.path}: ")


def entry(report: ExportReport) -> Mapping[str, Any]:
    """Returns a file's entry in `report.json`, without the machine's paths."""
    values = report.to_dict()
    del values["path"]
    return {"file": report.path.name, **values}
