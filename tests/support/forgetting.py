"""Plans with the paper's constants, and masked rows that are really trained."""

import numpy as np

from resrep_tf.selection import plan as planning
from resrep_tf.selection.schedule import Schedule


def make_plan(*task, row_norm=1.0, schedule="paper", snap=False, **constants):
    """Plans with the paper's constants but for those given."""
    chosen = Schedule(kind=schedule, snap=snap, **constants)
    return planning.make_plan(*task, chosen, row_norm)


def cosine(steps, peak=0.01):
    return peak * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))


def forget(rates, strength, momentum, snap, epsilon, rows, velocities=0.0):
    """Trains masked rows as Keras's SGD does, and nothing else.

    Returns:
        For each row the number of steps until its norm stays below epsilon; the
        number of steps plus one if that does not happen.
    """
    rows = np.array(rows)
    velocities = np.zeros_like(rows) + velocities
    last_large = np.zeros(len(rows), int)
    for taken, rate in enumerate(rates, start=1):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        lasso = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
        velocities = momentum * velocities - rate * strength * lasso
        rows = rows + velocities
        norms = np.linalg.norm(rows, axis=1)
        if snap:
            close = norms < rate * strength / (1 - momentum)
            rows[close] = velocities[close] = norms[close] = 0
            if not norms.any():
                break
        last_large[norms >= epsilon] = taken
    return last_large + 1


def rows_of_norm(norms, dimensions, rng):
    directions = rng.normal(size=(len(norms), dimensions))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions * np.asarray(norms)[:, None]
