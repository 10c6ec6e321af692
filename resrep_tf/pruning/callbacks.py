"""Channel selection during training."""

import dataclasses
import warnings
from pathlib import Path

import keras
import numpy as np

from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.planning import (
    check_not_lower,
    plan_run,
    rate_of,
    schedule_of,
    targets_met,
)
from resrep_tf.pruning.state import number
from resrep_tf.selection import selection
from resrep_tf.selection.importance import ranks
from resrep_tf.selection.plan import Plan, needed_strength
from resrep_tf.selection.rates import rates_of_steps
from resrep_tf.selection.schedule import Schedule


class ChannelSelection(keras.callbacks.Callback):
    """Selects the channels to forget, for a global budget (Sect. 3.4 of the paper).

    At least one target must be given. If several are given, all are to be met.

    After the warm-up, every `interval` steps, the limit rises by `step`. The limit is
    the largest number of compactor rows that may be masked; fewer are if the targets
    are met before. The rows of the smallest norm in the whole network are masked first
    (or those on which the loss depends least, see `schedule`).

    Steps are optimizer steps: with gradient accumulation, one step takes several
    batches.

    Args:
        flops_target: The fraction of FLOPs to remove, between 0 and 1.
        warmup_steps: Steps before the first selection; five epochs by default.
        interval: Steps between selections.
        step: How many more rows may be masked at each selection.
        min_width: The least number of channels that a layer keeps.
        round_to: Makes widths multiples of this, within the same budget.
        epsilon: Below this norm a row counts as forgotten.
        schedule: `"auto"` uses these constants if all masked rows are forgotten after
            a quarter of the run. If not, it changes them, including the Lasso's
            strength on masked rows (see `resrep_tf.plan`). It also raises that
            strength for rows that have grown. At the last planned selection it masks
            all rows that are still needed to meet the targets. Then it stops
            selecting, since rows that are masked later would not be forgotten in time.
            `"paper"` uses the constants unchanged and warns if they cannot finish
            within the run. `"informed"` is like `"auto"`, but gradients of recent
            batches choose the channels: it first masks those on which the loss depends
            least, relative to their cost. All of them are forgotten after an eighth of
            the run, and rows that are not masked do not learn.
        total_steps: The step at which training ends, counted from the start of the
            run. By default it follows from the arguments of `fit`. Give it if `fit` is
            called with fewer epochs than the whole run has.
        params_target: The fraction to remove of the parameters that the model has
            when it is converted, between 0 and 1.
        latency_target: The fraction to remove of the latency that `latency_table`
            predicts, between 0 and 1.
        latency_table: The table that `resrep_tf.measure_latency` returned for the
            model before it was wrapped, or the path of its file.

    The state (limit, masks) belongs to the model, so a saved model continues
    where it was. Logs also have `flops_removed`, the fraction of FLOPs that the
    masked channels take, and `forgotten`, the share of masked rows below
    `epsilon`.

    Attributes:
        goals: The targets.
        constraints: The allowed widths.
        schedule: The constants in use; they are changed when training begins.
        plan: The plan of the run; made when training begins.

    Example:

    ```python
    pruner = resrep_tf.wrap(model)
    pruner.compile("adam", loss)
    selection = resrep_tf.ChannelSelection(flops_target=0.5)
    pruner.fit(data, epochs=3, callbacks=[selection])
    slim = resrep_tf.convert(pruner)
    ```
    """

    selects_channels = True

    def __init__(
        self,
        flops_target: float | None = None,
        warmup_steps: int | None = None,
        interval: int = Schedule.interval,
        step: int = Schedule.step,
        min_width: int = 1,
        round_to: int = 1,
        epsilon: float = Schedule.epsilon,
        schedule: str = Schedule.kind,
        total_steps: int | None = None,
        params_target: float | None = None,
        latency_target: float | None = None,
        latency_table: LatencyTable | str | Path | None = None,
    ):
        super().__init__()
        self.goals = Goals(flops_target, params_target, latency_target, latency_table)
        self.constraints = selection.Constraints(None, min_width, round_to)
        self._given = self.schedule = Schedule(
            kind=schedule,
            warmup_steps=warmup_steps,
            interval=interval,
            step=step,
            epsilon=epsilon,
        )
        self.total_steps = total_steps
        self.plan: Plan | None = None

    # === Before training ===

    def on_train_begin(self, logs=None):
        if not isinstance(self.model, ResRepModel):
            raise TypeError(
                "`ChannelSelection` needs a model made by `resrep_tf.wrap`. "
                f"Received: model={self.model!r}"
            )
        self._spaces = self.model.compactor_channels()
        self._budget = self.goals.budget(self.model.graph)
        self._seen: tuple | None = None
        selection.check_reachable(self._spaces, self._budget, self.constraints)
        check_not_lower(self.model, self.goals, self._budget, self.constraints)
        self.model.state.epsilon.assign(self._given.epsilon)
        self.model.state.rows_learn.assign(0.0 if self._given.informed else 1.0)
        self.plan = None
        batches = self.params.get("steps")
        if self._given.fits_run and batches is None and self.total_steps is None:
            raise ValueError(
                "A schedule that fits the run needs its length, but the number of "
                "steps in an epoch is not known. Give `steps_per_epoch` to `fit`, or "
                "`total_steps` to `ChannelSelection`. Received: "
                f"schedule={self._given.kind!r}"
            )
        warmup = self._given.warmup(
            self.total_steps, batches, self.model.batches_per_step
        )
        self.schedule = dataclasses.replace(self._given, warmup_steps=warmup)

    def on_epoch_begin(self, epoch, logs=None):
        self._seen = None
        if self.plan is not None:
            return
        if not self.schedule.fits_run and self.model.compactor_momentum is None:
            return  # Nothing can be predicted for an optimizer of the user's own.
        total, batches = self.total_steps, self.params.get("steps")
        if total is None:
            if batches is None:
                return
            total = batches * self.params["epochs"] // self.model.batches_per_step
            if epoch == 0:  # With `initial_epoch`, `epochs` counts the earlier ones.
                total += number(self.model.optimizer.iterations)
        self._make_plan(total)
        if batches is not None:
            self._check_length(batches * (self.params["epochs"] - epoch))

    def _make_plan(self, total_steps: int) -> None:
        schedule = schedule_of(self.model, self.schedule)
        self._rates = rates_of_steps(rate_of(self.model.leading_optimizer), total_steps)
        self.plan = plan_run(
            self.model, self.goals, self.constraints, schedule, total_steps, self._rates
        )
        if self.schedule.fits_run:
            self.schedule = dataclasses.replace(
                schedule,
                warmup_steps=self.plan.warmup_steps,
                interval=self.plan.interval,
                step=self.plan.step,
            )
            self._raise_strength(self.plan.masked_strength)
        if not self.plan.fits:
            self._warn(self.plan.advice)

    def _check_length(self, batches: int) -> None:
        """Warns if, by the plan, this `fit` ends before all channels are forgotten."""
        end = number(self.model.optimizer.iterations)
        end += batches // self.model.batches_per_step
        if self.total_steps is not None and self.plan.forgotten_by > end:
            self._warn(
                f"This `fit` ends at step {end:,} of `total_steps={self.total_steps}`: "
                "by the plan, channels are forgotten by step "
                f"{self.plan.forgotten_by:,}, and `convert` keeps those that are not. "
                "Call `fit` again to continue; or, if this is the whole run, leave out "
                "`total_steps`."
            )

    def _warn(self, text: str) -> None:
        """Warns about the plan; a subclass may leave out what the user knows."""
        warnings.warn(text, stacklevel=3)

    # === During training ===

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution`, several steps have passed since the last call.
        step = number(self.model.optimizer.iterations)
        if step < self.schedule.warmup_steps or self._is_settled():
            return
        due = (step - self.schedule.warmup_steps) // self.schedule.interval + 1
        limit = due * self.schedule.step
        if self.schedule.fits_run and due >= self.plan.selections:
            # The number of rows in the plan is an estimate, but its last selection is
            # fixed: it masks as many rows as the targets need.
            limit = sum(compactor.width for compactor in self.model.compactors)
        if limit > number(self.model.state.selection_limit):
            self.model.state.selection_limit.assign(limit)
            self.select()

    def _is_settled(self) -> bool:
        """Returns whether masks do not change any more."""
        if not self.schedule.fits_run:
            return False
        # Reading all masks at every step would be slow. They change only when one of
        # these two numbers changes.
        state = self.model.state
        seen = number(state.flops_removed), number(state.selection_limit)
        if seen != self._seen:
            self._seen = seen
            self._met = targets_met(self.model, self.goals, self._budget)
        return self._met

    def on_epoch_end(self, epoch, logs=None):
        # Computed again, since a selection may have followed the last batch.
        if logs is not None:
            logs["flops_removed"] = number(self.model.state.flops_removed)
            logs["forgotten"] = float(self.model.forgotten_share())

    def select(self) -> selection.Selection:
        """Selects the rows to mask, and sets the masks of all compactors."""
        norms = [np.asarray(c.row_norms()) for c in self.model.compactors]
        if not all(np.isfinite(each).all() for each in norms):
            raise FloatingPointError(
                "Training has diverged: compactors have NaN or infinite rows. Go back "
                "to a checkpoint and use a lower learning rate, unless the data "
                "themselves hold NaN. Received: "
                f"learning_rate={number(self.model.leading_optimizer.learning_rate)}"
            )
        chosen = selection.select(
            self._ranks() if self.schedule.informed else norms,
            self._spaces,
            self._budget,
            self.constraints,
            limit=number(self.model.state.selection_limit),
        )
        self.model.set_masks(chosen.masks)
        self.model.state.flops_removed.assign(chosen.removed)
        if self.schedule.fits_run:
            self._raise_strength(self._strength_in_time(norms, chosen))
        return chosen

    def _ranks(self) -> list[np.ndarray]:
        masks = [np.asarray(c.mask) for c in self.model.compactors]
        return ranks(self.model.row_importance(), self._spaces, self._budget, masks)

    def _strength_in_time(
        self, norms: list[np.ndarray], chosen: selection.Selection
    ) -> float:
        """Returns the Lasso strength with which the largest masked row is zero in time.

        The plan knows only the norms at the start. Rows may grow before they are
        masked: if a normalisation follows them, their common scale is arbitrary.
        """
        masked = (n[m < 0.5] for n, m in zip(norms, chosen.masks, strict=True))
        largest = float(np.concatenate([*masked, [0.0]]).max())
        now, end = number(self.model.optimizer.iterations), self.plan.forgotten_by
        # With `steps_per_execution`, a selection may come after its planned step.
        rates = self._rates[now:end] if now < end else self._rates[now:]
        return needed_strength(rates, largest, self.model.compactor_momentum)

    def _raise_strength(self, strength: float) -> None:
        """Raises the strength on masked rows to a value; never lowers it.

        With a lower strength, rows that were masked earlier would not be forgotten in
        time.
        """
        strength = max(strength, number(self.model.state.masked_strength))
        self.model.state.masked_strength.assign(strength)
