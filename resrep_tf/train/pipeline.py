"""The training command: reads flags and runs the job."""

from collections.abc import Sequence
from pathlib import Path

import resrep_tf
from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.models import imports
from resrep_tf.cli.tensorflow_log import start_tensorflow
from resrep_tf.cli.workers import start
from resrep_tf.train import settings as settings_module
from resrep_tf.train.checks import check_files
from resrep_tf.train.settings import Settings


def run(arguments: Sequence[str]) -> None:
    """Runs the training command on a command line without the program's name."""
    settings, flagfile = settings_module.parse(arguments)
    folder = output.choose(settings.output, settings.arch, settings.dataset, flagfile)
    if complete(settings, folder):
        print(f"This run is complete. To repeat it, remove {folder}.\n")
        print(_finished(folder))
        return
    if settings.strategy != "multiworker":  # With several workers, the chief writes.
        output.check(folder)
    check_files(settings)
    interruption = Interruption()
    with interruption.watching():
        start_tensorflow()
        workers = start(settings.strategy)
        if workers.chief:
            output.check(folder)
        # Here, since it imports all of TensorFlow, which takes seconds.
        from resrep_tf.train.job import Job

        imports.bring(settings.imports)
        job = Job.prepare(settings, folder, workers, interruption)
        if not workers.chief:
            job.work()
            return
        output.create(folder)
        if not output.holds_run(folder):
            output.write_text(folder / output.FLAGS, _header(folder) + flagfile)
        with output.locked(folder):
            print(f"Writing to {folder}")
            job.lead()


def complete(settings: Settings, folder: Path) -> bool:
    """Returns whether a folder holds this run, finished; raises if it holds another."""
    if not output.holds_run(folder):
        return False
    _check_same(settings, folder)
    done = (folder / output.REPORT).exists()
    if done and settings.epochs and not (folder / output.PRUNED).exists():
        # What other methods train is in that file alone.
        how = "" if settings.method == "resrep" else ", which takes another training"
        print(f"{folder / output.PRUNED} is missing; it is made again{how}.")
        return False
    return done


def _check_same(settings: Settings, folder: Path) -> None:
    """Raises if a folder holds a run with other settings."""
    try:
        then, _ = settings_module.parse([f"--flagfile={folder / output.FLAGS}"])
    except CommandError as error:
        raise CommandError(
            f"`--output` holds a run whose {output.FLAGS} is damaged, or names a "
            f"missing file. Give another folder, or repair it: {error}"
        ) from error
    differences = settings_module.differences(then, settings)
    if differences:
        raise CommandError(
            f"`--output` holds another run: {'; '.join(differences)}. Give another "
            "folder, or the same flags to continue that run. "
            f"Received: --output={folder}"
        )


def _header(folder: Path) -> str:
    return (
        f"# A run of resrep_tf {resrep_tf.__version__}, with every flag resolved.\n"
        f"# Repeat it: python -m resrep_tf.train --flagfile={folder / output.FLAGS}\n\n"
    )


def _finished(folder: Path) -> str:
    report = output.read_report(folder)
    from resrep_tf.train.records import reporting

    try:
        return reporting.summary(report, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise output.damaged(folder / output.REPORT, folder, error) from error
