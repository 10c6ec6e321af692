"""The flags of the training command."""

import re
from typing import Any

from resrep_tf.baselines.criteria import CRITERIA
from resrep_tf.cli.common_flags import define_arch, define_data, define_weights
from resrep_tf.cli.flagset import FlagSet
from resrep_tf.cli.workers import STRATEGIES
from resrep_tf.pruning.compactor import KINDS, MATRIX

USAGE = """
Prunes an image classifier without loss of accuracy (ResRep), from a base model to an
exported, narrower one:

  python -m resrep_tf.train                             a small ResNet on digits
  python -m resrep_tf.train --recipe=cifar10_resnet56_flops529
  python -m resrep_tf.train --arch=my.keras --dataset=folder:PATH --flops_target=0.4

The networks' outputs are logits, without a softmax.
"""
RATE_SCHEDULES = ("cosine", "constant", "step")
METHODS = ("resrep", "finetune", "shrink", *CRITERIA)
REMOVALS = SMALLEST, MINIMAL = ("smallest", "minimal")
PRECISIONS = ("float32", "bfloat16", "float16")
# By name of the data set. Those of the paper, but for digits; ImageNet's hold for all
# that are not listed.
DEFAULTS = {
    "digits": {
        "epochs": 20,
        "batch_size": 32,
        "learning_rate": 0.03,
        "base_epochs": 15,
        "base_lr_schedule": "cosine",
        "base_lr_boundaries": [],
    },
    "cifar10": {
        "epochs": 480,
        "batch_size": 64,
        "learning_rate": 0.01,
        "base_epochs": 240,
        "base_lr_schedule": "step",
        "base_lr_boundaries": [120, 180],
    },
    "imagenet2012": {
        "epochs": 180,
        "batch_size": 256,
        "learning_rate": 0.01,
        "base_epochs": 70,
        "base_lr_schedule": "cosine",
        "base_lr_boundaries": [],
    },
}


def defaults(dataset: str) -> dict[str, Any]:
    """The defaults that depend on the data set."""
    name = re.split("[:/]", dataset.removeprefix("tfds:"))[0]
    return dict(DEFAULTS.get(name, DEFAULTS["imagenet2012"]))


def define() -> FlagSet:
    """Makes the flags; their groups are the sections of the help and of flagfiles."""
    flags = FlagSet(USAGE)
    flags.group("Recipe")
    flags.string(
        "recipe",
        None,
        "A flagfile, or the name of one that comes with the package, such as "
        "imagenet_resnet50_flops545. Flags on the command line win over it. "
        "--flagfile means the same.",
    )
    flags.group("Model and data")
    define_arch(flags, "By default resnet20.")
    define_weights(flags)
    define_data(
        flags,
        "By default the one that --arch was published for; digits without --arch.",
    )
    flags.switch("augment", True, "Vary training images at random.")
    _define_target(flags)
    _define_forgetting(flags)
    _define_training(flags)
    _define_base(flags)
    _define_running(flags)
    return flags


def _by_data(name: str) -> str:
    values = [
        f"{settings[name]} for {data}{' and others' if data == 'imagenet2012' else ''}"
        for data, settings in DEFAULTS.items()
    ]
    return f"By default {', '.join(values)}."


def _define_target(flags: FlagSet) -> None:
    flags.group("What to remove")
    flags.number(
        "flops_target", 0.5, "The fraction of FLOPs (multiply-adds) to REMOVE."
    )
    flags.choice(
        "method",
        "resrep",
        METHODS,
        "resrep, or what to compare it with at the same target: finetune (train the "
        "base further), shrink (the same architecture uniformly narrower, from "
        "scratch), or a criterion by which channels are chosen before finetuning.",
    )
    flags.string(
        "targets",
        None,
        "Which layers to prune: `paper` (those the paper prunes in --arch), "
        "`internal` (all that make their channels alone, gates aside), `all` (residual "
        "streams too), or a regular expression that layer names match from their "
        "start. By default paper for networks of this package, else internal.",
    )
    flags.choice("compactor", MATRIX, tuple(KINDS), "The kind of compactor.")
    flags.integer("min_width", 1, "Channels that every layer keeps at least.", lower=1)
    flags.integer("round_to", 1, "Make widths multiples of this.", lower=1)


def _define_forgetting(flags: FlagSet) -> None:
    flags.group("Selection and forgetting")
    flags.choice(
        "schedule",
        "auto",
        ("auto", "paper"),
        "paper takes the constants of this group as they are; auto changes those "
        "that cannot finish within the run.",
    )
    flags.switch(
        "reset",
        True,
        "Forget selected channels by resetting their gradients. --noreset: all feel "
        "the Lasso alone, and --remove says which ones go at the end.",
    )
    flags.choice(
        "remove",
        "smallest",
        REMOVALS,
        "With --noreset: those of the smallest norm until --flops_target is met, or "
        "all without which the accuracy on held-out images does not fall (minimal), "
        "whatever the target.",
    )
    flags.number("lasso_strength", 1e-4, "The Lasso's strength, lambda.", lower=0)
    flags.number(
        "masked_strength",
        None,
        "Its strength on masked rows. By default the same, as in the paper, unless "
        "--schedule=auto finds that they need more to be forgotten in time.",
        lower=0,
    )
    flags.integer("selection_step", 4, "Channels more per selection, theta.", lower=1)
    flags.integer(
        "selection_interval", 200, "Training steps between selections.", lower=1
    )
    flags.number("warmup_epochs", 5, "Epochs before the first selection.", lower=0)
    flags.number(
        "compactor_momentum",
        None,
        "Momentum of the compactors' SGD. By default 0.99, but --momentum for "
        "--compactor=filters.",
        lower=0,
    )
    flags.number("epsilon", 1e-5, "Rows of smaller norm count as forgotten.", lower=0)
    flags.switch(
        "snap",
        None,
        "Set rows to exactly zero once they are within a step of it, which the paper "
        "does not do. By default with --schedule=auto.",
    )
    flags.switch(
        "drop_masked",
        False,
        "Remove masked channels in the end even if they are not forgotten yet.",
    )


def _define_training(flags: FlagSet) -> None:
    flags.group("Training")
    flags.integer(
        "epochs",
        None,
        f"Epochs of pruning; 0 to stop after the base. {_by_data('epochs')}",
        lower=0,
    )
    flags.integer(
        "batch_size", None, f"Images in a batch. {_by_data('batch_size')}", lower=1
    )
    flags.number(
        "learning_rate",
        None,
        f"Learning rate at the start. {_by_data('learning_rate')}",
        lower=0,
    )
    flags.choice(
        "lr_schedule", "cosine", RATE_SCHEDULES, "How the learning rate changes."
    )
    flags.items(
        "lr_boundaries", [], "For step: epochs at which the rate is divided by 10."
    )
    flags.number("momentum", 0.9, "Momentum of everything but compactors.", lower=0)
    flags.number(
        "weight_decay",
        None,
        "L2 in the gradient of convolution and dense kernels. By default 1e-4; a "
        "model from a .keras file keeps what it has.",
        lower=0,
    )


def _define_base(flags: FlagSet) -> None:
    flags.group("Training of the base, before pruning")
    flags.integer(
        "base_epochs",
        None,
        "Epochs. By default 0 if weights are given, else "
        + _by_data("base_epochs").removeprefix("By default "),
        lower=0,
    )
    flags.number("base_learning_rate", 0.1, "Learning rate at the start.", lower=0)
    flags.choice(
        "base_lr_schedule",
        None,
        RATE_SCHEDULES,
        f"How it changes. {_by_data('base_lr_schedule')}",
    )
    flags.items(
        "base_lr_boundaries",
        None,
        "For step: epochs at which the rate is divided by 10. By default 120,180.",
    )


def _define_running(flags: FlagSet) -> None:
    flags.group("Running")
    flags.string(
        "output",
        None,
        "The folder for everything the run writes: a new or empty one, or that of the "
        "same run, which then goes on where it was stopped. By default a folder in "
        "runs/ that depends on the flags.",
    )
    flags.integer(
        "seed", 0, "What all random numbers depend on.", lower=0, upper=2**32 - 1
    )
    flags.choice(
        "mixed_precision",
        "float32",
        PRECISIONS,
        "The type to compute in. Weights and exported models are float32.",
    )
    flags.switch("jit_compile", False, "Compile training steps with XLA.")
    flags.switch(
        "export", True, "Write saved_model/ and pruned.tflite beside pruned.keras."
    )
    flags.integer(
        "snapshot_epochs",
        0,
        "Keep the wrapped model's weights of every so many epochs in snapshots/, to "
        "look at later; 0 for none.",
        lower=0,
    )
    flags.integer(
        "steps_per_epoch",
        None,
        "Shorten epochs to so many training steps, for a trial.",
        lower=1,
    )
    flags.integer(
        "eval_steps",
        None,
        "Evaluate on so many batches only, for a trial.",
        lower=1,
    )
    flags.group("Devices, and runs that survive")
    flags.choice(
        "strategy",
        "auto",
        STRATEGIES,
        "The devices to use: mirrored, all of this machine; multiworker, those of all "
        "machines in TF_CONFIG; auto, mirrored if there are several GPUs.",
    )
    flags.switch(
        "sync_batchnorm",
        False,
        "Let BatchNorms see the whole batch instead of one device's share of it.",
    )
    flags.integer(
        "checkpoint_interval", 500, "Training steps between checkpoints.", lower=1
    )
    flags.integer("keep_checkpoints", 3, "How many of them to keep.", lower=1)
    flags.choice(
        "on_nan",
        "stop",
        ("stop", "skip"),
        "What to do about a step whose loss is not finite.",
    )
