"""The re-parameterised model: two optimizers and a training step that forgets."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning import gradient_reset as forgetting
from resrep_tf.pruning import replicas
from resrep_tf.pruning.compactor import FILTERS, Compactor

MOMENTUM = 0.99
LASSO_STRENGTH = 1e-4


@keras.saving.register_keras_serializable(package="resrep_tf")
class ResRepModel(keras.Model):
    """A model with compactors, as `resrep_tf.wrap` makes it.

    Everything but the compactors trains as the user asks: their optimizer, loss and
    schedule. The compactors have an optimizer of their own, and their gradients are
    reset (`resrep_tf.pruning.gradient_reset`). What must survive a restart (masks,
    the selection limit, the Lasso's strength) are weights of the model.
    """

    # Keras revives a functional subclass only if its constructor is spelled so.
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.compactor_optimizer = None
        self._follows = True
        self.compiled_strength = LASSO_STRENGTH
        self.snap = False
        self.selection_limit = self._state("selection_limit", "int64")
        self.lasso_strength = self._state("lasso_strength", value=LASSO_STRENGTH)
        self.masked_strength = self._state("masked_strength", value=LASSO_STRENGTH)
        self.epsilon = self._state("epsilon", value=1e-5)
        self.flops_removed = self._state("flops_removed")
        self._name_filters()

    def _state(self, name: str, dtype: str = "float32", value: float = 0.0):
        return self.add_weight(
            name=name,
            shape=(),
            dtype=dtype,
            initializer=keras.initializers.Constant(value),
            trainable=False,
            autocast=False,
        )

    @property
    def compactors(self) -> list[Compactor]:
        """The compactors in graph order, each once."""
        return list(dict.fromkeys(_compactors(self)))

    @cached_property
    def graph(self) -> ChannelGraph:
        """The channel graph of the model that conversion would give."""
        return ChannelGraph(self)

    def spaces(self) -> list[np.ndarray]:
        """For each compactor, the channels that its rows stand for in `graph`."""
        rows = {
            id(call.op): call.outputs[0].channels
            for call in self.graph.calls.values()
            if isinstance(call.op, Compactor)
        }
        return [rows[id(compactor)] for compactor in self.compactors]

    def norms_at_start(self) -> list[np.ndarray] | None:
        """For each compactor, what norms its rows had when the model was wrapped.

        None where all were 1, those of compactors proper. Plans need them to be the
        same after a restart as before, so this is no matter of present weights.
        """
        if not self._trains_filters:
            return None
        return [np.asarray(c.norms_at_start) for c in self.compactors]

    @property
    def compactor_momentum(self) -> float | None:
        """The momentum with which SGD trains the compactors; None if another does."""
        if self.compactor_optimizer is None:
            return MOMENTUM
        optimizer = _inner(self.compactor_optimizer)
        sgd = isinstance(optimizer, keras.optimizers.SGD)
        return optimizer.momentum if sgd else None

    @property
    def leading_optimizer(self) -> keras.Optimizer:
        """The optimizer whose learning rate the compactors have."""
        return self.optimizer if self._follows else self.compactor_optimizer

    @property
    def batches_per_step(self) -> int:
        """How many batches an optimizer step takes: more than one to accumulate."""
        return _inner(self.optimizer).gradient_accumulation_steps or 1

    def _name_filters(self) -> None:
        """Tells compactors of kind "filters" what they stand for, once it exists."""
        if not self._trains_filters:
            return
        graph = ChannelGraph(self)
        producers = {
            space.channels.tobytes(): space.producers[0] for space in graph.spaces
        }
        for call in graph.calls.values():
            if isinstance(call.op, Compactor) and call.op.kind == FILTERS:
                producer = producers[call.outputs[0].channels.tobytes()]
                filters, _ = producer.calls[0].rule.filters(producer.layer)
                call.op.stand_in_for(filters)

    @property
    def _trains_filters(self) -> bool:
        return any(compactor.kind == FILTERS for compactor in self.compactors)

    # === Compiling ===

    def compile(
        self,
        optimizer="rmsprop",
        *args,
        compactor_optimizer: Any = None,
        lasso_strength: float = LASSO_STRENGTH,
        masked_strength: float | None = None,
        snap: bool = False,
        **kwargs,
    ):
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: Trains everything but the compactors.
            *args: As in `keras.Model.compile`, from `loss` on.
            compactor_optimizer: Trains the compactors, with its own learning rate.
                By default SGD with momentum 0.99 whose learning rate is that of
                `optimizer` at every step. A number is taken as another momentum
                for that default. Filters have the momentum of `optimizer`, which
                must be SGD, unless another is given.
            lasso_strength: The Lasso's strength on the compactors, lambda.
            masked_strength: Its strength on masked rows; the same by default, as in
                the paper. On a short run masked rows need a strong pull to be
                forgotten in time, which all others are better spared.
            snap: Whether a masked row starts from rest and becomes exactly zero as
                soon as it is within one step of it. Otherwise it oscillates around
                zero until the learning rate has decayed. The paper does not do this.
            **kwargs: As in `keras.Model.compile`.
        """
        if masked_strength is None:
            masked_strength = lasso_strength
        for name, value in [
            ("lasso_strength", lasso_strength),
            ("masked_strength", masked_strength),
        ]:
            if not 0 < value < float("inf"):
                raise ValueError(
                    f"`{name}` must be positive and finite. Received: {name}={value}"
                )
        super().compile(optimizer, *args, **kwargs)
        self.lasso_strength.assign(lasso_strength)
        self.masked_strength.assign(masked_strength)
        # What was asked for: a schedule may raise the strength, and must come to the
        # same result when it is derived once more after a restart.
        self.compiled_strength = float(masked_strength)
        self.snap = snap
        self._follows = compactor_optimizer is None or isinstance(
            compactor_optimizer, (int, float)
        )
        if self._follows:
            momentum = compactor_optimizer
            if momentum is None:
                momentum = self._usual_momentum()
            compactor_optimizer = self._follower(momentum)
        self.compactor_optimizer = self._checked(compactor_optimizer)
        self._check_trainers()
        # Built here, each on its own variables: an optimizer that is built lazily
        # silently loses its state when a saved model is loaded.
        for optimizer, variables in [
            (self.optimizer, self._remembering()),
            (self.compactor_optimizer, self._forgetting()),
        ]:
            if not optimizer.built:
                optimizer.build(variables)

    def _usual_momentum(self) -> float:
        """That of the paper for compactors; filters train like everything else."""
        if not self._trains_filters:
            return MOMENTUM
        main = _inner(self.optimizer)
        if not isinstance(main, keras.optimizers.SGD):
            raise ValueError(
                "Without SGD it is not clear how to train filters: give "
                f"`compactor_optimizer`. Received: optimizer={main!r}"
            )
        return main.momentum

    def _follower(self, momentum: float) -> keras.Optimizer:
        if not 0 <= momentum < 1:
            raise ValueError(
                "A number as `compactor_optimizer` is a momentum, at least 0 and "
                f"below 1. Received: compactor_optimizer={momentum}"
            )
        return keras.optimizers.SGD(
            momentum=float(momentum),
            gradient_accumulation_steps=_inner(
                self.optimizer
            ).gradient_accumulation_steps,
            name="compactor_sgd",
        )

    def _checked(self, optimizer: Any) -> keras.Optimizer:
        optimizer = keras.optimizers.get(optimizer)
        inner = _inner(optimizer)
        if inner.weight_decay:
            raise ValueError(
                "Compactors are never decayed: give `compactor_optimizer` no "
                f"weight decay. Received: weight_decay={inner.weight_decay}"
            )
        if self.snap and not isinstance(inner, keras.optimizers.SGD):
            raise ValueError(
                "`snap` needs SGD for the compactors, whose last step it reckons "
                f"with. Received: compactor_optimizer={optimizer!r}"
            )
        main = self.optimizer
        if _is_scaled(main) and not _is_scaled(optimizer):
            # Both see a bad step at the same time, so that their scales stay equal.
            optimizer = keras.optimizers.LossScaleOptimizer(
                optimizer,
                initial_scale=main.initial_scale,
                dynamic_growth_steps=main.dynamic_growth_steps,
            )
        return optimizer

    def _check_trainers(self) -> None:
        """Refuses what Keras would accept and then silently do wrong."""
        optimizers = {
            "optimizer": _inner(self.optimizer),
            "compactor_optimizer": _inner(self.compactor_optimizer),
        }
        for name, optimizer in optimizers.items():
            if optimizer.use_ema:
                # At the end of `fit`, Keras overwrites the model's variables with
                # the averages, taking it that one optimizer has all of them.
                raise ValueError(
                    f"`{name}` cannot average weights: compactors and other weights "
                    "have an optimizer each. Received: use_ema=True"
                )
        if not self._remembering():
            raise ValueError(
                "All layers are frozen, so that none could make up for what compactors "
                f"forget. Received: model={self.name!r} without trainable weights"
            )
        replicas.check_scope(self, optimizers)

    def get_compile_config(self):
        config = super().get_compile_config()
        if not config:
            return config
        serialize = keras.saving.serialize_keras_object
        # The loss scale wraps the optimizer according to a global setting that need
        # not hold where the model is loaded, so the wrapped optimizer is stored.
        config["optimizer"] = serialize(self.optimizer)
        config["auto_scale_loss"] = False
        config["compactor_optimizer"] = (
            _inner(self.compactor_optimizer).momentum
            if self._follows
            else serialize(self.compactor_optimizer)
        )
        config["lasso_strength"] = replicas.number(self.lasso_strength)
        config["masked_strength"] = self.compiled_strength
        config["snap"] = self.snap
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    # === Training ===

    def _forgetting(self) -> list[Any]:
        return [compactor.rows for compactor in self.compactors]

    def _remembering(self) -> list[Any]:
        kernels = {id(kernel) for kernel in self._forgetting()}
        return [v for v in self.trainable_variables if id(v) not in kernels]

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        remembering, forgotten = self._remembering(), self._forgetting()
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            scaled = self.optimizer.scale_loss(loss)
        count = tf.distribute.get_strategy().num_replicas_in_sync
        self._track_loss(loss * count, x)
        gradients = tape.gradient(scaled, remembering + forgotten)
        main, compact = gradients[: len(remembering)], gradients[len(remembering) :]
        compact = self._reset(compact, count)
        if _is_scaled(self.optimizer):
            joint = replicas.fail_together(main + compact)
            main, compact = joint[: len(main)], joint[len(main) :]
        if self._follows:
            # A tensor (which `ops` does not make of a variable): an optimizer takes
            # any variable for its own, and could not be loaded with one more.
            self.compactor_optimizer.learning_rate = tf.convert_to_tensor(
                self.optimizer.learning_rate
            )
        self.optimizer.apply_gradients(zip(main, remembering, strict=True))
        self.compactor_optimizer.apply_gradients(zip(compact, forgotten, strict=True))
        if self.snap:
            self._snap()
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return {
            **logs,
            "flops_removed": tf.convert_to_tensor(self.flops_removed),
            "forgotten": self.forgotten(),
        }

    def _track_loss(self, loss: Any, x: Any) -> None:
        batch = ops.shape(keras.tree.flatten(x)[0])[0]
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=batch)

    def _reset(self, gradients: list[Any], count: int) -> list[Any]:
        """Resets the compactors' gradients, which come with the loss's scale.

        Optimizers sum gradients over replicas, so each contributes its share of
        the Lasso. The Lasso term has no loss scale; it gets the one that the
        compactors' optimizer will take away.
        """
        scale = ops.convert_to_tensor(self.optimizer.scale_loss(1.0))
        mild, strong = (
            ops.convert_to_tensor(strength) / count
            for strength in (self.lasso_strength, self.masked_strength)
        )
        reset = []
        for gradient, compactor in zip(gradients, self.compactors, strict=True):
            kernel = ops.convert_to_tensor(compactor.rows)
            if gradient is None:
                gradient = ops.zeros_like(kernel)
            gradient = gradient / ops.cast(scale, gradient.dtype)
            strengths = ops.where(compactor.mask > 0.5, mild, strong)
            gradient = forgetting.reset_gradient(
                gradient, kernel, compactor.mask, ops.cast(strengths, kernel.dtype)
            )
            reset.append(self.compactor_optimizer.scale_loss(gradient))
        return reset

    def set_masks(self, masks: Sequence[np.ndarray]) -> None:
        """Says which rows go on learning (1) and which are forgotten from now on (0).

        With `snap`, newly masked rows start from rest: what the objective did to them
        lives on in their velocity, and would carry a row past zero on a short run.
        """
        if len(masks) != len(self.compactors):
            raise ValueError(
                f"`masks` must have one array for each of {len(self.compactors)} "
                f"compactors. Received: {len(masks)} arrays"
            )
        for number, (compactor, mask) in enumerate(
            zip(self.compactors, masks, strict=True)
        ):
            mask, before = np.asarray(mask), ops.convert_to_numpy(compactor.mask)
            compactor.mask.assign(mask)
            if self.snap and self.compactor_momentum:
                velocity = _inner(self.compactor_optimizer).momentums[number]
                velocity.assign(velocity * ((mask > 0.5) | (before < 0.5)))

    def _snap(self) -> None:
        """Sets masked rows to exactly zero once they are within a step of it.

        With momentum m a row moves by at most lr * lambda / (1 - m) a step, so it
        cannot cross zero without being seen here.
        """
        optimizer = _inner(self.compactor_optimizer)
        stride = optimizer.learning_rate * self.masked_strength
        reach = stride / (1 - optimizer.momentum)
        for number, compactor in enumerate(self.compactors):
            norms = compactor.row_norms()
            gone = (compactor.mask < 0.5) & (norms <= ops.cast(reach, norms.dtype))
            stays = ops.cast(~gone, norms.dtype)
            compactor.rows.assign(compactor.rows * stays)
            if optimizer.momentum:
                velocity = optimizer.momentums[number]
                velocity.assign(velocity * stays)

    def forgotten(self) -> Any:
        """The share of masked rows that are below `epsilon` already."""
        masked, below = 0.0, 0.0
        for compactor in self.compactors:
            zeroed = compactor.mask < 0.5
            small = compactor.row_norms() < ops.cast(
                self.epsilon, compactor.kernel.dtype
            )
            masked += ops.sum(ops.cast(zeroed, "float32"))
            below += ops.sum(ops.cast(zeroed & small, "float32"))
        return below / ops.maximum(masked, 1.0)

    # === Reading what replicas keep for themselves ===

    def evaluate(self, *args, **kwargs):
        """Evaluates, as `keras.Model.evaluate` does; so do the others below."""
        replicas.average_statistics(self)
        return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        replicas.average_statistics(self)
        return super().predict(*args, **kwargs)

    def export(self, *args, **kwargs):
        replicas.average_statistics(self)
        return super().export(*args, **kwargs)

    def save_own_variables(self, store):
        # The first thing that is saved of a model, in every way of saving it.
        replicas.average_statistics(self)
        super().save_own_variables(store)

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
        if not any(getattr(callback, "selects_channels", False) for callback in known):
            raise ValueError(
                "Without channel selection no channel is ever forgotten. Add "
                "`resrep_tf.ChannelSelection(flops_target=...)` to `callbacks`. (To "
                "train the wrapped model without pruning on purpose, call "
                f"`keras.Model.fit(pruner, ...)`.) Received: callbacks={callbacks}"
            )
        history = super().fit(
            x, y, batch_size, epochs, verbose, callbacks, *args, **kwargs
        )
        # For all that reads weights one by one.
        replicas.average_statistics(self)
        return history


def _compactors(model: keras.Model) -> list[Compactor]:
    found = []
    for layer in model.layers:
        if isinstance(layer, Compactor):
            found.append(layer)
        elif isinstance(layer, keras.Model):
            found.extend(_compactors(layer))
    return found


def _is_scaled(optimizer: keras.Optimizer) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _inner(optimizer: keras.Optimizer) -> keras.Optimizer:
    return optimizer.inner_optimizer if _is_scaled(optimizer) else optimizer
