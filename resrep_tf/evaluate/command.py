"""The evaluation command: accuracy and latency of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from resrep_tf import data
from resrep_tf.cli import common_flags
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.flagset import FlagSet, flag
from resrep_tf.cli.models import architectures, imports, pixels
from resrep_tf.export.packages import check_onnx
from resrep_tf.export.reading.stored import check_stored

USAGE = """
Measures the accuracy and the latency of a model:

  python -m resrep_tf.evaluate --model=runs/NAME/pruned.keras --dataset=cifar10
  python -m resrep_tf.evaluate --arch=resnet20 --init_weights=FILE --dataset=cifar10
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of the evaluation command."""

    model: str | None = flag(
        None,
        "A .keras, .tflite or .onnx file, or the folder of a SavedModel.",
        group="Model",
    )
    arch: str | None = common_flags.arch("Instead of --model, with --init_weights.")
    arch_options: Mapping[str, Any] = common_flags.arch_options()
    imports: tuple[str, ...] = imports.imports_flag()
    init_weights: str | None = common_flags.init_weights()
    dataset: str | None = common_flags.dataset(
        "Its held-out images are evaluated.", group="Data"
    )
    data_dir: str | None = common_flags.data_dir()
    download: bool = common_flags.download()
    image_size: int | None = common_flags.image_size()
    pixels: str = pixels.pixels_flag()
    batch_size: int = flag(100, "Images in a batch.", lower=1)
    eval_steps: int | None = flag(None, "Evaluate on so many batches only.", lower=1)
    latency: bool = flag(True, "Measure the latency too.")


def run(arguments: Sequence[str]) -> None:
    """Runs the command on a command line without the program's name."""
    settings = FlagSet(USAGE, Settings).parse(arguments)
    _check(settings)
    imports.bring(settings.imports)
    # Here, since they import TensorFlow, which takes seconds.
    from resrep_tf.evaluate import accuracy, latency

    name = settings.model or settings.arch
    if settings.model is not None:
        predict = accuracy.load_file(settings.model)
        dataset = _load_data(settings, predict.input_shape)
        accuracy.check_file(predict, dataset)
        model = predict if predict.model is None else predict.model
    else:
        dataset = _load_data(settings, _shape(settings))
        model = architectures.build(
            settings.arch,
            dataset.input_shape,
            dataset.classes,
            options=settings.arch_options,
            init_weights=settings.init_weights,
        )
        predict = accuracy.predictor(model)
    if settings.arch is None or architectures.kind(settings.arch) == "file":
        dataset = pixels.shown(dataset, model)
    dataset = pixels.for_model(dataset, settings.pixels, model, trained=True)
    scores = accuracy.evaluate(predict, dataset, name, settings.eval_steps)
    print(f"{name}: {scores}")
    if settings.latency:
        seconds = latency.measure({name: predict}, dataset.input_shape)[name]
        for batch, time in seconds.items():
            print(f"latency, batch {batch}: {1e3 * time:.2f} ms")


def _shape(settings: Settings) -> Sequence:
    """Returns the shape of the network's input, if it is in a file."""
    if architectures.kind(settings.arch) != "file":
        return ()
    return architectures.load_file(settings.arch).inputs[0].shape


def _load_data(settings: Settings, shape: Sequence) -> data.Dataset:
    size = pixels.image_size(settings.image_size, settings.dataset, shape)
    # Training images are not used here, so the size of their batches does not matter.
    examples = data.train_examples(settings.dataset) or settings.batch_size
    with blame("dataset"):
        loaded = data.load(
            settings.dataset,
            batch_size=min(settings.batch_size, examples),
            image_size=size,
            data_dir=settings.data_dir,
            download=settings.download,
        )
    return pixels.coloured(loaded, shape)


def _check(settings: Settings) -> None:
    """Raises if flags are missing or exclude each other."""
    if (settings.model is None) == (settings.arch is None):
        raise CommandError(
            "`--model`, or `--arch` with `--init_weights`, must be given, not both. "
            f"Received: --model={settings.model} --arch={settings.arch}"
        )
    if settings.dataset is None:
        raise CommandError("`--dataset` must be given. Received: no --dataset")
    if settings.arch is None:
        _check_file(settings.model)
    else:
        _check_arch(settings)
    with blame("dataset"):
        data.check(settings.dataset, settings.data_dir, settings.download)


def _check_file(name: str) -> None:
    if name.endswith(".keras"):
        architectures.check_whole("model", name)
        return
    with blame("model"):
        check_stored(name)
        if name.endswith(".onnx"):
            check_onnx("Reading ONNX", "onnx", received=f"--model={name}")


def _check_arch(settings: Settings) -> None:
    architectures.check(settings.arch, settings.arch_options)
    if architectures.kind(settings.arch) == "file":
        architectures.check_whole("arch", settings.arch)
    architectures.check_weights(settings.init_weights)
    brings = architectures.kind(settings.arch) in ("file", "hub")
    if settings.init_weights is None and not brings:
        raise CommandError(
            "`--init_weights` must be given with `--arch`: fresh weights classify "
            "nothing. Received: no --init_weights"
        )
