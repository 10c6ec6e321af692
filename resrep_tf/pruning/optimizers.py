"""The two optimizers of a wrapped model: made, checked and applied together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from resrep_tf.pruning import gradient_reset, replicas
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.pruning.state import State
from resrep_tf.selection.checks import check_momentum

# The share of a row's importance that a step keeps, so that it is the mean of about
# the last hundred batches.
_MEMORY = 0.99


def is_scaled(optimizer: keras.Optimizer) -> bool:
    """Returns whether an optimizer scales the loss."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def inner(optimizer: keras.Optimizer) -> keras.Optimizer:
    """Returns the optimizer within one that scales the loss."""
    return optimizer.inner_optimizer if is_scaled(optimizer) else optimizer


@dataclass(frozen=True, eq=False)
class Optimizers:
    """The optimizer of the compactors' rows, and that of all other weights.

    Attributes:
        main: The user's optimizer.
        compactor: The optimizer of the rows.
        follows: Whether the rows have the main optimizer's learning rate.
        snap: Whether masked rows become exactly zero.
    """

    main: keras.Optimizer
    compactor: keras.Optimizer
    follows: bool
    snap: bool

    @classmethod
    def make(
        cls,
        main: keras.Optimizer,
        given: Any,
        snap: bool,
        compactors: Sequence[Compactor],
    ) -> "Optimizers":
        """Makes the compactors' optimizer.

        Args:
            main: The user's optimizer.
            given: The compactors' optimizer, the momentum of one that follows the
                main optimizer's learning rate, or None for the usual momentum.
            snap: Whether masked rows become exactly zero.
            compactors: The compactors.
        """
        follows = given is None or isinstance(given, (int, float))
        if given is None:
            given = compactors[0].usual_momentum(inner(main))
        if follows:
            check_momentum("compactor_optimizer", given)
            given = keras.optimizers.SGD(
                momentum=float(given),
                gradient_accumulation_steps=inner(main).gradient_accumulation_steps,
                name="compactor_sgd",
            )
        compactor = keras.optimizers.get(given)
        _check_compactor_optimizer(compactor, snap)
        if is_scaled(main) and not is_scaled(compactor):
            # Both skip the same steps, so that their loss scales stay equal.
            compactor = keras.optimizers.LossScaleOptimizer(
                compactor,
                initial_scale=main.initial_scale,
                dynamic_growth_steps=main.dynamic_growth_steps,
            )
        return cls(main, compactor, follows, snap)

    def build(self, main: list[Any], rows: list[Any]) -> None:
        """Builds each optimizer on its own variables.

        An optimizer that is built only at its first use silently loses its state when
        a saved model is loaded.
        """
        for optimizer, variables in [(self.main, main), (self.compactor, rows)]:
            if not optimizer.built:
                optimizer.build(variables)

    def check(self, model: keras.Model) -> None:
        """Raises for settings that Keras would accept but silently handle wrongly."""
        optimizers = {
            "optimizer": inner(self.main),
            "compactor_optimizer": inner(self.compactor),
        }
        for name, optimizer in optimizers.items():
            if optimizer.use_ema:
                # At the end of `fit`, Keras overwrites the model's variables with
                # the averages, taking it that one optimizer has all of them.
                raise ValueError(
                    f"`{name}` cannot average weights: compactors and other weights "
                    "have an optimizer each. Received: use_ema=True"
                )
        replicas.check_scope(model, optimizers)

    @property
    def momentum(self) -> float | None:
        """The momentum of the rows' SGD; None if they have another optimizer."""
        optimizer = inner(self.compactor)
        sgd = isinstance(optimizer, keras.optimizers.SGD)
        return optimizer.momentum if sgd else None

    @property
    def batches_per_step(self) -> int:
        """The number of batches in an optimizer step; above 1 with accumulation."""
        return inner(self.main).gradient_accumulation_steps or 1

    def config(self) -> dict[str, Any]:
        """Returns the part of a model's compile config that is about optimizers."""
        serialize = keras.saving.serialize_keras_object
        return {
            # The loss scale wraps the optimizer according to a global setting that
            # need not hold where the model is loaded: the wrapped one is stored.
            "optimizer": serialize(self.main),
            "auto_scale_loss": False,
            "compactor_optimizer": (
                inner(self.compactor).momentum
                if self.follows
                else serialize(self.compactor)
            ),
            "snap": self.snap,
        }

    # === A training step ===

    def note_importance(
        self, gradients: Sequence[Any], compactors: Sequence[Compactor], state: State
    ) -> None:
        """Adds the rows' gradients, which have the loss scale, to their importance.

        Rows whose gradients are not finite keep their importance; with a loss scale
        there are such steps. So do all rows while they learn.
        """
        importance = ops.convert_to_tensor(state.importance)

        def effects() -> Any:
            found = []
            for gradient, compactor in zip(gradients, compactors, strict=True):
                rows = ops.convert_to_tensor(compactor.rows)
                effect = gradient_reset.row_effects(_known(gradient, rows), rows)
                found.append(ops.cast(effect, importance.dtype))
            return ops.concatenate(found)

        # Rows that learn are chosen by their norms, and nobody asks for more.
        asked = state.rows_learn < 0.5
        effect = ops.cond(asked, effects, lambda: ops.zeros_like(importance))
        scale = ops.cast(self.main.scale_loss(1.0), importance.dtype)
        # Replicas add up outside of the branch: all of them have to take part.
        recent = ops.square(replicas.total(effect) / scale)
        mean = _MEMORY * importance + (1 - _MEMORY) * recent
        known = ops.logical_and(asked, ops.isfinite(mean))
        state.importance.assign(ops.where(known, mean, importance))

    def reset_gradients(
        self, gradients: Sequence[Any], compactors: Sequence[Compactor], state: State
    ) -> list[Any]:
        """Resets the rows' gradients, which have the loss scale.

        Optimizers sum gradients over replicas, so each contributes its share of
        the Lasso. The Lasso term has no loss scale; it gets the one that the
        compactors' optimizer will take away.
        """
        count = tf.distribute.get_strategy().num_replicas_in_sync
        scale = ops.convert_to_tensor(self.main.scale_loss(1.0))
        mild, strong = (
            ops.convert_to_tensor(strength) / count
            for strength in (state.lasso_strength, state.masked_strength)
        )
        reset = []
        for gradient, compactor in zip(gradients, compactors, strict=True):
            rows = ops.convert_to_tensor(compactor.rows)
            # The filters of a layer are its own, and learn in any case.
            learn = state.rows_learn if compactor.trains_kernel else 1.0
            strengths = ops.where(compactor.mask > 0.5, mild * learn, strong)
            gradient = gradient_reset.reset_gradient(
                _known(gradient, rows),
                rows,
                compactor.mask * ops.cast(learn / scale, compactor.mask.dtype),
                ops.cast(strengths, rows.dtype),
            )
            reset.append(self.compactor.scale_loss(gradient))
        return reset

    def apply(self, main: list[tuple[Any, Any]], rows: list[tuple[Any, Any]]) -> None:
        """Takes a step with both optimizers, given pairs of gradient and variable."""
        if is_scaled(self.main):
            joint = replicas.fail_together([gradient for gradient, _ in main + rows])
            pairs = [(g, v) for g, (_, v) in zip(joint, main + rows, strict=True)]
            main, rows = pairs[: len(main)], pairs[len(main) :]
        if self.follows:
            # A tensor (`ops` would return the variable): an optimizer registers any
            # variable as its own, and could not be loaded with one more.
            self.compactor.learning_rate = tf.convert_to_tensor(self.main.learning_rate)
        self.main.apply_gradients(main)
        self.compactor.apply_gradients(rows)

    def snap_rows(self, compactors: Sequence[Compactor], state: State) -> list[Any]:
        """Sets masked rows to exactly zero once they are within a step of it.

        With momentum m a row moves by at most lr * lambda / (1 - m) a step, so it
        cannot cross zero without being noticed here.

        Returns:
            For each compactor, the norms that its rows have now.
        """
        found = [compactor.row_norms() for compactor in compactors]
        if not self.snap:
            return found
        optimizer = inner(self.compactor)
        stride = optimizer.learning_rate * state.masked_strength
        reach = stride / (1 - optimizer.momentum)
        for number, (compactor, norms) in enumerate(
            zip(compactors, found, strict=True)
        ):
            gone = (compactor.mask < 0.5) & (norms <= ops.cast(reach, norms.dtype))
            stays = ops.cast(~gone, norms.dtype)
            compactor.rows.assign(compactor.rows * stays)
            if optimizer.momentum:
                velocity = optimizer.momentums[number]
                velocity.assign(velocity * stays)
            found[number] = norms * stays
        return found

    # === Between steps ===

    def stop_rows(self, number: int, rows: np.ndarray) -> None:
        """Sets the velocity of some rows of a compactor to zero, if rows are snapped.

        The velocity still contains gradients of the objective, which would carry the
        row past zero on a short run.

        Args:
            number: The number of the compactor.
            rows: Which of its rows.
        """
        if self.snap and self.momentum:
            velocity = inner(self.compactor).momentums[number]
            velocity.assign(velocity * ~rows)


def _known(gradient: Any, rows: Any) -> Any:
    """Returns a gradient; zeros where the loss does not depend on the rows."""
    return ops.zeros_like(rows) if gradient is None else gradient


def _check_compactor_optimizer(optimizer: keras.Optimizer, snap: bool) -> None:
    decay = inner(optimizer).weight_decay
    if decay:
        raise ValueError(
            "Compactors are never decayed: give `compactor_optimizer` no weight "
            f"decay. Received: weight_decay={decay}"
        )
    if snap and not isinstance(inner(optimizer), keras.optimizers.SGD):
        raise ValueError(
            "`snap` needs SGD for the compactors, since it depends on the length of "
            "SGD's steps. Give `snap=False`, or a momentum as `compactor_optimizer`. "
            f"Received: compactor_optimizer={optimizer!r}"
        )
