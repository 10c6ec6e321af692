"""Plans a run: predicts whether every masked row is forgotten before its end.

`resrep_tf.selection.forgetting` describes how a row shrinks.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resrep_tf.budget.combined import (
    FLOPS_TARGET,
    LATENCY_TARGET,
    PARAMS_TARGET,
    check_target,
)
from resrep_tf.markup import notebook_table
from resrep_tf.selection.checks import check_not_negative, check_positive_integer
from resrep_tf.selection.forgetting import forget, needed_strength
from resrep_tf.selection.rates import rates_of_steps
from resrep_tf.selection.schedule import AUTO, INFORMED, Schedule


@dataclass(frozen=True)
class _Milestones:
    """The milestones of a derived schedule, as fractions of the run.

    If channels are removed early, the network can compensate for them in the rest of
    the run, at a high learning rate. On runs too short for the paper's constants, that
    gained more than a weaker Lasso.

    Attributes:
        warmup: The end of the warm-up.
        selected: The last selection.
        forgotten: The moments at which the last row is to be forgotten, of which the
            first that fits is used. Later ones need a weaker Lasso. They are for rows
            that are not snapped and would otherwise go on swinging.
    """

    warmup: float
    selected: float
    forgotten: tuple[float, ...]


_LATER = (0.25, 0.4, 0.55, 0.7)
_NORMS = _Milestones(0.05, 0.12, _LATER)
# Earlier: gradients show the importance of rows sooner than norms do, and rows that do
# not learn do not grow.
_GRADIENTS = _Milestones(0.03, 0.10, (0.12, *_LATER))

# Selecting more often than this is useless: norms hardly change in between.
_SHORTEST_INTERVAL = 10


@dataclass(frozen=True)
class Plan:
    """The constants of a run, and the predicted course of the run.

    Steps are numbers of completed optimizer steps. Selection number `k`, counted from
    1, takes place after `warmup_steps + (k - 1) * interval` steps and may mask up to
    `k * step` rows.

    Attributes:
        total_steps: Length of the run.
        warmup_steps, interval, step, masked_strength, momentum, snap: The constants,
            as they were given or derived; see `resrep_tf.selection.schedule.Schedule`.
        flops_target: Fraction of the FLOPs to remove, None if that is not asked for.
        rows_to_mask: Number of rows that the target takes, estimated.
        row_norm: The largest norm that a row has when it is masked, by the norms
            before training. At a high learning rate rows may grow; derived constants
            allow for it.
        selections: Number of selections it takes to mask the rows.
        target_reached_at: Step of the last of these selections. None if the run ends
            before.
        forgotten_at: Step from which the last masked row is zero (with `snap`) or
            stays below epsilon (without). None if that is not within the run. The
            prediction assumes that the row has norm `row_norm` and no velocity when
            it is masked.
        fits: Whether the run forgets every masked row in time.
        advice: Why the run does not fit, and constants that would. Empty if it fits.
        params_target: Fraction of the parameters to remove.
        latency_target: Fraction of the latency to remove.
        schedule: The kind of schedule: `"auto"`, `"informed"` or `"paper"`.
    """

    total_steps: int
    warmup_steps: int
    interval: int
    step: int
    masked_strength: float
    momentum: float
    snap: bool
    flops_target: float | None
    rows_to_mask: int
    row_norm: float
    selections: int
    target_reached_at: int | None
    forgotten_at: int | None
    fits: bool
    advice: str
    params_target: float | None = None
    latency_target: float | None = None
    schedule: str = AUTO

    @property
    def forgotten_by(self) -> int:
        """The step by which derived constants forget all rows, even ones that grew."""
        expected = self.forgotten_at or self.total_steps
        soonest = _milestones(self.schedule).forgotten[0]
        return max(expected, round(soonest * self.total_steps))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain, JSON-compatible values."""
        return dataclasses.asdict(self)

    def _targets(self) -> list[str]:
        asked = {
            "fewer FLOPs": self.flops_target,
            "fewer parameters": self.params_target,
            "less latency": self.latency_target,
        }
        return [f"{t:.1%} {what}" for what, t in asked.items() if t is not None]

    def __str__(self):
        return "\n".join(f"{label:<20}{text}" for label, text in self._lines())

    def _repr_html_(self):
        return notebook_table(["", ""], self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        def when(step: int | None) -> str:
            if step is None:
                return "not within the run"
            return f"step {step:,} ({step / self.total_steps:.0%} of the run)"

        lines = {
            "run": f"{self.total_steps:,} steps",
            "target": f"{', '.join(self._targets())}, about {self.rows_to_mask:,} rows "
            f"to mask, of norm {self.row_norm:.3g} at most",
            "selection": f"from step {self.warmup_steps:,}, {self.step:,} more rows "
            f"every {self.interval:,} steps, {self.selections:,} times",
            "forgetting": f"strength on masked rows {self.masked_strength:g}, momentum "
            f"{self.momentum:g}, snapping {'on' if self.snap else 'off'}",
            "target reached": when(self.target_reached_at),
            "last row forgotten": when(self.forgotten_at),
            "fits": "yes" if self.fits else f"no. {self.advice}",
        }
        return list(lines.items())


@dataclass(frozen=True, eq=False)
class _Task:
    """The rows that a schedule has to forget, and the learning rates of the run.

    Attributes:
        rows: Number of rows to mask.
        row_norm: Largest norm that a row has when it is masked.
        rates: The learning rate of every step.
        targets: The fractions to remove, by argument; None for those not asked for.
    """

    rows: int
    row_norm: float
    rates: np.ndarray
    targets: dict[str, float | None]

    @property
    def total_steps(self) -> int:
        return self.rates.size


def make_plan(
    rows_to_mask: int,
    total_steps: int,
    learning_rate: float | Callable[[int], float] | np.ndarray,
    flops_target: float | None,
    schedule: Schedule,
    row_norm: float = 1.0,
    params_target: float | None = None,
    latency_target: float | None = None,
) -> Plan:
    """Predicts when a run reaches its target and when the last row is forgotten.

    Args:
        rows_to_mask: Number of rows to mask for the target; see
            `resrep_tf.selection.selection.rows_for_target`.
        total_steps: Length of the run in optimizer steps.
        learning_rate: A constant, one value for each step, or a function of the step,
            such as a Keras schedule. A function is called for at most 512 steps and
            interpolated in between.
        flops_target: Fraction of the FLOPs to remove, None if that is not asked for.
        schedule: The constants. Kind `"paper"` uses them unchanged, and so does
            `"auto"` if all rows are forgotten in the first quarter of the run.
            Otherwise warm-up, interval, step and masked strength are derived from the
            run; given values that fit are kept.
        row_norm: Largest norm that a row may have when it is masked. Compactors start
            as the identity, whose rows have norm 1.
        params_target: Fraction of the parameters to remove.
        latency_target: Fraction of the latency to remove.

    Returns:
        The plan. If it does not fit, its `advice` says why, and names constants that
        would fit.
    """
    check_positive_integer("rows_to_mask", rows_to_mask)
    check_positive_integer("total_steps", total_steps)
    check_not_negative("row_norm", row_norm)
    targets = {
        FLOPS_TARGET: flops_target,
        PARAMS_TARGET: params_target,
        LATENCY_TARGET: latency_target,
    }
    targets = {n: None if t is None else float(t) for n, t in targets.items()}
    for argument, target in targets.items():
        if target is not None:
            check_target(target, argument)
    task = _Task(
        rows=int(rows_to_mask),
        row_norm=float(row_norm),
        rates=rates_of_steps(learning_rate, int(total_steps)),
        targets=targets,
    )
    plan = (_fit if schedule.fits_run else _predict)(task, schedule)
    if plan.fits:
        return plan
    # A schedule that fits the run and still does not fit is derived already.
    derived = plan if schedule.fits_run else _derive(task, schedule)
    remedy = _remedy(derived, task, schedule)
    return dataclasses.replace(plan, advice=f"{plan.advice} {remedy}")


# === Prediction ===


def _predict(task: _Task, schedule: Schedule) -> Plan:
    """Predicts the run with the given constants; `advice` says why they do not fit."""
    plan = Plan(
        total_steps=task.total_steps,
        warmup_steps=schedule.warmup(task.total_steps, None),
        interval=int(schedule.interval),
        step=int(schedule.step),
        masked_strength=float(schedule.strength),
        momentum=float(schedule.momentum),
        snap=bool(schedule.snap),
        **task.targets,
        rows_to_mask=task.rows,
        row_norm=task.row_norm,
        selections=math.ceil(task.rows / schedule.step),
        target_reached_at=None,
        forgotten_at=None,
        fits=False,
        advice="",
        schedule=schedule.kind,
    )
    reached = plan.warmup_steps + (plan.selections - 1) * plan.interval
    if reached >= plan.total_steps:
        reason = (
            f"The last of {plan.selections:,} selections would come at step "
            f"{reached:,}, but the run has {plan.total_steps:,} steps."
        )
        return dataclasses.replace(plan, advice=reason)
    # Channels are selected after a step, so nothing is forgotten in the first step.
    rates = task.rates[reached:] if task.total_steps > 1 else task.rates[:0]
    steps, norm = forget(rates, task.row_norm, schedule)
    if steps is None:
        reason = (
            f"A row masked at step {reached:,} may still have norm {norm:.2g} at the "
            f"end of the run ({plan.total_steps:,} steps)."
        )
        return dataclasses.replace(plan, target_reached_at=reached, advice=reason)
    return dataclasses.replace(
        plan, target_reached_at=reached, forgotten_at=reached + steps, fits=True
    )


# === Derivation ===


def _fit(task: _Task, schedule: Schedule) -> Plan:
    """Predicts the run with the constants as they are if they suit it, or derived.

    They suit it if they forget all rows as early as derived ones would: constants
    that are done just before the end leave nothing of the run to make up for what was
    removed, and a longer run would be worse than a shorter one with derived constants.
    Rows that are not snapped come to rest late whatever the constants; the milder
    these are, the sooner.
    """
    if not schedule.informed:
        plan = _predict(task, schedule)
        soonest = _milestones(schedule.kind).forgotten[0] * task.total_steps
        if plan.fits and (not plan.snap or plan.forgotten_at <= soonest):
            return plan
    return _derive(task, schedule)


def _derive(task: _Task, schedule: Schedule) -> Plan:
    """Predicts the run with derived constants, which fit if any do."""
    rows, total = task.rows, task.total_steps
    dates = _milestones(schedule.kind)
    warmup = min(schedule.warmup(total, None), round(dates.warmup * total))
    window = max(0, math.floor(dates.selected * total) - warmup)
    interval, step = _pace(rows, window, schedule.interval, schedule.step)
    reached = warmup + (math.ceil(rows / step) - 1) * interval
    for fraction in dates.forgotten:
        end = max(reached + 1, round(fraction * total))
        needed = needed_strength(
            task.rates[reached:end], task.row_norm, schedule.momentum
        )
        changed = dataclasses.replace(
            schedule,
            warmup_steps=warmup,
            interval=interval,
            step=step,
            masked_strength=max(schedule.strength, needed),
        )
        plan = _predict(task, changed)
        if plan.fits:
            break
    return plan


def _milestones(kind: str) -> _Milestones:
    return _GRADIENTS if kind == INFORMED else _NORMS


def _pace(rows: int, window: int, interval: int, step: int) -> tuple[int, int]:
    """Fits the selections into `window` steps; shortens the interval before `step`."""
    pauses = math.ceil(rows / step) - 1
    if pauses * interval <= window:
        return interval, step
    if window // pauses >= _SHORTEST_INTERVAL:
        return window // pauses, step
    # On a very short run a tenth of the window keeps selection progressive.
    interval = min(interval, _SHORTEST_INTERVAL, max(1, window // 10))
    return interval, math.ceil(rows / (window // interval + 1))


def _remedy(derived: Plan, task: _Task, schedule: Schedule) -> str:
    """Returns a text with constants that fit: without snapping, or else with it."""
    start = "These constants fit"
    if not derived.fits and not derived.snap:
        start = "No constants fit without snapping; with `snap=True` these do"
        derived = _fit(task, dataclasses.replace(schedule, snap=True))
    if not derived.fits:
        return "No constants fit: train for longer or at a higher learning rate."
    return (
        f"{start}: warmup_steps={derived.warmup_steps}, interval={derived.interval}, "
        f"step={derived.step}, masked_strength={derived.masked_strength:g}."
    )
