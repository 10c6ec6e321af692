"""The evaluation command: accuracy and latency of a model."""

from collections.abc import Sequence

from resrep_tf import data
from resrep_tf.cli import architectures
from resrep_tf.cli.common_flags import define_arch, define_data, define_weights
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.cli.flagset import FlagSet
from resrep_tf.evaluate import accuracy as evaluation
from resrep_tf.evaluate import latency

USAGE = """
Measures the accuracy and the latency of a model:

  python -m resrep_tf.evaluate --model=runs/NAME/pruned.keras --dataset=cifar10
  python -m resrep_tf.evaluate --arch=resnet20 --init_weights=FILE --dataset=cifar10
"""


def define() -> FlagSet:
    """Makes the flags of the command."""
    flags = FlagSet(USAGE)
    flags.group("Model")
    flags.string(
        "model", None, "A .keras or .tflite file, or the folder of a SavedModel."
    )
    define_arch(flags, "Instead of --model, with --init_weights.")
    define_weights(flags)
    flags.group("Data")
    define_data(flags, "Its held-out images are evaluated.")
    flags.integer("batch_size", 100, "Images in a batch.", lower=1)
    flags.integer("eval_steps", None, "Evaluate on so many batches only.", lower=1)
    flags.switch("latency", True, "Measure the latency too.")
    return flags


def run(arguments: Sequence[str]) -> None:
    """Runs the command on a command line without the program's name."""
    values = define().parse(arguments)
    if (values["model"] is None) == (values["arch"] is None):
        raise CommandError(
            "`--model`, or `--arch` with `--init_weights`, must be given, not both. "
            f"Received: --model={values['model']} --arch={values['arch']}"
        )
    if values["dataset"] is None:
        raise CommandError("`--dataset` must be given. Received: no --dataset")
    if values["arch"] is not None:
        options = architectures.parse_options(values["arch_options"])
        architectures.check(values["arch"], options)
        if values["init_weights"] is None and architectures.kind(values["arch"]) != (
            "file"
        ):
            raise CommandError(
                "`--init_weights` must be given with `--arch`: fresh weights classify "
                "nothing. Received: no --init_weights"
            )
    with blame("dataset"):
        dataset = data.load(
            values["dataset"],
            batch_size=values["batch_size"],
            image_size=values["image_size"],
            data_dir=values["data_dir"],
            download=values["download"],
        )
    if values["model"] is not None:
        name = values["model"]
        predict = evaluation.load_predictor(name, dataset)
    else:
        name = values["arch"]
        model = architectures.build(
            name,
            dataset.input_shape,
            dataset.classes,
            options=options,
            init_weights=values["init_weights"],
        )
        predict = evaluation.predictor(model)
    scores = evaluation.evaluate(predict, dataset, name, values["eval_steps"])
    print(f"{name}: {scores}")
    if values["latency"]:
        seconds = latency.measure({name: predict}, dataset.input_shape)[name]
        for batch, time in seconds.items():
            print(f"latency, batch {batch}: {1e3 * time:.2f} ms")
