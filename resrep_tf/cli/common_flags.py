"""Flags that several commands have: which model, which data."""

from resrep_tf import data, models
from resrep_tf.cli.flagset import FlagSet


def define_arch(flags: FlagSet, default: str) -> None:
    flags.string(
        "arch",
        None,
        f"The network: {', '.join(models.names())}; keras:NAME for one of "
        "keras.applications, with fresh weights and logits as outputs; or the path of "
        f"a .keras file, which brings its weights. {default}",
    )
    flags.items(
        "arch_options",
        [],
        "Further arguments of the network's builder, such as shortcut=projection or "
        "alpha=0.5.",
    )


def define_weights(flags: FlagSet) -> None:
    flags.string(
        "init_weights",
        None,
        "Weights of the base: .keras, .weights.h5, or .safetensors with PyTorch's "
        "names.",
    )


def define_data(flags: FlagSet, default: str) -> None:
    flags.string(
        "dataset",
        None,
        f"The data: {', '.join(data.names())}, or any classification set of "
        f"tensorflow-datasets. {default}",
    )
    flags.string(
        "data_dir",
        None,
        "Where tensorflow-datasets keeps its sets. By default ~/tensorflow_datasets.",
    )
    flags.switch(
        "download", False, "Fetch and prepare a set that is not in --data_dir."
    )
    flags.integer(
        "image_size",
        None,
        "Height and width to bring images to. By default 224 for images of varying "
        "size; others stay as they are.",
        lower=1,
    )
