"""The methods that each study compares: training runs, as lists of flags.

Nothing is trained here: a method is a value of a flag of the training command.
"""

import dataclasses
from collections.abc import Sequence

from resrep_tf.train.settings import MINIMAL

# The strengths of the paper's Lasso on kernels (Sect. 4.3), and the one whose training
# is studied epoch by epoch.
STRENGTHS = (0.3, 0.03, 0.003, 0.001)
TRACED = 0.03
# A step moves by `rate * strength / (1 - momentum)`. The momentum is 0.99 for
# compactors and 0.9 for kernels, so a tenth of the strength pulls compactors as far.
REP_SHARE = 0.1
# Filters are trained with the main optimizer's momentum, whatever a recipe has for
# compactors.
FILTERS = ("--compactor=filters", "--compactor_momentum=0.9")
# Epochs between the models of a trajectory.
EVERY = {"digits": 1, "cifar10": 1, "paper": 5}
# The recipe with everything that a study's runs have in common.
RECIPES = {
    "digits": dict.fromkeys(
        ("variants", "ablation", "trajectory", "criteria"), "digits_study"
    ),
    "cifar10": dict.fromkeys(
        ("variants", "ablation", "trajectory", "criteria"), "cifar10_resnet20_cpu"
    ),
    "paper": {
        "variants": "imagenet_resnet50_flops545",
        "ablation": "cifar10_resnet56_flops529",
        "trajectory": "cifar10_resnet56_flops529",
        "criteria": "imagenet_resnet50_flops545",
    },
}
STUDIES = tuple(RECIPES["paper"])
PRESETS = tuple(RECIPES)


@dataclasses.dataclass(frozen=True)
class Case:
    """One method of a study.

    Attributes:
        name: Its name in folders, tables and `--only`.
        label: Its name in tables and figures.
        flags: Flags of the training command, beside the recipe.
        like: The name of a case; the target is then the FLOPs that it removed.
        group: Cases of one group are points of one line in figures.
    """

    name: str
    label: str
    flags: tuple[str, ...] = ()
    like: str | None = None
    group: str | None = None


RESREP = Case("resrep", "ResRep")
PRUNED_FINETUNED = Case("l2", "pruned by norm, then finetuned", ("--method=l2",))


def cases(study: str, preset: str) -> Sequence[Case]:
    """Returns the methods of a study; those that others refer to come first."""
    if study == "variants":
        return _VARIANTS
    if study == "criteria":
        return _CRITERIA
    if study == "ablation":
        return _ablation()
    every = f"--snapshot_epochs={EVERY[preset]}"
    return (
        Case("resrep-saved", "ResRep", (every,)),
        Case(
            f"lasso-{TRACED:g}-saved",
            f"Lasso on kernels, λ = {TRACED:g}",
            (*_lasso(TRACED), every),
        ),
    )


# Table 3 of the paper.
_VARIANTS = (
    RESREP,
    Case("finetune", "1) base, finetuned", ("--method=finetune",)),
    Case("shrink", "2) uniformly shrunk, from scratch", ("--method=shrink",)),
    dataclasses.replace(PRUNED_FINETUNED, label="3) pruned by norm, then finetuned"),
    Case("vector", "4) vector compactors", ("--compactor=vector",)),
    Case("momentum09", "5) momentum 0.9 on compactors", ("--compactor_momentum=0.9",)),
)

_CRITERIA = (
    RESREP,
    PRUNED_FINETUNED,
    *(
        Case(name, f"{label}, then finetuned", (f"--method={name}",))
        for name, label in [
            ("l1", "pruned by L1 norm"),
            ("fpgm", "FPGM (geometric median)"),
            ("taylor", "Taylor, first order"),
            ("bn_gamma", "BatchNorm's scale"),
            ("random", "random channels"),
        ]
    ),
)


def _ablation() -> tuple[Case, ...]:
    """Returns the cases of Sect. 4.3: the Lasso on kernels, then Rep, Res and both."""
    found = []
    for strength in STRENGTHS:
        tag = f"{strength:g}"
        found.append(
            Case(
                f"lasso-{tag}",
                f"Lasso on kernels, λ = {tag}",
                _lasso(strength),
                group="Lasso on kernels",
            )
        )
    for strength in STRENGTHS:
        tag = f"{strength:g}"
        like = f"lasso-{tag}"
        rep = ("--noreset", f"--lasso_strength={REP_SHARE * strength:g}")
        for name, group, flags in [
            ("rep", "Rep without Res", rep),
            ("res", "Res without Rep", FILTERS),
            ("resrep", "ResRep", ()),
        ]:
            label = f"{group}, FLOPs as λ = {tag}"
            found.append(Case(f"{name}-{tag}", label, flags, like, group))
    return tuple(found)


def _lasso(strength: float) -> tuple[str, ...]:
    """Returns the flags of a Lasso on kernels, followed by the minimal structure."""
    return (
        *FILTERS,
        "--noreset",
        f"--remove={MINIMAL}",
        f"--lasso_strength={strength:g}",
    )
