"""The explanation command: lists the layers that can be pruned, and why others not."""

import json
from collections.abc import Sequence
from pathlib import Path

import keras

import resrep_tf
from resrep_tf import models
from resrep_tf.cli import architectures
from resrep_tf.cli.common_flags import define_arch
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.flagset import FlagSet

USAGE = """
Says of every layer of a model whether it can be pruned, and if not, why:

  python -m resrep_tf.explain --model=my.keras
  python -m resrep_tf.explain --arch=resnet50
"""
# Networks of keras.applications are built for these unless flags say otherwise.
CLASSES, INPUT_SHAPE = 1000, (224, 224, 3)


def define() -> FlagSet:
    """Makes the flags of the command."""
    flags = FlagSet(USAGE)
    flags.group("Model")
    flags.string("model", None, "A .keras file.")
    define_arch(flags, "Instead of --model.")
    flags.items(
        "input_shape",
        None,
        "Height, width and channels of one image, such as 224,224,3. By default the "
        "model's own.",
    )
    flags.group("Output")
    flags.switch("json", False, "Print JSON instead of a table.")
    return flags


def run(arguments: Sequence[str]) -> None:
    """Runs the command on a command line without the program's name."""
    values = define().parse(arguments)
    if (values["model"] is None) == (values["arch"] is None):
        raise CommandError(
            "`--model` or `--arch` must be given, not both. "
            f"Received: --model={values['model']} --arch={values['arch']}"
        )
    shape = _shape(values["input_shape"])
    if values["model"] is not None:
        path = Path(values["model"]).expanduser()
        if path.suffix != ".keras" or not path.is_file():
            raise CommandError(
                f"`--model` must be an existing .keras file. Received: --model={path}"
            )
        with blame("model"):
            model = keras.models.load_model(path, compile=False)
    else:
        options = architectures.parse_options(values["arch_options"])
        model = _build(values["arch"], shape, options)
    with blame("input_shape"):
        explanation = resrep_tf.explain(model, shape)
    print(json.dumps(explanation.to_dict()) if values["json"] else explanation)


def _build(arch: str, shape: tuple | None, options: dict) -> keras.Model:
    architectures.check(arch, options)
    with blame("arch"):
        if architectures.kind(arch) == "package":
            return models.build(arch, shape, **options)
    if architectures.kind(arch) == "file":
        return architectures.load_file(arch)
    return architectures.build(arch, shape or INPUT_SHAPE, CLASSES, options=options)


def _shape(values: Sequence[str] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    if len(values) != 3 or not all(v.isdecimal() and int(v) > 0 for v in values):
        raise CommandError(
            "`--input_shape` must be three positive integers, such as 224,224,3. "
            f"Received: --input_shape={','.join(values)}"
        )
    return tuple(int(value) for value in values)
