"""The study command: compares several methods on one base."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.flagset import FlagSet, flag
from resrep_tf.export import files
from resrep_tf.lazy import keras
from resrep_tf.study.cases import PRESETS, RECIPES, STUDIES, Case, cases
from resrep_tf.study.results import Result
from resrep_tf.train import pipeline, settings
from resrep_tf.train.checks import check_files
from resrep_tf.train.settings import Settings

USAGE = """
Runs the paper's comparisons: several methods on the same base, with the same data in
the same order, for the same number of epochs.

  python -m resrep_tf.study --study=variants --preset=digits --seeds=0,1,2
  python -m resrep_tf.study --study=criteria --preset=cifar10 --init_weights=FILE

Flags that are not listed here go to every training run; see
`python -m resrep_tf.train --helpshort`. The same command continues where it was
stopped.
"""

_RUNS = "runs"


def _read_seeds(values: Sequence[str]) -> tuple[int, ...]:
    try:
        seeds = tuple(int(value) for value in values)
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise CommandError(
            "`--seeds` must be different numbers, such as 0,1,2. "
            f"Received: --seeds={','.join(values)}"
        )
    return seeds


@dataclasses.dataclass(frozen=True)
class Flags:
    """The flags of the command; all others go to the training runs."""

    study: str | None = flag(
        None,
        "variants: Table 3 of the paper, baselines and variants of ResRep. ablation: "
        "Sect. 4.3, with and without Rep and Res. trajectory: Fig. 4, what pruning "
        "would cost at each epoch. criteria: other ways to choose channels.",
        group="Study",
        choices=STUDIES,
    )
    preset: str = flag(
        "digits",
        "The setting: digits takes minutes on a CPU, cifar10 hours; paper is the "
        "paper's own.",
        choices=PRESETS,
    )
    seeds: tuple[int, ...] = flag(
        ["0"], "Seeds; every method is run with each of them.", read=_read_seeds
    )
    only: tuple[str, ...] = flag(
        [], "Run and show these methods only, by their names.", read=tuple
    )
    output: str | None = flag(
        None,
        "The folder for runs and results. Studies of one preset may share it, and "
        "then share runs. By default studies/PRESET.",
    )


def run(arguments: Sequence[str]) -> None:
    """Runs the command on a command line without the program's name."""
    study = Study.parse(arguments)
    study.check()
    study.run()


@dataclasses.dataclass(frozen=True)
class Study:
    """A study that is to be run.

    Attributes:
        name: The name of the study.
        preset: The name of the setting.
        seeds: The seeds.
        cases: The methods.
        folder: The folder for runs and results.
        flags: The flags of every training run.
        command: The command line.
    """

    name: str
    preset: str
    seeds: tuple[int, ...]
    cases: tuple[Case, ...]
    folder: Path
    flags: tuple[str, ...]
    command: str

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Study":
        """Reads a command line without the program's name."""
        flags, others = FlagSet(USAGE, Flags).parse_known(arguments)
        name, preset = flags.study, flags.preset
        if name is None:
            raise CommandError(
                f"`--study` must be given: {', '.join(STUDIES)}. Received: no --study"
            )
        return cls(
            name,
            preset,
            flags.seeds,
            _choose(cases(name, preset), flags.only),
            Path(flags.output or Path("studies", preset)).expanduser(),
            (f"--recipe={RECIPES[preset][name]}", *others),
            " ".join(["python -m resrep_tf.study", *arguments]),
        )

    # === Before anything is trained ===

    def check(self) -> None:
        """Raises if a flag of any run is wrong, before hours of training."""
        output.check(self.folder)
        self._check_foreign()
        for seed in self.seeds:
            for case in self.cases:
                found, _ = settings.parse(self._case_flags(case, seed))
                _check(found)
        check_files(found)  # The files are the same for all runs.

    def _check_foreign(self) -> None:
        """Raises if the folder holds other files than those of studies."""
        own = {_RUNS, *STUDIES}
        names = [p.name for p in self.folder.iterdir()] if self.folder.is_dir() else []
        foreign = sorted(
            name
            for name in names
            if name not in own and not name.startswith(files.TEMPORARY)
        )
        if foreign:
            raise CommandError(
                "`--output` must be a new or empty folder, or that of other studies; "
                f"this one holds {', '.join(foreign[:3])}. "
                f"Received: --output={self.folder}"
            )

    @property
    def trains_bases(self) -> bool:
        """True if the study trains the bases itself."""
        found, _ = settings.parse([*self.flags, "--seed=0"])
        return found.base_epochs > 0

    # === Runs ===

    def run(self) -> None:
        """Trains the runs that are not complete, then writes the results."""
        # Here, since they import TensorFlow, which takes seconds.
        from resrep_tf.study import report, trajectory

        results = [result for seed in self.seeds for result in self._run(seed)]
        traces = []
        if self.name == "trajectory":
            traces = [trajectory.trace(result) for result in results]
        report.write(self.folder / self.name, self.title, self.command, results, traces)

    def _run(self, seed: int) -> list[Result]:
        """Runs all methods with one seed; returns their results."""
        if self.trains_bases:
            self._train(f"base, seed {seed}", self._base_flags(seed))
        results: dict[str, Result] = {}
        seen: dict[str, Settings] = {}
        for case in self.cases:
            target = None
            if case.like is not None:
                target = results[case.like].flops_removed
                if target <= 0:
                    print(f"\n=== {case.name}: {case.like} removed nothing; left out")
                    continue
            flags = self._case_flags(case, seed, target)
            found, _ = settings.parse(flags)
            twin = _twin(found, seen)
            if twin is not None:
                print(f"\n=== {case.name}: the same as {twin} here; not run again")
                results[case.name] = dataclasses.replace(results[twin], case=case)
                continue
            seen[case.name] = found
            self._train(f"{case.name}, seed {seed}", flags)
            folder = self._folder(case.name, seed)
            results[case.name] = Result.read(case, seed, folder)
        return list(results.values())

    @property
    def title(self) -> str:
        return f"{self.name.capitalize()}, {self.preset}"

    def _train(self, title: str, flags: Sequence[str]) -> None:
        found, _ = settings.parse(flags)
        print(f"\n=== {title}")
        if pipeline.complete(found, Path(found.output)):
            print(f"{found.output} is complete")
            return
        keras.utils.clear_session()
        pipeline.run(flags)

    def _folder(self, name: str, seed: int) -> Path:
        return self.folder / _RUNS / f"{name}-{seed}"

    def _base_flags(self, seed: int) -> list[str]:
        folder = self._folder("base", seed)
        return [*self.flags, "--epochs=0", f"--seed={seed}", f"--output={folder}"]

    def _case_flags(
        self, case: Case, seed: int, flops_target: float | None = None
    ) -> list[str]:
        """Returns the flags of a method's run."""
        folder = self._folder(case.name, seed)
        flags = [*self.flags, *case.flags, f"--seed={seed}", f"--output={folder}"]
        base = self._folder("base", seed) / output.BASE
        # Weights that the user names are the base, even if an earlier study trained
        # one.
        if self.trains_bases and base.exists():
            flags += [f"--init_weights={base}", "--base_epochs=0"]
        if flops_target is not None:
            flags.append(f"--flops_target={flops_target}")
        return flags


def _check(found: Settings) -> None:
    if found.strategy == "multiworker":
        raise CommandError(
            "`--strategy=multiworker` needs a process of its own for each run. Start "
            "the methods one by one with `python -m resrep_tf.train`, then the study "
            "to compare them. Received: --strategy=multiworker"
        )


def _twin(found: Settings, others: Mapping[str, Settings]) -> str | None:
    """Returns the name of a run that computes the same, or None."""
    for name, other in others.items():
        if not settings.differences(other, found):
            return name
    return None


def _choose(known: Sequence[Case], names: Sequence[str]) -> tuple[Case, ...]:
    unknown = set(names) - {case.name for case in known}
    if unknown:
        raise CommandError(
            f"`--only` must name methods of this study: "
            f"{', '.join(case.name for case in known)}. "
            f"Received: --only={','.join(names)}"
        )
    # The methods that the named ones refer to are needed too.
    needed = {case.like for case in known if case.name in names}
    wanted = {*names, *needed} if names else {case.name for case in known}
    return tuple(case for case in known if case.name in wanted)
