"""Makes plans for a model: predicts whether a run forgets all masked rows."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.budget.combined import FLOPS_TARGET, CombinedBudget
from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.pruning.state import number
from resrep_tf.selection.plan import Plan, make_plan
from resrep_tf.selection.schedule import Schedule
from resrep_tf.selection.selection import (
    Constraints,
    largest_bundle,
    rows_for_target,
)


def plan(
    pruner: Any,
    flops_target: float | None = None,
    total_steps: int | None = None,
    *,
    learning_rate: float | Callable[[int], float] | None = None,
    warmup_steps: int | None = None,
    steps_per_epoch: int | None = None,
    interval: int = Schedule.interval,
    step: int = Schedule.step,
    masked_strength: float | None = None,
    momentum: float | None = None,
    snap: bool | None = None,
    min_width: int = 1,
    round_to: int = 1,
    epsilon: float = Schedule.epsilon,
    schedule: str = Schedule.kind,
    params_target: float | None = None,
    latency_target: float | None = None,
    latency_table: LatencyTable | str | Path | None = None,
) -> Plan:
    """Predicts when a run reaches its target and when the last channel is forgotten.

    It uses the norms that rows had when the model was wrapped, so that a plan is the
    same before a run and in the middle of it.

    Args:
        pruner: A wrapped model. If it is compiled, the learning rate,
            `masked_strength`, `momentum` and `snap` are taken from it unless given.
        total_steps: Optimizer steps in the run; there may be more batches.
        learning_rate: A number, or a function of the step: a Keras schedule, or the
            rates that a callback will set during training, which cannot be known here.
        steps_per_epoch: Decides the default warm-up of five epochs. Without it, the
            warm-up is a twentieth of the run.
        schedule: As in `ChannelSelection`. `"paper"` only says whether the constants
            fit.

    The other arguments are those of `ChannelSelection` and, for compactors, of
    `compile`. Print the result, or pass its constants to `ChannelSelection`.

    Example:

    ```python
    pruner = resrep_tf.wrap(model)
    pruner.compile("sgd", loss)
    print(resrep_tf.plan(pruner, flops_target=0.5, total_steps=1000))
    ```
    """
    goals = Goals(flops_target, params_target, latency_target, latency_table)
    if total_steps is None:
        raise ValueError("`total_steps` must be given. Received: total_steps=None")
    own = _own_constants(pruner, masked_strength, momentum, snap)
    constants = Schedule(
        kind=schedule, warmup_steps=warmup_steps, interval=interval, step=step, **own
    )
    warmup = constants.warmup(total_steps, steps_per_epoch)
    constants = dataclasses.replace(constants, warmup_steps=warmup, epsilon=epsilon)
    constraints = Constraints(None, min_width, round_to)
    return plan_run(pruner, goals, constraints, constants, total_steps, learning_rate)


def _own_constants(
    pruner: Any,
    masked_strength: float | None,
    momentum: float | None,
    snap: bool | None,
) -> dict[str, Any]:
    """Returns a schedule whose compactor constants are by default the model's."""
    return {
        "masked_strength": masked_strength or number(pruner.state.masked_strength),
        "momentum": _momentum(pruner) if momentum is None else momentum,
        "snap": pruner.snap if snap is None else snap,
    }


def plan_run(
    pruner: Any,
    goals: Goals,
    constraints: Constraints,
    schedule: Schedule,
    total_steps: int,
    learning_rate: float | Callable[[int], float] | np.ndarray | None = None,
) -> Plan:
    """Makes the plan of a model's run, given all constants; see `plan`."""
    rows, row_norm = rows_for_target(
        pruner.norms_at_start(),
        pruner.compactor_channels(),
        goals.budget(pruner.graph),
        constraints,
    )
    if learning_rate is None:
        if pruner.compactor_optimizer is None:
            raise ValueError(
                "`learning_rate` is needed to plan for a model that is not compiled. "
                "Received: learning_rate=None"
            )
        learning_rate = rate_of(pruner.leading_optimizer)
    return make_plan(
        rows,
        total_steps,
        learning_rate,
        goals.flops_target,
        schedule,
        row_norm,
        params_target=goals.params_target,
        latency_target=goals.latency_target,
    )


def targets_met(
    pruner: Any, goals: Goals, budget: CombinedBudget | None = None
) -> bool:
    """Returns whether all targets are met without the masked rows.

    It depends only on the model's own state, so it is the same after a restart.

    Args:
        pruner: A wrapped model.
        goals: The targets.
        budget: The budgets of the model's graph, if they exist already. They are
            reset first.
    """
    target = goals.flops_target
    # Rounded like the model's number, which is a float32.
    removed = np.float32(number(pruner.state.flops_removed))
    if target is not None and removed < np.float32(target):
        return False
    if list(goals.targets) == [FLOPS_TARGET]:
        return True
    budget = budget or goals.budget(pruner.graph)
    budget.reset()
    masks = [keras.ops.convert_to_numpy(c.mask) for c in pruner.compactors]
    budget.remove_all(np.array(pruner.compactor_channels().masked(masks), np.int64))
    return all(goal.met for goal in budget.goals if goal.argument != FLOPS_TARGET)


def check_not_lower(
    pruner: Any, goals: Goals, budget: CombinedBudget, constraints: Constraints
) -> None:
    """Raises if an earlier `fit` has masked more channels than the targets need.

    Args:
        pruner: A wrapped model.
        goals: The targets.
        budget: The budgets of the model's graph. They are reset first.
        constraints: The allowed widths.
    """
    masks = [keras.ops.convert_to_numpy(c.mask) for c in pruner.compactors]
    rows = pruner.compactor_channels()
    channels = np.array(rows.masked(masks), np.int64)
    if not len(channels):
        return
    # The last bundle of a selection may exceed the targets, at most by the cost of as
    # many of the most expensive channels.
    together = largest_bundle(rows, budget, constraints)
    dearest = np.zeros(len(budget.goals))
    for ids in rows:
        budget.reset()
        budget.remove_all(np.intersect1d(ids, channels)[:together])
        dearest = np.maximum(dearest, [goal.removed for goal in budget.goals])
    budget.reset()
    budget.remove_all(channels)
    over = [
        f"{goal.argument}={goal.target}"
        for goal, beyond in zip(budget.goals, dearest.tolist(), strict=True)
        if goal.target is not None and goal.removed - beyond >= goal.target
    ]
    if len(over) == len(goals.targets):
        removed = budget.goals[0].removed
        raise ValueError(
            f"`{next(iter(goals.targets))}` must not be lower than in an earlier "
            f"`fit`, which has masked channels of {removed:.1%} of the FLOPs: they "
            "cannot come back. Give the earlier target, or wrap the model "
            f"again. Received: {', '.join(over)}"
        )


def schedule_of(pruner: Any, schedule: Schedule) -> Schedule:
    """Returns a schedule with the constants that the model was compiled with."""
    # The strength as compiled, not as an earlier plan has raised it, so that a plan
    # after a restart has the same result.
    strength = pruner.compiled_strength
    if not schedule.fits_run:
        strength = number(pruner.state.masked_strength)
    return dataclasses.replace(
        schedule,
        lasso_strength=number(pruner.state.lasso_strength),
        masked_strength=strength,
        momentum=_momentum(pruner),
        snap=pruner.snap,
    )


def _momentum(pruner: Any) -> float:
    if pruner.compactor_momentum is None:
        raise ValueError(
            "Only SGD's way to forget can be predicted. Compile with SGD for the "
            "compactors, give `plan` the `momentum` of a similar one, or select with "
            "`schedule='paper'`. "
            f"Received: compactor_optimizer={pruner.compactor_optimizer!r}"
        )
    return pruner.compactor_momentum


def rate_of(optimizer: keras.Optimizer) -> float | Callable[[int], float]:
    """Returns an optimizer's learning rate as a function of the step, or a number."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    # The public property is only the present rate, and a schedule can be created from
    # its config only if its class is registered.
    schedule = optimizer._learning_rate
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        # Compiled, as in a training step; otherwise a plan would take seconds.
        compiled = tf.function(schedule, autograph=False, reduce_retracing=True)
        # Keras's schedules count batches, even if a step takes several.
        batches = optimizer.gradient_accumulation_steps or 1
        return lambda step: float(
            compiled(tf.constant(batches * (step + 1) - 1, tf.int64))
        )
    return number(optimizer.learning_rate)
