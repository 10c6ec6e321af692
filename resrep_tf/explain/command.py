"""The explanation command: says which layers of a model can be pruned."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import resrep_tf
from resrep_tf import models
from resrep_tf.cli import common_flags
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.flagset import FlagSet, flag
from resrep_tf.cli.models import architectures, imports
from resrep_tf.export.reading.keras_file import load_keras
from resrep_tf.lazy import keras

USAGE = """
Says for every layer of a model whether it can be pruned and, if not, why:

  python -m resrep_tf.explain --model=my.keras
  python -m resrep_tf.explain --arch=resnet50
"""
# Networks of keras.applications are built with these by default.
CLASSES, INPUT_SHAPE = 1000, (224, 224, 3)


def _read_shape(values: Sequence[str] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    if len(values) != 3 or not all(v.isdecimal() and int(v) > 0 for v in values):
        raise CommandError(
            "`--input_shape` must be three positive integers, such as 224,224,3. "
            f"Received: --input_shape={','.join(values)}"
        )
    return tuple(int(value) for value in values)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of the explanation command."""

    model: str | None = flag(None, "A .keras file.", group="Model")
    arch: str | None = common_flags.arch("Instead of --model.")
    arch_options: Mapping[str, Any] = common_flags.arch_options()
    imports: tuple[str, ...] = imports.imports_flag()
    input_shape: tuple[int, int, int] | None = flag(
        None,
        "Height, width and channels of one image, such as 224,224,3. By default the "
        "model's own.",
        read=_read_shape,
    )
    json: bool = flag(False, "Print JSON instead of a table.", group="Output")


def run(arguments: Sequence[str]) -> None:
    """Runs the command on a command line without the program's name."""
    settings = FlagSet(USAGE, Settings).parse(arguments)
    if (settings.model is None) == (settings.arch is None):
        raise CommandError(
            "`--model` or `--arch` must be given, not both. "
            f"Received: --model={settings.model} --arch={settings.arch}"
        )
    shape = settings.input_shape
    if settings.arch is not None:
        architectures.check(settings.arch, settings.arch_options)
        if architectures.kind(settings.arch) == "file":
            architectures.check_whole("arch", settings.arch)
    else:
        architectures.check_whole("model", settings.model)
    imports.bring(settings.imports)
    if settings.arch is not None:
        model = _build(settings.arch, shape, settings.arch_options)
    else:
        model = _load(settings.model)
    with blame("input_shape"):
        explanation = resrep_tf.explain(model, shape)
    print(json.dumps(explanation.to_dict()) if settings.json else explanation)


def _load(name: str) -> keras.Model:
    with blame("model"):
        return load_keras(name)


def _build(arch: str, shape: tuple | None, options: Mapping[str, Any]) -> keras.Model:
    with blame("arch"):
        if architectures.kind(arch) == "package":
            return models.build(arch, shape, **options)
    if architectures.kind(arch) == "file":
        return architectures.load_file(arch)
    return architectures.build(arch, shape or INPUT_SHAPE, CLASSES, options=options)
