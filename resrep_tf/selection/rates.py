"""The learning rate of every step of a run."""

from collections.abc import Callable

import numpy as np

# Learning-rate schedules can be slow to call; a run is sampled at this many steps.
_SCHEDULE_SAMPLES = 512


def rates_of_steps(
    learning_rate: float | Callable[[int], float] | np.ndarray, total_steps: int
) -> np.ndarray:
    """Returns the learning rate of every step."""
    if callable(learning_rate):
        samples = min(total_steps, _SCHEDULE_SAMPLES)
        steps = np.linspace(0, total_steps - 1, samples).round().astype(int)
        values = [float(learning_rate(step)) for step in steps.tolist()]
        rates = np.interp(np.arange(total_steps), steps, values)
    else:
        rates = np.asarray(learning_rate, np.float64)
        if rates.ndim == 0:
            rates = np.full(total_steps, rates)
    if rates.shape != (total_steps,):
        raise ValueError(
            f"`learning_rate` must have one value for each of {total_steps} steps. "
            f"Received: an array of shape {rates.shape}"
        )
    if not (np.isfinite(rates) & (rates >= 0)).all():
        raise ValueError(
            "`learning_rate` must be finite and not negative at every step. "
            f"Received: learning_rate={learning_rate}"
        )
    return rates
