"""The flags of the training command: each is a field of `Settings`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from resrep_tf.baselines.names import CRITERIA
from resrep_tf.cli import common_flags
from resrep_tf.cli.export import formats_flag, read_on_or_off
from resrep_tf.cli.flagset import FlagSet, flag, marked
from resrep_tf.cli.models.imports import imports_flag
from resrep_tf.cli.models.pixels import pixels_flag
from resrep_tf.cli.workers import STRATEGIES
from resrep_tf.selection.schedule import KINDS as SCHEDULES
from resrep_tf.selection.schedule import PAPER, Schedule
from resrep_tf.train import defaults
from resrep_tf.train.checks import check

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
# Marks of flags that may change when a run is resumed, and of flags that only ResRep
# uses.
CHANGEABLE, RESREP = "changeable", "resrep"
NO_TEACHER, BASE_TEACHER = defaults.TEACHERS
_PAPER = Schedule()


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a training run, with every default filled in."""

    # === Model and data ===

    arch: str = common_flags.arch(
        "By default resnet20.",
        group="Model and data",
        fill=lambda values: "resnet20",
        clean=common_flags.absolute_arch,
    )
    arch_options: Mapping[str, Any] = common_flags.arch_options()
    imports: tuple[str, ...] = imports_flag()
    init_weights: str | None = common_flags.init_weights(clean=defaults.init_weights)
    dataset: str = common_flags.dataset(
        "By default the one that --arch was published for; digits without --arch.",
        fill=defaults.dataset,
        clean=common_flags.absolute_dataset,
    )
    data_dir: str | None = common_flags.data_dir(
        clean=common_flags.absolute, mark=CHANGEABLE
    )
    download: bool = common_flags.download(mark=CHANGEABLE)
    image_size: int | None = common_flags.image_size()
    pixels: str = pixels_flag()
    augment: bool = flag(True, "Vary training images at random.")

    # === What to remove ===

    flops_target: float | None = flag(
        None,
        "The fraction of FLOPs (multiply-adds) to REMOVE. By default 0.5, unless "
        "another target is given. If several targets are given, all are met.",
        group="What to remove",
        fill=defaults.flops_target,
    )
    params_target: float | None = flag(
        None, "The fraction of the converted model's parameters to REMOVE."
    )
    latency_target: float | None = flag(
        None, "The fraction of latency to REMOVE, as --latency_table predicts it."
    )
    latency_table: str | None = flag(
        None,
        "The latency table that resrep_tf.measure_latency made for the network.",
        clean=common_flags.absolute,
    )
    method: str = flag(
        "resrep",
        "resrep, or a method to compare it with at the same target: finetune (train "
        "the base further), shrink (train the same architecture uniformly narrower, "
        "from scratch), or a one-shot criterion (prune at once, then finetune).",
        choices=METHODS,
    )
    targets: str = flag(
        None,
        "The layers to prune: `paper` (those that the paper prunes in --arch), "
        "`internal` (those that share their channels with no other layer but gates), "
        "`all` (residual streams too), or a regular expression that matches the start "
        "of layer names. By default paper for networks of this package, else internal.",
        fill=defaults.targets,
    )
    compactor: str = flag(
        defaults.COMPACTORS[0],
        "The kind of compactor.",
        choices=defaults.COMPACTORS,
        mark=RESREP,
    )
    min_width: int = flag(1, "The least channels that a layer keeps.", lower=1)
    round_to: int = flag(1, "Make widths multiples of this.", lower=1)

    # === Selection and forgetting ===

    schedule: str = flag(
        _PAPER.kind,
        "paper uses the constants of this group unchanged; auto changes them if they "
        "do not forget all masked channels within a quarter of the run; informed is "
        "like auto, but selects channels by gradients instead of norms, and forgets "
        "them early in the run.",
        group="Selection and forgetting",
        choices=SCHEDULES,
        mark=RESREP,
    )
    reset: bool = flag(
        True,
        "Forget masked channels by resetting their gradients. --noreset: no channel is "
        "masked, only the Lasso acts, and --remove decides at the end which to remove.",
        mark=RESREP,
    )
    remove: str = flag(
        SMALLEST,
        "With --noreset, the channels to remove: those of the smallest norm until "
        "--flops_target is met; or, with minimal, all whose removal does not lower the "
        "accuracy on held-out images, whatever the target.",
        choices=REMOVALS,
        mark=RESREP,
    )
    lasso_strength: float = flag(
        _PAPER.lasso_strength,
        "The Lasso's strength, lambda.",
        lower=0,
        positive=True,
        mark=RESREP,
    )
    masked_strength: float | None = flag(
        None,
        "The Lasso's strength on masked rows. By default the same, as in the paper, "
        "unless more is needed to forget them in time and --schedule is not paper.",
        lower=0,
        positive=True,
        mark=RESREP,
    )
    selection_step: int = flag(
        _PAPER.step, "Channels more per selection, theta.", lower=1, mark=RESREP
    )
    selection_interval: int = flag(
        _PAPER.interval, "Training steps between selections.", lower=1, mark=RESREP
    )
    warmup_epochs: float = flag(
        _PAPER.warmup_epochs,
        "Epochs before the first selection.",
        lower=0,
        mark=RESREP,
    )
    compactor_momentum: float = flag(
        None,
        f"Momentum of the compactors' SGD. By default {_PAPER.momentum:g}, but "
        "--momentum for --compactor=filters.",
        lower=0,
        below=1,
        fill=defaults.compactor_momentum,
        mark=RESREP,
    )
    epsilon: float = flag(
        _PAPER.epsilon,
        "Rows of smaller norm count as forgotten.",
        lower=0,
        positive=True,
        below=1,
        mark=RESREP,
    )
    snap: bool = flag(
        None,
        "Set masked rows to exactly zero once they are within one step of it, which "
        "the paper does not do. By default on, unless --schedule=paper.",
        fill=lambda values: values["schedule"] != PAPER,
        mark=RESREP,
    )
    shrink: bool = flag(
        None,
        "When all masked channels are forgotten, rebuild the network without them and "
        "train it for the rest of the epochs, at its lower cost. By default on, "
        "unless --schedule=paper.",
        fill=defaults.shrink,
        mark=RESREP,
    )
    drop_masked: bool = flag(
        False,
        "Remove masked channels in the end even if they are not forgotten yet.",
        mark=RESREP,
    )

    # === Training ===

    epochs: int = flag(
        None,
        f"Epochs of pruning; 0 to stop after the base. {defaults.in_words('epochs')}",
        group="Training",
        lower=0,
        fill=defaults.of_data("epochs"),
    )
    batch_size: int = flag(
        None,
        f"Images in a batch. {defaults.in_words('batch_size')}",
        lower=1,
        fill=defaults.of_data("batch_size"),
    )
    learning_rate: float = flag(
        None,
        f"Learning rate at the start. {defaults.in_words('learning_rate')}",
        lower=0,
        positive=True,
        fill=defaults.of_data("learning_rate"),
    )
    lr_schedule: str = flag(
        "cosine", "How the learning rate changes.", choices=RATE_SCHEDULES
    )
    lr_boundaries: tuple[int, ...] = flag(
        [],
        "For step: epochs at which the rate is divided by 10.",
        read=defaults.boundaries("lr_boundaries"),
    )
    momentum: float = flag(
        0.9, "Momentum of everything but compactors.", lower=0, below=1
    )
    weight_decay: float | None = flag(
        None,
        "L2 in the gradient of convolution and dense kernels. By default 1e-4; a "
        "model from a .keras file keeps its own.",
        lower=0,
        fill=defaults.weight_decay,
    )

    teacher: str = flag(
        NO_TEACHER,
        "A trained model to learn from, beside the labels: base, the path of a .keras "
        "file, or none. Every method can have one; each step then also runs the "
        "teacher's inference.",
        clean=defaults.teacher,
    )

    # === Training of the base ===

    base_epochs: int = flag(
        None,
        "Epochs. By default 0 if weights are given, else "
        + defaults.in_words("base_epochs").removeprefix("By default "),
        group="Training of the base, before pruning",
        lower=0,
        fill=defaults.base_epochs,
    )
    base_learning_rate: float = flag(
        0.1, "Learning rate at the start.", lower=0, positive=True
    )
    base_lr_schedule: str = flag(
        None,
        f"How it changes. {defaults.in_words('base_lr_schedule')}",
        choices=RATE_SCHEDULES,
        fill=defaults.of_data("base_lr_schedule"),
    )
    base_lr_boundaries: tuple[int, ...] = flag(
        None,
        "For step: epochs at which the rate is divided by 10. By default 120,180.",
        fill=defaults.base_lr_boundaries,
        read=defaults.boundaries("base_lr_boundaries"),
    )

    # === Running ===

    output: str | None = flag(
        None,
        "The folder for everything the run writes: a new or empty one, or that of the "
        "same run, which then continues where it was stopped. By default a folder in "
        "runs/ that depends on the flags.",
        group="Running",
        written=False,
        mark=CHANGEABLE,
    )
    seed: int = flag(0, "The seed of all random numbers.", lower=0, upper=2**32 - 1)
    mixed_precision: str = flag(
        "float32",
        "The type to compute in. Weights and exported models are float32.",
        choices=PRECISIONS,
    )
    jit_compile: bool = flag(False, "Compile training steps with XLA.")
    export: tuple[str, ...] = formats_flag()
    snapshot_epochs: int = flag(
        0,
        "Epochs between two snapshots of the wrapped model's weights in snapshots/; "
        "0 for none.",
        lower=0,
        mark=RESREP,
    )
    steps_per_epoch: int | None = flag(
        None, "Shorten epochs to so many training steps, for a trial.", lower=1
    )
    eval_steps: int | None = flag(
        None, "Evaluate on so many batches only, for a trial.", lower=1
    )

    # === Devices and checkpoints ===

    strategy: str = flag(
        "auto",
        "The devices to use: mirrored, all of this machine; multiworker, those of all "
        "machines in TF_CONFIG; auto, mirrored if there are several GPUs.",
        group="Devices and checkpoints",
        choices=STRATEGIES,
        mark=CHANGEABLE,
    )
    sync_batchnorm: bool = flag(
        False, "Let BatchNorms use the whole batch instead of one device's share of it."
    )
    checkpoint_interval: int = flag(
        500, "Training steps between checkpoints.", lower=1, mark=CHANGEABLE
    )
    keep_checkpoints: int = flag(
        3, "The number of checkpoints to keep.", lower=1, mark=CHANGEABLE
    )
    on_nan: str = flag(
        "stop",
        "The reaction to a step whose loss is not finite.",
        choices=("stop", "skip"),
    )


def flag_set() -> FlagSet[Settings]:
    """Returns the flags of the training command."""
    return FlagSet(USAGE, Settings, recipes=True, rewrite=read_on_or_off)


def parse(arguments: Sequence[str]) -> tuple[Settings, str]:
    """Reads a command line.

    Returns:
        The settings, and the text of a flagfile that gives the same ones anywhere.
    """
    settings, text = flag_set().resolve(arguments)
    check(settings)
    return settings, text


def differences(then: Settings, now: Settings) -> list[str]:
    """Returns the flags that differ in two runs, each as `--name=then, now VALUE`."""
    ignored = marked(Settings, CHANGEABLE)
    if "resrep" not in (then.method, now.method):
        ignored += marked(Settings, RESREP)
    pairs = [
        (field.name, getattr(then, field.name), getattr(now, field.name))
        for field in dataclasses.fields(Settings)
        if field.name not in ignored
    ]
    return [f"--{name}={a}, now {b}" for name, a, b in pairs if a != b]
