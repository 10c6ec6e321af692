"""The conversion command: turns a wrapped model into a plain, narrower one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import resrep_tf
from resrep_tf import data
from resrep_tf.cli import common_flags, export, output
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.flagset import FlagSet, flag
from resrep_tf.cli.images import blame_images
from resrep_tf.cli.models import architectures, imports, pixels
from resrep_tf.export.reading.keras_file import load_keras
from resrep_tf.lazy import keras, tf
from resrep_tf.selection.schedule import Schedule

USAGE = """
Turns a wrapped model into a plain Keras model without its forgotten channels:

  python -m resrep_tf.convert --pruner=runs/NAME/pruner.keras --output=slim.keras
  python -m resrep_tf.convert --pruner=runs/NAME/pruner.keras --output=FOLDER
"""


# Suffixes of files that the command cannot write; no folder is meant by them.
_OTHER_FILES = (".h5", ".hdf5", ".tflite", ".onnx", ".pb", ".zip", ".json")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of the conversion command."""

    pruner: str | None = flag(None, "The wrapped model, a .keras file.", group="Files")
    imports: tuple[str, ...] = imports.imports_flag()
    output: str | None = flag(
        None,
        "A new .keras file; or a new or empty folder for the files of --export and "
        "report.json.",
    )
    export: tuple[str, ...] = export.formats_flag()
    epsilon: float = flag(
        Schedule().epsilon,
        "Rows of smaller norm are removed.",
        group="Conversion",
        lower=0,
        below=1,
    )
    drop_masked: bool = flag(False, "Remove masked channels even if not forgotten yet.")
    fuse_bn: bool = flag(True, "Merge all BatchNorms, as for deployment.")
    dataset: str | None = common_flags.dataset(
        "Its training images are what int8 is calibrated with.",
        group="Data, for --export=int8",
    )
    data_dir: str | None = common_flags.data_dir()
    image_size: int | None = common_flags.image_size()
    pixels: str = pixels.pixels_flag()


def run(arguments: Sequence[str]) -> None:
    """Runs the command on a command line without the program's name."""
    flags = FlagSet(USAGE, Settings, rewrite=export.read_on_or_off)
    settings = flags.parse(arguments)
    target = _check(settings)
    imports.bring(settings.imports)
    pruner = _load(settings.pruner)
    slim, report = _converted(pruner, settings)
    print(report)
    if target.suffix == ".keras":
        output.create(target.parent)
        with output.atomic(target) as path:
            slim.save(path)
    else:
        images = _images(settings, slim)
        # The folder appears complete or not at all: the next command would refuse
        # what an interrupted one left behind.
        with blame_images(), output.atomic(target) as folder:
            folder.mkdir()
            exports = export.write(slim, folder, settings.export, images)
            found = {
                "conversion": report.to_dict(),
                "exports": [export.entry(each) for each in exports],
            }
            output.write_json(folder / output.REPORT, found)
    print(f"Written to {target}")


def _check(settings: Settings) -> Path:
    """Raises if a flag or a path is wrong; returns where to write."""
    for name in ("pruner", "output"):
        if not getattr(settings, name):
            raise CommandError(f"`--{name}` must be given. Received: no --{name}")
    export.check(settings.export)
    target = _target(settings.output)
    output.check(target.parent if target.suffix == ".keras" else target)
    _check_data(settings)
    architectures.check_whole("pruner", settings.pruner)
    return target


def _converted(pruner: Any, settings: Settings) -> tuple[keras.Model, Any]:
    """Returns the plain model and the report; notes what is not forgotten yet."""
    # Here, since they import TensorFlow, which takes seconds.
    from resrep_tf.convert.conversion import UnfinishedWarning
    from resrep_tf.pruning.rows import unforgotten

    with blame("pruner"), warnings.catch_warnings():
        # The note below says the same in the words of the command's flags.
        warnings.simplefilter("ignore", UnfinishedWarning)
        slim, report = resrep_tf.convert(
            pruner,
            epsilon=settings.epsilon,
            drop_masked=settings.drop_masked,
            fuse_bn=settings.fuse_bn,
            return_report=True,
        )
    left = unforgotten(pruner, settings.epsilon)
    if left and not settings.drop_masked:
        print(
            f"NOTE: {left} Train for longer, or remove them now, at some loss: "
            "`--drop_masked`."
        )
    return slim, report


def _check_data(settings: Settings) -> None:
    if settings.dataset is None and "int8" in settings.export:
        raise CommandError(
            "`--dataset` must be given with `--export=int8`: the ranges of all "
            "activations are measured on training images. Received: no --dataset"
        )
    if settings.dataset is not None:
        with blame("dataset"):
            data.check(settings.dataset, settings.data_dir)


def _images(settings: Settings, model: keras.Model) -> tf.data.Dataset | None:
    """Returns images to calibrate with, or None if no data are given."""
    if settings.dataset is None:
        return None
    shape = model.inputs[0].shape
    size = pixels.image_size(settings.image_size, settings.dataset, shape)
    with blame("dataset"):
        dataset = data.load(
            settings.dataset, batch_size=1, image_size=size, data_dir=settings.data_dir
        )
    dataset = pixels.coloured(dataset, shape)
    if not tf.TensorShape(shape).is_compatible_with((None, *dataset.input_shape)):
        raise CommandError(
            f"`--dataset` must have images that the model takes, {tuple(shape[1:])}; "
            f"see `--image_size`. Received: images of {dataset.input_shape}"
        )
    dataset = pixels.for_model(dataset, settings.pixels, model, trained=True)
    return export.inputs(dataset, settings.export)


def _target(name: str) -> Path:
    if not name.endswith(".keras"):
        if Path(name).suffix in _OTHER_FILES:
            raise CommandError(
                "`--output` must end with .keras, or be a folder for the files of "
                f"`--export`. Received: --output={name}"
            )
        return output.choose_new(name)
    target = Path(name).expanduser()
    if target.exists():
        raise CommandError(
            f"`--output` must be a new file; this one exists. Received: --output={name}"
        )
    return target


def _load(name: str) -> Any:
    with blame("pruner"):
        pruner = load_keras(name, compile=True)
    if not isinstance(pruner, resrep_tf.ResRepModel):
        raise CommandError(
            "`--pruner` must be a model made by `resrep_tf.wrap`, such as pruner.keras "
            f"of a run. Received: a {type(pruner).__name__}"
        )
    return pruner
