"""The method ResRep: wrap, train until channels are forgotten, shrink, convert."""

import dataclasses
import functools
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

import resrep_tf
from resrep_tf.baselines import ablation, minimal
from resrep_tf.cli import output
from resrep_tf.cli.errors import blame
from resrep_tf.convert import UnfinishedWarning
from resrep_tf.evaluate import accuracy
from resrep_tf.prune.changes import difference
from resrep_tf.pruning.planning import targets_met
from resrep_tf.pruning.rows import unforgotten
from resrep_tf.pruning.state import number
from resrep_tf.surgery.fuse import fused
from resrep_tf.train.checkpoints import transfer
from resrep_tf.train.checks import blame_targets, goals
from resrep_tf.train.methods.base import Method, Outcome, copy
from resrep_tf.train.phases import PRUNE, RECOVER, Phase, Rate, Ready
from resrep_tf.train.records.snapshots import Snapshots
from resrep_tf.train.settings import MINIMAL

# The number of batches on which the statistics of fresh BatchNorms are measured.
SHRINK_BATCHES = 16


class ResRep(Method):
    """Wraps, trains, shrinks and converts; with `--noreset`, by the Lasso alone."""

    def phases(self, base):
        settings = self.settings
        epochs, rate = range(settings.epochs), self._rate(settings.learning_rate)
        title = f"Pruning, {settings.epochs} epochs"
        prune = Phase(
            PRUNE,
            title,
            epochs,
            rate,
            self._make,
            self._plain,
            file=output.PRUNER,
            keeps_state=True,
        )
        if not settings.shrink:
            return (prune,)
        prune = dataclasses.replace(
            prune,
            title=f"{title}, shrinking when all masked channels are forgotten",
            over=self._forgotten,
        )
        recover = Phase(
            RECOVER,
            f"Training the shrunk network, to {settings.epochs} epochs in all",
            epochs,
            rate,
            functools.partial(self._shrink, self._lesson(base)),
            lambda pruner, trained: copy(trained),
            file=output.SHRUNK,
            after=PRUNE,
            needed=self._forgotten,
        )
        return (prune, recover)

    def _forgotten(self, pruner: keras.Model) -> bool:
        """Returns whether the target is met and all masked rows are forgotten."""
        if not targets_met(pruner, goals(self.settings)):
            return False
        return not unforgotten(pruner, self.settings.epsilon)

    def _shrink(
        self, lesson: Mapping[str, Any], pruner: keras.Model, rate: Rate
    ) -> Ready:
        # So dropout's random numbers are the same each time the model is made.
        keras.utils.set_random_seed(self.settings.seed)
        optimizer = self.trainer.optimizer(rate)
        slim, report = resrep_tf.shrink(
            pruner,
            self.trainer.same_batches(SHRINK_BATCHES),
            SHRINK_BATCHES,
            epsilon=self.settings.epsilon,
            optimizer=optimizer,
            return_report=True,
        )
        log = _Removed(number(pruner.state.flops_removed))
        return Ready(self._compiled(slim, optimizer, lesson), (log,), note=str(report))

    def _make(self, base: keras.Model, rate: Rate) -> Ready:
        settings = self.settings
        pruner = self._wrap(base, rate, self._lesson(base))
        plan = self._plan(pruner)
        if not settings.reset:
            return Ready(pruner, (ablation.LassoOnly(), *self._snapshots()))
        callback = _PlannedSelection(
            total_steps=self._total_steps, **self._asked(), **self._selection()
        )
        return Ready(pruner, (callback, *self._snapshots()), plan)

    def _wrap(
        self, base: keras.Model, rate: Rate, lesson: Mapping[str, Any]
    ) -> resrep_tf.ResRepModel:
        """Returns the wrapped, compiled model."""
        settings = self.settings
        # So dropout's random numbers are the same each time the model is made.
        keras.utils.set_random_seed(settings.seed)
        with blame("targets"):
            pruner = resrep_tf.wrap(base, self._targets(), settings.compactor)
        with blame("teacher"):
            self.trainer.compile(
                pruner,
                self.trainer.optimizer(rate),
                compactor_optimizer=settings.compactor_momentum,
                lasso_strength=settings.lasso_strength,
                masked_strength=settings.masked_strength,
                snap=settings.snap,
                **lesson,
            )
        return pruner

    def _plan(self, pruner: resrep_tf.ResRepModel) -> resrep_tf.Plan:
        """Returns the plan of the run; raises if the target is out of reach."""
        with blame_targets():
            return resrep_tf.plan(
                pruner,
                total_steps=self._total_steps,
                **self._asked(),
                **self._selection(),
            )

    @property
    def _total_steps(self) -> int:
        return self.settings.epochs * self.trainer.steps_per_epoch

    def _selection(self) -> dict[str, Any]:
        settings, steps = self.settings, self.trainer.steps_per_epoch
        return {
            "warmup_steps": round(settings.warmup_epochs * steps),
            "interval": settings.selection_interval,
            "step": settings.selection_step,
            "min_width": settings.min_width,
            "round_to": settings.round_to,
            "epsilon": settings.epsilon,
            "schedule": settings.schedule,
        }

    def _snapshots(self) -> list[keras.callbacks.Callback]:
        every, trainer = self.settings.snapshot_epochs, self.trainer
        if not every:
            return []
        folder = trainer.folder / output.SNAPSHOTS
        return [Snapshots(folder, every, trainer.workers.chief)]

    def _plain(self, base: keras.Model, trained: keras.Model) -> keras.Model:
        if not self.trainer.workers.replicated:
            return trained
        # A model without replicas: one worker can read it without the others.
        plain = self._wrap(base, self._rate(self.settings.learning_rate), {})
        transfer(trained, plain)
        return plain

    def finish(self, base, trained, plan):
        settings = self.settings
        if not isinstance(trained, resrep_tf.ResRepModel):
            return self._finish_shrunk(base, trained, plan)
        keep = self._keep(trained)
        with warnings.catch_warnings():
            # The note below says the same in the words of the command's flags.
            warnings.simplefilter("ignore", UnfinishedWarning)
            slim, conversion = resrep_tf.convert(
                trained,
                epsilon=settings.epsilon,
                keep=keep,
                drop_masked=settings.drop_masked,
                return_report=True,
            )
        print(conversion)
        if not settings.drop_masked:
            print(advice(trained, settings.epsilon), end="")
        return Outcome(slim, conversion, plan)

    def _finish_shrunk(
        self, base: keras.Model, trained: keras.Model, plan: resrep_tf.Plan | None
    ) -> Outcome:
        with output.atomic(self.trainer.folder / output.SHRUNK) as path:
            trained.save(path)
        slim, rounding = fused(trained)
        conversion = dataclasses.replace(difference(base, slim), difference=rounding)
        print(conversion)
        return Outcome(slim, conversion, plan)

    def _keep(self, pruner: resrep_tf.ResRepModel) -> dict[str, np.ndarray] | None:
        """Returns the channels to keep; None if training has selected them."""
        settings = self.settings
        if settings.reset:
            return None
        if settings.remove == MINIMAL:
            print("Looking for the minimal structure")
            images = self.trainer.data.evaluation()
            structure = minimal.minimal_structure(
                pruner,
                accuracy.limited(images, settings.eval_steps),
                min_width=settings.min_width,
                verbose=int(accuracy.verbosity() == 1),
            )
            print(structure)
            return structure.keep
        return ablation.keep_largest(
            pruner,
            min_width=settings.min_width,
            round_to=settings.round_to,
            **self._asked(),
        )


def advice(pruner: resrep_tf.ResRepModel, epsilon: float) -> str:
    """Returns advice about masked rows that are not forgotten; empty if all are."""
    left = unforgotten(pruner, epsilon)
    if not left:
        return ""
    return (
        f"NOTE: {left} Train for longer (`--epochs`), let the constants fit the run "
        "(`--schedule=auto`), set rows to zero when they are near it (`--snap`), or "
        "remove them now, at some loss: `--drop_masked`, or for this run "
        "`python -m resrep_tf.convert --pruner=pruner.keras --drop_masked`.\n"
    )


class _Removed(keras.callbacks.Callback):
    """Adds to a shrunk network's logs the metrics of channels of the wrapped one."""

    def __init__(self, flops_removed: float):
        super().__init__()
        self._flops_removed = flops_removed

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs |= {"flops_removed": self._flops_removed, "forgotten": 1.0}


class _PlannedSelection(resrep_tf.ChannelSelection):
    """A channel selection that does not warn, since its plan was printed before."""

    def _warn(self, text):
        pass
