"""Channel selection during training."""

import warnings

import keras
import numpy as np

from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.pruning import selection
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.plan import Plan, needed_strength, rates_of_steps
from resrep_tf.pruning.planning import WARMUP_EPOCHS, check_reachable, plan, rate_of
from resrep_tf.pruning.replicas import number


class ChannelSelection(keras.callbacks.Callback):
    """Decides which channels to forget, against a global budget (Sect. 3.4).

    After the warm-up, every `interval` steps, the limit rises by `step`: that many
    compactor rows at most, those of the smallest norm in the whole network, are
    masked, fewer if the target is met before. All others go on learning.

    Steps are optimizer steps: with gradient accumulation one takes several batches.

    Args:
        flops_target: The fraction of FLOPs to remove, between 0 and 1.
        warmup_steps: Steps before the first selection; five epochs by default.
        interval: Steps between selections.
        step: How many more rows may be masked at each selection.
        min_width: The least number of channels that a layer keeps.
        round_to: Makes widths multiples of this, within the same budget.
        epsilon: Below this norm a row counts as forgotten.
        schedule: `"paper"` takes the constants as they are and warns if they cannot
            finish within the run. `"auto"` changes those that do not fit, the
            Lasso's strength on masked rows among them (see `resrep_tf.plan`), raises
            that strength for rows that have grown, masks all that the target still
            takes at the last selection it has planned, and stops selecting then: rows
            that were masked later on would not be forgotten in time.
        total_steps: The step at which training ends, counted from its very start. By
            default what `fit` is told, which is more if it is told to train anew
            what was interrupted.

    The state (limit, masks) is the model's, so a saved model goes on where it was.
    Logs gain `flops_removed`, that of the model without its masked channels, and
    `forgotten`, the share of masked rows below `epsilon`.
    """

    selects_channels = True

    def __init__(
        self,
        flops_target: float,
        warmup_steps: int | None = None,
        interval: int = 200,
        step: int = 4,
        min_width: int = 1,
        round_to: int = 1,
        epsilon: float = 1e-5,
        schedule: str = "paper",
        total_steps: int | None = None,
    ):
        super().__init__()
        if not 0 < flops_target < 1:
            raise ValueError(
                "`flops_target` is the fraction of FLOPs to remove and lies between 0 "
                f"and 1, without either. Received: flops_target={flops_target}"
            )
        for name, value in [
            ("interval", interval),
            ("step", step),
            ("min_width", min_width),
            ("round_to", round_to),
        ]:
            if int(value) != value or value < 1:
                raise ValueError(
                    f"`{name}` must be a positive integer. Received: {name}={value}"
                )
        if warmup_steps is not None and warmup_steps < 0:
            raise ValueError(
                "`warmup_steps` must not be negative. "
                f"Received: warmup_steps={warmup_steps}"
            )
        if not epsilon > 0:
            raise ValueError(f"`epsilon` must be positive. Received: epsilon={epsilon}")
        if schedule not in ("paper", "auto"):
            raise ValueError(
                f"`schedule` must be 'paper' or 'auto'. Received: schedule={schedule!r}"
            )
        self.flops_target = flops_target
        self.warmup_steps = warmup_steps
        self.interval = interval
        self.step = step
        self.min_width = min_width
        self.round_to = round_to
        self.epsilon = epsilon
        self.schedule = schedule
        self.total_steps = total_steps
        self.plan: Plan | None = None

    # === Before training ===

    def on_train_begin(self, logs=None):
        if not isinstance(self.model, ResRepModel):
            raise TypeError(
                "`ChannelSelection` needs a model made by `resrep_tf.wrap`. "
                f"Received: model={self.model!r}"
            )
        self._spaces = self.model.spaces()
        self._meter = FlopsMeter.of(self.model.graph)
        check_reachable(
            self._spaces, self._meter, self.flops_target, self.min_width, self.round_to
        )
        self.model.epsilon.assign(self.epsilon)
        self.plan = None
        batches = self.params.get("steps")
        if batches is not None:
            if self.warmup_steps is None:
                self.warmup_steps = (
                    WARMUP_EPOCHS * batches // self.model.batches_per_step
                )
            return
        if self.warmup_steps is None:
            raise ValueError(
                "The default warm-up is five epochs, but the number of steps in an "
                "epoch is not known. Give `warmup_steps`, or `steps_per_epoch` to "
                "`fit`. Received: warmup_steps=None"
            )
        if self.schedule == "auto":
            raise ValueError(
                "A schedule that fits the run needs its length, but the number of "
                "steps in an epoch is not known. Give `steps_per_epoch` to `fit`. "
                "Received: schedule='auto'"
            )

    def on_epoch_begin(self, epoch, logs=None):
        batches = self.params.get("steps")
        if self.plan is not None or batches is None:
            return
        if self.schedule == "paper" and self.model.compactor_momentum is None:
            return  # Taken as it is: nothing is known about the user's optimizer.
        total = batches * self.params["epochs"] // self.model.batches_per_step
        if self.total_steps is not None:
            total = self.total_steps
        elif epoch == 0:  # Not so where `fit` was told to go on at a later epoch.
            total += number(self.model.optimizer.iterations)
        self._make_plan(total)

    def _make_plan(self, total_steps: int) -> None:
        model, auto = self.model, self.schedule == "auto"
        self._rates = rates_of_steps(rate_of(model.leading_optimizer), total_steps)
        self.plan = plan(
            model,
            self.flops_target,
            total_steps,
            learning_rate=self._rates,
            warmup_steps=self.warmup_steps,
            interval=self.interval,
            step=self.step,
            masked_strength=model.compiled_strength if auto else None,
            min_width=self.min_width,
            round_to=self.round_to,
            epsilon=self.epsilon,
            schedule=self.schedule,
        )
        if auto:
            self.warmup_steps = self.plan.warmup_steps
            self.interval = self.plan.interval
            self.step = self.plan.step
            self._pull(self.plan.masked_strength)
        if not self.plan.fits:
            warnings.warn(self.plan.advice, stacklevel=2)

    # === During training ===

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution` several steps have passed since the last call.
        step = number(self.model.optimizer.iterations)
        if step < self.warmup_steps or self._settled():
            return
        due = (step - self.warmup_steps) // self.interval + 1
        limit = due * self.step
        if self.schedule == "auto" and due >= self.plan.selections:
            # How many rows the target takes was an estimate; when it is due is not.
            limit = sum(compactor.width for compactor in self.model.compactors)
        if limit > number(self.model.selection_limit):
            self.model.selection_limit.assign(limit)
            self.select()

    def _settled(self) -> bool:
        # Both sides rounded alike: the model's is a float32.
        removed = np.float32(number(self.model.flops_removed))
        return self.schedule == "auto" and removed >= np.float32(self.flops_target)

    def on_epoch_end(self, epoch, logs=None):
        # Up to date also if the last batch was followed by a selection.
        if logs is not None:
            logs["flops_removed"] = number(self.model.flops_removed)
            logs["forgotten"] = float(self.model.forgotten())

    def select(self) -> selection.Selection:
        """Chooses the rows to forget and hands the masks to the compactors."""
        norms = [np.asarray(c.row_norms()) for c in self.model.compactors]
        chosen = selection.select(
            norms,
            self._spaces,
            self._meter,
            self.flops_target,
            limit=number(self.model.selection_limit),
            min_width=self.min_width,
            round_to=self.round_to,
        )
        self.model.set_masks(chosen.masks)
        self.model.flops_removed.assign(chosen.flops_removed)
        if self.schedule == "auto":
            self._pull(self._strength_in_time(norms, chosen))
        return chosen

    def _strength_in_time(
        self, norms: list[np.ndarray], chosen: selection.Selection
    ) -> float:
        """What takes the largest masked row to zero when the plan says so.

        The plan knows only norms at the start. Before they are masked, rows may grow:
        a normalisation behind them makes their common scale a matter of chance.
        """
        masked = (n[m < 0.5] for n, m in zip(norms, chosen.masks, strict=True))
        largest = float(np.concatenate([*masked, [0.0]]).max())
        now = number(self.model.optimizer.iterations)
        rates = self._rates[now : self.plan.forgotten_by]
        return needed_strength(rates, largest, self.model.compactor_momentum)

    def _pull(self, strength: float) -> None:
        """Never more mildly than before: what was masked earlier has its time too."""
        strength = max(strength, number(self.model.masked_strength))
        self.model.masked_strength.assign(strength)
