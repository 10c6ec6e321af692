"""Shows the progress of a phase: one bar, with the time left."""

import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras

# An evaluation batch takes about a third of a step, which has a backward pass too.
_EVALUATED = 1 / 3
# Seconds between two drawings of the bar.
_PAUSE = 0.1
_WIDTH = 12
_CLEAR = "\r\x1b[K"
# Metrics that are shares of something.
_SHARES = ("accuracy", "flops_removed", "forgotten")
# The metrics for which a terminal line has room, and their short names.
_SHORT = {
    "loss": "loss",
    "accuracy": "acc",
    "val_accuracy": "val",
    "flops_removed": "removed",
    "forgotten": "forgotten",
}


class PhaseBar(keras.callbacks.Callback):
    """Shows one bar for a phase on a terminal; in a file, a line for each epoch.

    Args:
        epochs: The epochs of the phase.
        steps: Steps of an epoch.
        eval_batches: Batches of the evaluation after it.
        watched: Whether stdout is a terminal.
    """

    def __init__(self, epochs: range, steps: int, eval_batches: int, watched: bool):
        super().__init__()
        self._epochs = epochs
        self._steps = steps
        self._eval_batches = eval_batches
        self._watched = watched
        self._logs: dict[str, float] = {}
        self._epoch = epochs.start
        self._done = 0.0
        # The work that was done when the clock was started.
        self._from, self._since, self._drawn = 0.0, None, 0.0

    @property
    def _each(self) -> float:
        return self._steps + _EVALUATED * self._eval_batches

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._advance(self._before() + batch + 1, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._advance(self._before() + self._steps + _EVALUATED * (batch + 1), logs)

    def on_epoch_end(self, epoch, logs=None):
        self._advance(self._before() + self._each, logs)
        if not self._watched:
            left = self._time_left()
            left = f", {left} left" if left else ""
            found = ", ".join(
                f"{name} {value:{'.2%' if name.endswith(_SHARES) else '.4g'}}"
                for name, value in self._logs.items()
            )
            print(f"{self._title()}{left}: {found}", flush=True)

    def on_train_end(self, logs=None):
        if self._watched:
            self._draw()
            print()

    def _before(self) -> float:
        return (self._epoch - self._epochs.start) * self._each

    def _advance(self, done: float, logs: Mapping[str, Any] | None) -> None:
        self._done = done
        self._logs |= logs or {}
        now = time.monotonic()
        if self._since is None:  # The first step takes longer: it is compiled.
            self._from, self._since = done, now
        if self._watched and now - self._drawn > _PAUSE:
            self._drawn = now
            self._draw()

    def _time_left(self) -> str:
        """Returns the time left as text; empty if it is unknown."""
        done = self._done - self._from
        left = len(self._epochs) * self._each - self._done
        if done <= 0 or left < 0.5:
            return ""
        seconds = round((time.monotonic() - self._since) / done * left)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f"{hours}:{minutes:02}:{seconds:02}"
        return f"{minutes}:{seconds:02}"

    def _title(self) -> str:
        return f"epoch {self._epoch + 1}/{self._epochs.stop}"

    def _draw(self) -> None:
        share = min(self._done / (len(self._epochs) * self._each), 1.0)
        full = round(share * _WIDTH)
        left = self._time_left()
        parts = [
            self._title(),
            f"[{'=' * full}{'.' * (_WIDTH - full)}] {share:4.0%}",
            *([f"{left} left"] if left else []),
            *(
                f"{short} {self._logs[name]:{'.3g' if name == 'loss' else '.1%'}}"
                for name, short in _SHORT.items()
                if name in self._logs
            ),
        ]
        line = "  ".join(parts)
        # A line longer than the terminal could not be overwritten.
        columns = shutil.get_terminal_size().columns
        sys.stdout.write(f"{_CLEAR}{line[: columns - 1]}")
        sys.stdout.flush()
