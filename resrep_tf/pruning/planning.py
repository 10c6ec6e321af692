"""Plans for a particular model: will this run finish forgetting?"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.pruning.plan import Plan, make_plan
from resrep_tf.pruning.replicas import number
from resrep_tf.pruning.selection import (
    largest_reduction,
    rows_for_target,
    smallest_rows,
)

WARMUP_EPOCHS = 5


def plan(
    pruner: Any,
    flops_target: float,
    total_steps: int,
    *,
    learning_rate: float | Callable[[int], float] | None = None,
    warmup_steps: int | None = None,
    steps_per_epoch: int | None = None,
    interval: int = 200,
    step: int = 4,
    masked_strength: float | None = None,
    momentum: float | None = None,
    snap: bool | None = None,
    min_width: int = 1,
    round_to: int = 1,
    epsilon: float = 1e-5,
    schedule: str = "auto",
) -> Plan:
    """Says when a run reaches its target and when the last channel is forgotten.

    The norm of a row that is masked is taken from the moment of wrapping, so that a
    plan is the same before a run and in the middle of it. It is 1 for compactors, and
    for filters the largest among those that the target would take by their norms.

    Args:
        pruner: A wrapped model. Where it is compiled, the learning rate, the
            compactors' momentum, the Lasso's strength and `snap` are taken from it
            unless given.
        flops_target: The fraction of FLOPs to remove.
        total_steps: The number of optimizer steps in the run. (With gradient
            accumulation a step takes several batches.)
        learning_rate: A number, or a function of the step such as a Keras schedule.
            A rate that a callback changes during training cannot be foreseen: give
            it here as a function.
        warmup_steps: Steps before the first selection: five epochs by default, or a
            twentieth of the run if `steps_per_epoch` is not given either.
        steps_per_epoch: To count the default warm-up.
        interval: Steps between selections.
        step: How many more rows may be masked at each selection.
        masked_strength: The Lasso's strength on masked rows.
        momentum: The momentum of the compactors' optimizer.
        snap: Whether rows snap to zero.
        min_width: The least number of channels that a layer keeps.
        round_to: Widths are multiples of this.
        epsilon: Below this norm a row counts as forgotten.
        schedule: `"auto"` keeps these constants if they fit the run and derives ones
            that do otherwise; `"paper"` only tells whether they fit.

    Returns:
        A `Plan`; print it, or hand its constants to `ChannelSelection`.
    """
    spaces, meter = pruner.spaces(), FlopsMeter.of(pruner.graph)
    budget = (spaces, meter, flops_target, min_width, round_to)
    check_reachable(*budget)
    compiled = pruner.compactor_optimizer is not None
    if learning_rate is None:
        if not compiled:
            raise ValueError(
                "`learning_rate` is needed to plan for a model that is not compiled. "
                "Received: learning_rate=None"
            )
        learning_rate = rate_of(pruner.leading_optimizer)
    if warmup_steps is None:
        warmup_steps = (
            total_steps // 20
            if steps_per_epoch is None
            else WARMUP_EPOCHS * steps_per_epoch
        )
    if momentum is None:
        momentum = pruner.compactor_momentum
    if momentum is None:
        raise ValueError(
            "Only SGD's way to forget can be foreseen. Compile with SGD for the "
            "compactors, or give the `momentum` of a similar one. "
            f"Received: compactor_optimizer={pruner.compactor_optimizer!r}"
        )
    norms = pruner.norms_at_start()
    if norms is None:
        rows, row_norm = rows_for_target(*budget), 1.0
    else:
        rows, row_norm = smallest_rows(norms, *budget)
    return make_plan(
        rows,
        total_steps,
        learning_rate,
        flops_target,
        warmup_steps=warmup_steps,
        interval=interval,
        step=step,
        masked_strength=masked_strength or number(pruner.masked_strength),
        momentum=momentum,
        snap=pruner.snap if snap is None else snap,
        epsilon=epsilon,
        row_norm=row_norm,
        schedule=schedule,
    )


def rate_of(optimizer: keras.Optimizer) -> float | Callable[[int], float]:
    """An optimizer's learning rate as a function of the step, or a number."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    # The public property is the rate at this moment, and the config of a schedule
    # brings it back only if its class is registered.
    schedule = optimizer._learning_rate
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        # As in a training step; op by op, a plan would take seconds.
        compiled = tf.function(schedule, autograph=False, reduce_retracing=True)
        # Keras's schedules count batches, also where steps take several.
        batches = optimizer.gradient_accumulation_steps or 1
        return lambda step: float(
            compiled(tf.constant(batches * (step + 1) - 1, tf.int64))
        )
    return number(optimizer.learning_rate)


def check_reachable(
    spaces: list[np.ndarray],
    meter: FlopsMeter,
    flops_target: float,
    min_width: int = 1,
    round_to: int = 1,
) -> None:
    """Raises if not even the narrowest model meets the target."""
    largest = largest_reduction(spaces, meter, min_width, round_to)
    if flops_target > largest:
        raise ValueError(
            f"At most {largest:.1%} of the FLOPs can be removed with these target "
            f"layers, `min_width={min_width}` and `round_to={round_to}`. Lower "
            "`flops_target`, or wrap more layers (`targets='all'`). "
            f"Received: flops_target={flops_target}"
        )
