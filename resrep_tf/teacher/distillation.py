"""Distillation: the loss also compares the outputs with those of a teacher.

When a model is pruned, the trained base is available as its teacher. Learning from its
outputs too gains more than half a point of accuracy on a short run, with every method:

    total = (1 - weight) * loss + weight * distillation(teacher(x), y_pred)

in training only; losses of regularizers count in full, once. The teacher runs as in
inference. It is not a part of the model that learns: it is neither trained nor saved
nor counted, and has to be given again after that model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.distillation import DistillationLoss, FeatureDistillation, LogitsDistillation

from resrep_tf.graph.keras_nodes import as_function, check_model, structures
from resrep_tf.teacher.logits import ToLogits, to_logits

WEIGHT = 0.7
TEMPERATURE = 4.0
METRIC = "distillation_loss"
# Reductions that Keras divides by the number of examples, and by that of replicas.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@keras.saving.register_keras_serializable(package="resrep_tf")
@dataclass(frozen=True)
class Distillation:
    """The settings with which a model learns from a teacher.

    Args:
        weight: The share of the teacher in the loss, from 0 to 1.
        losses: Losses of `keras.distillation`, whose sum is used. By default the
            Kullback-Leibler divergence of all outputs at temperature 4. A
            `LogitsDistillation` gets logits, whatever the models return: for a
            softmax its logarithm, for a sigmoid the two logits of yes and no.
            Losses of inner layers' features are an error. Sample weights do not
            apply to these losses.
    """

    weight: float = WEIGHT
    losses: Sequence[DistillationLoss] = ()

    def __post_init__(self):
        if not 0 <= self.weight <= 1:
            raise ValueError(
                f"`weight` must be from 0 to 1. Received: weight={self.weight}"
            )
        for loss in self.losses:
            if not isinstance(loss, DistillationLoss):
                raise TypeError(
                    "`losses` must be losses of `keras.distillation`. "
                    f"Received: losses={self.losses!r}"
                )
            layers = [
                getattr(loss, f"{who}_layer_name", None)
                for who in ("teacher", "student")
            ]
            if any(layers):
                raise ValueError(
                    "Only outputs of whole models can be distilled, not features of "
                    f"inner layers. Received: losses={self.losses!r} with the layers "
                    f"{layers}"
                )

    @classmethod
    def of(cls, value: Any) -> "Distillation":
        """Returns the `Distillation` that an argument of `compile` means."""
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if isinstance(value, DistillationLoss):
            return cls(losses=(value,))
        if isinstance(value, (list, tuple)):
            return cls(losses=tuple(value))
        raise TypeError(
            "`distillation` must be a `Distillation`, or one or several losses of "
            f"`keras.distillation`. Received: distillation={value!r}"
        )

    def get_config(self) -> dict[str, Any]:
        losses = [keras.saving.serialize_keras_object(loss) for loss in self.losses]
        return {"weight": self.weight, "losses": losses}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Distillation":
        losses = map(keras.saving.deserialize_keras_object, config["losses"])
        return cls(config["weight"], tuple(losses))


@dataclass(frozen=True, eq=False)
class Teacher:
    """A teacher that fits the model that learns from it; made by `prepare`.

    Keras and TensorFlow do not take its model for a part of the model that learns.

    Args:
        model: The teacher's model.
        distillation: How to learn from it.
        losses: The losses of `distillation`, each a mean over the examples.
        to_logits: For the teacher and for the student, a function for each output
            that turns it into logits; None if no loss needs logits.
        metric: The mean distillation loss of an epoch.
    """

    model: keras.Model
    distillation: Distillation
    losses: tuple[DistillationLoss, ...]
    to_logits: tuple[list[ToLogits], list[ToLogits]] | None
    metric: keras.metrics.Metric = field(
        default_factory=lambda: keras.metrics.Mean(name=METRIC)
    )

    @property
    def weight(self) -> float:
        return self.distillation.weight

    def loss(self, x: Any, y_pred: Any) -> Any:
        """Returns the mean distillation loss of a batch."""
        outputs = self.model(x, training=False)
        flat = [keras.tree.flatten(outputs), keras.tree.flatten(y_pred)]
        kinds = {keras.backend.standardize_dtype(t.dtype) for t in flat[0] + flat[1]}
        dtype = "float64" if "float64" in kinds else "float32"
        flat = [[ops.cast(tensor, dtype) for tensor in side] for side in flat]
        flat[0] = [ops.stop_gradient(tensor) for tensor in flat[0]]
        logits = flat
        if self.to_logits is not None:
            logits = [
                [function(tensor) for function, tensor in zip(*pair, strict=True)]
                for pair in zip(self.to_logits, flat, strict=True)
            ]
        return sum(
            loss.compute_loss(
                *(
                    keras.tree.pack_sequence_as(getattr(loss, "loss", y_pred), side)
                    for side in (logits if wants_logits(loss) else flat)
                )
            )
            for loss in self.losses
        )


def wants_logits(loss: DistillationLoss) -> bool:
    """Returns whether a loss needs logits instead of the outputs themselves."""
    return isinstance(loss, LogitsDistillation)


class Taught:
    """Adds a teacher to a Keras model; to be inherited before `keras.Model`.

    `compile` takes `teacher`, a model, and `distillation`, a `Distillation` or losses
    of `keras.distillation`; `teach` changes them later.
    """

    teacher: Teacher | None = None
    distribute_strategy: Any
    # For a loaded model: the name of the teacher that it was saved with, and its
    # distillation.
    _absent: str | None = None
    _distillation: Distillation | None = None

    def compile(self, *args, teacher=None, distillation=None, **kwargs):
        if teacher is None and distillation is not None:
            raise ValueError(
                "`distillation` needs a `teacher`. "
                f"Received: distillation={distillation!r} and teacher=None"
            )
        absent = teacher if isinstance(teacher, str) else None
        if absent is not None:
            teacher = None
        # Everything is checked before anything is changed.
        prepared = None
        if teacher is not None:
            prepared = prepare(teacher, self, Distillation.of(distillation))
        super().compile(*args, **kwargs)
        self.teacher, self._absent = prepared, absent
        self._distillation = None if absent is None else distillation

    def teach(self, teacher: keras.Model | None, distillation: Any = None) -> None:
        """Sets or replaces the teacher of a compiled model; None removes it.

        Nothing else changes: a loaded model keeps its optimizer, and its distillation
        too if no other is given.
        """
        prepared = None
        if teacher is not None:
            if distillation is None:
                distillation = self._distillation
            with self.distribute_strategy.scope():
                prepared = prepare(teacher, self, Distillation.of(distillation))
        self.teacher, self._absent = prepared, None
        self.train_function = None  # It was traced without this teacher.

    def get_compile_config(self):
        config = super().get_compile_config()
        name, distillation = self._absent, self._distillation
        if self.teacher is not None:
            name, distillation = self.teacher.model.name, self.teacher.distillation
        if config and name is not None:
            config["teacher"] = name
            config["distillation"] = keras.saving.serialize_keras_object(distillation)
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self):
        found = super().metrics
        return [*found, self.teacher.metric] if self._learns() else found

    def _learns(self) -> bool:
        return self.teacher is not None and self.teacher.weight > 0

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        loss = super().compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
        )
        if not training:
            return loss
        if self._absent is not None:
            raise ValueError(
                f"`{self.name}` was compiled with a teacher, which is not saved with "
                "it. Give it again with `model.teach(teacher)` or at the next "
                "`compile`, or continue without one by `model.teach(None)`. "
                f"Received: no model for the teacher `{self._absent}`"
            )
        if not self._learns():
            return loss
        distilled = self.teacher.loss(x, y_pred)
        batch = ops.shape(keras.tree.flatten(x)[0])[0]
        self.teacher.metric.update_state(distilled, sample_weight=batch)
        # Optimizers sum up gradients over replicas.
        count = tf.distribute.get_strategy().num_replicas_in_sync
        share = ops.cast(distilled, loss.dtype)
        for penalty in self.losses:  # Regularizers count in full.
            share = share + ops.cast(ops.sum(penalty), loss.dtype)
        weight = self.teacher.weight
        return (1 - weight) * loss + weight * share / count

    def test_step(self, data):
        logs = super().test_step(data)
        # The teacher does not run in evaluation.
        return {name: value for name, value in logs.items() if name != METRIC}


@keras.saving.register_keras_serializable(package="resrep_tf")
class Student(Taught, keras.Model):
    """A plain model that can learn from a teacher.

    `of` makes it from a model, with the same layers: training it trains that model,
    which is the one to save.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    @classmethod
    def of(cls, model: keras.Model) -> "Student":
        inputs, outputs = structures(check_model(model))
        return cls(inputs, outputs, name=model.name)

    def plain(self) -> keras.Model:
        """Returns a plain model with the same layers."""
        inputs, outputs = structures(check_model(self))
        return keras.Model(inputs, outputs, name=self.name)


# === Checks whether a teacher fits a model ===


def prepare(
    teacher: keras.Model, student: keras.Model, distillation: Distillation
) -> Teacher:
    """Checks that a teacher fits a model, and finds how to read its outputs."""
    if not isinstance(teacher, keras.Model) or as_function(teacher) is None:
        raise TypeError(
            "`teacher` must be a Functional or built Sequential model. "
            f"Received: teacher={teacher!r} (of type {type(teacher).__name__})"
        )
    own = {id(variable) for variable in student.variables}
    if any(id(variable) in own for variable in teacher.variables):
        raise ValueError(
            "`teacher` must not share weights with the model that it teaches. "
            f"Received: teacher={teacher!r}"
        )
    for side in ("inputs", "outputs"):
        theirs = [tuple(t.shape) for t in getattr(as_function(teacher), side)]
        ours = [tuple(t.shape) for t in getattr(as_function(student), side)]
        if len(theirs) != len(ours) or not all(map(_fits, theirs, ours)):
            raise ValueError(
                f"`teacher` must have the {side} of the model that it teaches, "
                f"{ours}. Received: teacher={teacher!r} with {side} {theirs}"
            )
    count = len(as_function(student).outputs)
    losses = distillation.losses or [_default(count)]
    for loss in losses:
        parts = len(keras.tree.flatten(loss.loss)) if hasattr(loss, "loss") else count
        if parts != count:
            raise ValueError(
                f"A distillation of {count} outputs needs a loss for each of them, "
                f"or None. Received: distillation={loss!r} with {parts}"
            )
    used = _distilled(losses, count)
    return Teacher(
        teacher,
        distillation,
        tuple(map(_as_mean, losses)),
        to_logits(teacher, student, used) if any(used) else None,
    )


def _fits(a: tuple, b: tuple) -> bool:
    return len(a) == len(b) and all(
        None in pair or pair[0] == pair[1] for pair in zip(a, b, strict=True)
    )


def _default(count: int) -> LogitsDistillation:
    parts = [keras.losses.KLDivergence() for _ in range(count)]
    return LogitsDistillation(TEMPERATURE, parts[0] if count == 1 else parts)


def _distilled(losses: Sequence[DistillationLoss], count: int) -> list[bool]:
    """Returns for each output whether its logits are distilled."""
    used = [False] * count
    for loss in losses:
        if wants_logits(loss):
            parts = keras.tree.flatten(loss.loss)
            used = [u or p is not None for u, p in zip(used, parts, strict=True)]
    return used


def _as_mean(loss: DistillationLoss) -> DistillationLoss:
    """Returns a loss that is a plain mean over a batch's examples.

    `LogitsDistillation` applies a softmax only if its loss is a `KLDivergence` object.
    For the function, to which its own default "kl_divergence" is resolved, it computes
    the divergence of the logits themselves. Also, objects divide by the number of
    replicas, and functions do not.
    """

    def convert(part: Any) -> Any:
        if part is keras.losses.kl_divergence and wants_logits(loss):
            return keras.losses.KLDivergence(reduction="none")
        if isinstance(part, keras.losses.Loss) and part.reduction in _MEANS:
            return type(part).from_config({**part.get_config(), "reduction": "none"})
        return part

    if type(loss) not in (LogitsDistillation, FeatureDistillation):
        return loss
    parts = keras.tree.map_structure(convert, loss.loss)
    if wants_logits(loss):
        return LogitsDistillation(loss.temperature, parts)
    return FeatureDistillation(parts)
