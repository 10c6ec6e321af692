"""The wrapped model: it trains like any Keras model, and forgets masked channels."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.compactor import Compactor
from resrep_tf.pruning.fit_checks import blame_labels, check_callbacks, check_frozen
from resrep_tf.pruning.optimizers import Optimizers
from resrep_tf.pruning.replicas import EqualReplicas
from resrep_tf.pruning.state import State, number
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.schedule import Schedule
from resrep_tf.teacher.distillation import Taught


@keras.saving.register_keras_serializable(package="resrep_tf")
class ResRepModel(Taught, EqualReplicas):
    """A model with compactors, as `resrep_tf.wrap` makes it.

    All weights but the compactors' train with the user's optimizer, loss and
    learning-rate schedule. The compactors have an optimizer of their own, and their
    gradients are reset (`resrep_tf.pruning.gradient_reset`). Masks and `state` are
    weights of the model, so that files and checkpoints have them.
    """

    # Keras loads a functional subclass only if its constructor has this signature.
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.compactor_optimizer = None
        self._optimizers: Optimizers | None = None
        self.compiled_strength = Schedule.lasso_strength
        self.state = State.of(self, sum(c.width for c in self.compactors))
        for kind in {type(compactor) for compactor in self.compactors}:
            kind.attach(self)

    # === Compactors and channels ===

    @property
    def compactors(self) -> list[Compactor]:
        """The compactors in graph order, each once."""
        return list(dict.fromkeys(_compactors(self)))

    @cached_property
    def graph(self) -> ChannelGraph:
        """The channel graph of the model that conversion would give."""
        return ChannelGraph(self)

    def compactor_channels(self) -> RowChannels:
        """Returns, for each compactor, the channels of `graph` that its rows make."""
        channels = {
            id(call.op): call.outputs[0].channels
            for call in self.graph.calls.values()
            if isinstance(call.op, Compactor)
        }
        return RowChannels.of(self.graph, [channels[id(c)] for c in self.compactors])

    def norms_at_start(self) -> list[np.ndarray]:
        """Returns, for each compactor, the norms of its rows before training."""
        return [compactor.norms_at_start() for compactor in self.compactors]

    @property
    def own_variables(self) -> list[keras.Variable]:
        """The variables that only a wrapped model has."""
        own = [v for compactor in self.compactors for v in compactor.variables]
        return own + self.state.variables

    @property
    def _row_variables(self) -> list[keras.Variable]:
        return [compactor.rows for compactor in self.compactors]

    @property
    def _other_variables(self) -> list[keras.Variable]:
        rows = {id(variable) for variable in self._row_variables}
        return [v for v in self.trainable_variables if id(v) not in rows]

    # === Compiling ===

    def compile(
        self,
        optimizer: Any = "rmsprop",
        *args: Any,
        compactor_optimizer: Any = None,
        lasso_strength: float = Schedule.lasso_strength,
        masked_strength: float | None = None,
        snap: bool = Schedule.snap,
        **kwargs: Any,
    ):
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: Trains everything but the compactors.
            *args: As in `keras.Model.compile`, from `loss` on.
            compactor_optimizer: Trains the compactors, with its own learning rate.
                By default SGD with momentum 0.99 and, at every step, the learning
                rate of `optimizer`. A number is another momentum for that default.
            lasso_strength: The Lasso's strength on the compactors, lambda.
            masked_strength: Its strength on masked rows; the same by default, as in
                the paper. On a short run masked rows need a strong pull to be
                forgotten in time, which would harm the others.
            snap: Whether a masked row becomes exactly zero as soon as it is within one
                step of it; its velocity is zero when it is masked. Otherwise it
                oscillates around zero until the learning rate has decayed, as in the
                paper.
            **kwargs: As in `keras.Model.compile`; also `teacher`, a trained model to
                learn from beside the labels, and `distillation`, a
                `resrep_tf.Distillation` with the settings.
        """
        constants = Schedule(
            lasso_strength=lasso_strength, masked_strength=masked_strength, snap=snap
        )
        super().compile(optimizer, *args, **kwargs)
        self.state.lasso_strength.assign(constants.lasso_strength)
        self.state.masked_strength.assign(constants.strength)
        # A schedule may raise the strength. It is derived again after a restart, from
        # this value, with the same result.
        self.compiled_strength = float(constants.strength)
        optimizers = Optimizers.make(
            self.optimizer, compactor_optimizer, constants.snap, self.compactors
        )
        # An attribute of the model itself, or Keras would not save it.
        self.compactor_optimizer = optimizers.compactor
        self._optimizers = optimizers
        if not self._other_variables:
            raise ValueError(
                "All layers are frozen, so that none can learn to compensate for lost "
                f"channels. Received: model={self.name!r} without trainable weights"
            )
        optimizers.check(self)
        optimizers.build(self._other_variables, self._row_variables)

    @property
    def snap(self) -> bool:
        """True if masked rows become exactly zero."""
        return Schedule.snap if self._optimizers is None else self._optimizers.snap

    @property
    def compactor_momentum(self) -> float | None:
        """The momentum of the compactors' SGD; None if they have another optimizer."""
        if self._optimizers is None:
            return Schedule.momentum
        return self._optimizers.momentum

    # The first name, in alphabetical order, under which Keras finds the main optimizer:
    # it is the name that saved files have it under.
    @property
    def leading_optimizer(self) -> keras.Optimizer:
        """The optimizer whose learning rate the compactors have."""
        if self._optimizers is None or self._optimizers.follows:
            return self.optimizer
        return self.compactor_optimizer

    @property
    def batches_per_step(self) -> int:
        """The number of batches in an optimizer step; above 1 with accumulation."""
        return self._optimizers.batches_per_step

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config |= self._optimizers.config()
            config["lasso_strength"] = number(self.state.lasso_strength)
            config["masked_strength"] = self.compiled_strength
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def load_own_variables(self, store):
        # Files of version 0.1 have fewer weights of the state, the first ones.
        own = self.state.variables
        if len(store.keys()) >= len(own):
            super().load_own_variables(store)
            return
        for index, variable in enumerate(own[: len(store.keys())]):
            variable.assign(store[str(index)])

    # === Training ===

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        others, rows = self._other_variables, self._row_variables
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            scaled = self.optimizer.scale_loss(loss)
        self._track_loss(loss, x)
        gradients = tape.gradient(scaled, others + rows)
        self._optimizers.note_importance(
            gradients[len(others) :], self.compactors, self.state
        )
        reset = self._optimizers.reset_gradients(
            gradients[len(others) :], self.compactors, self.state
        )
        self._optimizers.apply(
            list(zip(gradients[: len(others)], others, strict=True)),
            list(zip(reset, rows, strict=True)),
        )
        norms = self._optimizers.snap_rows(self.compactors, self.state)
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return {
            **logs,
            "flops_removed": tf.convert_to_tensor(self.state.flops_removed),
            "forgotten": self._share_below_epsilon(norms),
        }

    def _track_loss(self, loss: Any, x: Any) -> None:
        batch = ops.shape(keras.tree.flatten(x)[0])[0]
        # A replica's loss is already divided by the number of replicas.
        loss = loss * tf.distribute.get_strategy().num_replicas_in_sync
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=batch)

    def row_importance(self) -> list[np.ndarray]:
        """Returns, for each compactor, how much the loss depends on its rows."""
        importance = ops.convert_to_numpy(self.state.importance)
        return np.split(importance, np.cumsum([c.width for c in self.compactors])[:-1])

    def set_masks(self, masks: Sequence[np.ndarray]) -> None:
        """Sets which rows to keep (1) and which are to be forgotten from now on (0).

        With `snap`, the velocity of newly masked rows is set to zero.
        """
        if len(masks) != len(self.compactors):
            raise ValueError(
                f"`masks` must have one array for each of {len(self.compactors)} "
                f"compactors. Received: {len(masks)} arrays"
            )
        for index, (compactor, mask) in enumerate(
            zip(self.compactors, masks, strict=True)
        ):
            mask, before = np.asarray(mask), ops.convert_to_numpy(compactor.mask)
            compactor.mask.assign(mask)
            if self._optimizers is not None:
                self._optimizers.stop_rows(index, (mask <= 0.5) & (before >= 0.5))

    def forgotten_share(self) -> Any:
        """Returns the share of masked rows whose norm is below `state.epsilon`."""
        return self._share_below_epsilon([c.row_norms() for c in self.compactors])

    def _share_below_epsilon(self, norms: Sequence[Any]) -> Any:
        all_norms = ops.concatenate(norms)
        masked = ops.concatenate([c.mask for c in self.compactors]) < 0.5
        small = all_norms < ops.cast(self.state.epsilon, all_norms.dtype)
        forgotten = ops.count_nonzero(masked & small)
        share = forgotten / ops.maximum(ops.count_nonzero(masked), 1)
        return ops.cast(share, "float32")

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        *args,
        **kwargs,
    ):
        """Trains, as `keras.Model.fit` does; a `ChannelSelection` is needed."""
        if isinstance(callbacks, keras.callbacks.CallbackList):
            known = callbacks.callbacks
        else:
            known = keras.tree.flatten(callbacks)
        check_callbacks(known)
        if not any(getattr(callback, "selects_channels", False) for callback in known):
            raise ValueError(
                "Without channel selection no channel is ever forgotten. Add "
                "`resrep_tf.ChannelSelection(flops_target=...)` to `callbacks`. (To "
                "train the wrapped model without pruning on purpose, call "
                f"`keras.Model.fit(pruner, ...)`.) Received: callbacks={callbacks}"
            )
        check_frozen(self)
        with blame_labels(self):
            return super().fit(
                x, y, batch_size, epochs, verbose, callbacks, *args, **kwargs
            )


def _compactors(model: keras.Model) -> list[Compactor]:
    found = []
    for layer in model.layers:
        if isinstance(layer, Compactor):
            found.append(layer)
        elif isinstance(layer, keras.Model):
            found.extend(_compactors(layer))
    return found
