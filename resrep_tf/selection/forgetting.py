"""Predicts how a masked row shrinks to zero, and the Lasso strength that it needs.

The only gradient of a masked row is that of the Lasso. Under Keras's momentum,

    velocity = momentum * velocity - learning_rate * gradient;  row += velocity,

it shrinks straight towards zero and, once the velocity has built up (after about
`1 / (1 - momentum)` steps), by one *stride* per step:

    stride = learning_rate * masked_strength / (1 - momentum).

With the paper's constants that is 1e-4, so a row of norm 1, as compactors have them,
needs 10,000 steps, and a run of 5,000 steps cannot end in a pruned network. What
happens at zero depends on `snap`. Snapping sets the row to zero when its norm falls
below one stride. Without it, the row overshoots and swings around zero. Momentum damps
the swing, but does not end it: it becomes a cycle of up to about 0.7 strides, depending
on chance. Such rows are below a small epsilon only after the learning rate has decayed
far enough.
"""

import math

import numpy as np

from resrep_tf.selection.schedule import Schedule

# The bound of the swing that remains, in strides. The widest cycle of thousands of
# simulated rows has 0.7; a drop of the learning rate widens it for a moment.
_SWING = 2.0


def forget(
    rates: np.ndarray, norm: float, schedule: Schedule
) -> tuple[int | None, float]:
    """Simulates a row of norm `norm` that is masked before the first of `rates`.

    Returns:
        The number of steps until it is forgotten, or None, and its last norm.
    """
    momentum = float(schedule.momentum)
    if norm == 0:  # The Lasso does not move it.
        return 0, 0.0
    position, velocity = norm, 0.0
    pulls = rates * float(schedule.strength)
    for taken, pull in enumerate(pulls.tolist(), start=1):
        velocity = momentum * velocity - math.copysign(pull, position)
        position += velocity
        if schedule.snap:
            if abs(position) < pull / (1 - momentum):
                return taken, 0.0
        elif position <= 0:
            swings = _swings(pulls[taken - 1 :], -velocity, 1 - momentum)
            large = np.flatnonzero(swings >= schedule.epsilon)
            settled = int(large[-1]) + 1 if large.size else 0
            return (taken + settled if settled < swings.size else None), swings[-1]
    return None, abs(position)


def _swings(pulls: np.ndarray, speed: float, friction: float) -> np.ndarray:
    """Returns bounds of the swing of a row that has just passed zero.

    A swing narrows at two thirds of the friction, and widens at a third of the rate at
    which the pull weakens. (This follows from the loss of energy and the adiabatic
    invariant of a body that a constant force pulls to a point.)

    Args:
        pulls: Learning rate times masked strength, from the step that passed zero on.
        speed: Distance that the row covered in that step.
        friction: One minus the momentum.

    Returns:
        The bound after each of the steps.
    """
    overshoot = speed / friction  # The distance it would coast without a pull.
    before, after = pulls[:-1], pulls[1:]
    weakening = 1 - np.divide(after, before, out=np.ones_like(after), where=before > 0)
    narrowing = np.maximum(0, 2 * friction - np.maximum(0, weakening)) / 3
    # In logarithms, "the old swing narrowed, or the widest cycle if that is wider" is
    # a running maximum, which needs no loop over maybe a million steps.
    with np.errstate(divide="ignore"):
        widest = np.log(np.append(overshoot, _SWING * after / friction))
    narrowed = np.append(0, np.cumsum(np.log1p(-narrowing)))
    return np.exp(np.maximum.accumulate(widest - narrowed) + narrowed)


def needed_strength(rates: np.ndarray, norm: float, momentum: float) -> float:
    """Returns the smallest strength that brings a row from `norm` to 0 within `rates`.

    The distance by which a row shrinks is proportional to the strength, and the pull of
    a step acts on all later ones with a weight of `1 + momentum + momentum^2 + ...`.
    """
    steps_left = np.arange(rates.size, 0, -1)
    distance = float(rates @ ((1 - momentum**steps_left) / (1 - momentum)))
    if distance <= 0 or norm == 0:
        return 0.0
    # Two digits, rounded up, are easier to read and to type.
    digits = 10.0 ** (math.floor(math.log10(norm / distance)) - 1)
    return float(f"{math.ceil(norm / distance / digits) * digits:.2g}")
