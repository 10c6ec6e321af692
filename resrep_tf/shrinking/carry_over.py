"""Carries an optimizer's state over from a model to a narrower one.

Unchanged weights keep their momentum and moments. For weights that lost channels, the
same entries are taken out of these. Weights that were merged from several start with
zeros. The exception are slots of magnitudes, in which nothing is negative, such as the
second moments of Adam. They start with their mean in the given model: since the count
of steps goes on, zeros would make the first updates several times too large.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

Axes = dict[int, np.ndarray]


@dataclass(frozen=True)
class Origin:
    """The origin of a weight of the narrower model.

    Args:
        variable: The weight.
        source: The weight of the given model that it was made from.
        axes: By axis, the entries of the source that it has; all on axes that are not
            named. None if it was merged from several weights.
    """

    variable: keras.Variable
    source: keras.Variable
    axes: Axes | None


def find_axes(
    source: keras.Variable, variable: keras.Variable, masks: Sequence[np.ndarray]
) -> Axes | None:
    """Returns the entries of a weight that a narrower one has, or None if unclear.

    Args:
        source: The wider weight.
        variable: The narrower weight.
        masks: The channels that each input and output of the layer keeps. Values are
            compared to find which mask belongs to which axis.
    """
    if source.shape == variable.shape:
        return {}
    if len(source.shape) != len(variable.shape):
        return None
    choices: list[list[tuple[int, np.ndarray]]] = []
    for axis, (wide, narrow) in enumerate(
        zip(source.shape, variable.shape, strict=True)
    ):
        if wide == narrow:
            continue
        fitting = [np.repeat(m, wide // len(m)) for m in masks if 0 < len(m) <= wide]
        # A grouped kernel has the input channels of one group.
        fitting += [m[:wide] for m in masks if len(m) > wide]
        fitting = [m for m in fitting if len(m) == wide and m.sum() == narrow]
        choices.append([(axis, mask) for mask in fitting])
    old, new = map(keras.ops.convert_to_numpy, (source, variable))
    for choice in itertools.product(*choices):
        if np.array_equal(cut(old, dict(choice)), new):
            return dict(choice)
    return None


def cut(value: np.ndarray, axes: Axes) -> np.ndarray:
    """Returns the part of an array that a narrower weight has."""
    for axis, mask in axes.items():
        value = np.compress(mask, value, axis)
    return value


def carry_over(
    old: keras.Optimizer,
    new: keras.Optimizer,
    origins: Sequence[Origin],
    weights: Sequence[keras.Variable],
    new_weights: Sequence[keras.Variable],
) -> None:
    """Copies an optimizer's state to an optimizer of a narrower model.

    The new learning rate is not changed. The count of steps, on which schedules of the
    learning rate depend, is copied.

    Args:
        old: The optimizer of the given model.
        new: One of the same configuration, built on the narrower model's weights.
        origins: The origins of the narrower model's weights.
        weights: The weights that `old` trains; there may be others among them.
        new_weights: The weights that `new` was built on.
    """
    scaled = keras.optimizers.LossScaleOptimizer
    if isinstance(old, scaled) and isinstance(new, scaled):
        own = len(old.variables) - len(old.inner_optimizer.variables)
        _copy_counters(old.variables[:own], new.variables[:own], new)
        old, new = old.inner_optimizer, new.inner_optimizer
    sources = {id(origin.variable): origin for origin in origins}
    old_slots, counters = _slots(old, weights)
    new_slots, new_counters = _slots(new, new_weights)
    _copy_counters(counters, new_counters, new)
    magnitudes = _magnitudes(old_slots)
    for key, slots in new_slots.items():
        origin = sources.get(key)
        known = old_slots.get(id(origin.source)) if origin is not None else None
        for kind, slot in slots.items():
            if known is None or kind not in known:
                continue
            value = keras.ops.convert_to_numpy(known[kind])
            if origin.axes is not None and value.shape == tuple(origin.source.shape):
                slot.assign(cut(value, origin.axes))
            elif kind in magnitudes:
                slot.assign(np.full(slot.shape, value.mean(), value.dtype))


def _slots(
    optimizer: keras.Optimizer, weights: Sequence[keras.Variable]
) -> tuple[dict[int, dict[str, keras.Variable]], list[keras.Variable]]:
    """Returns an optimizer's slots, by id of weight and kind, and its other variables.

    Keras names a slot after its weight and its kind. If weights of nested models have
    the same path, their slots are in the order of the weights.
    """
    owners: dict[str, list[keras.Variable]] = defaultdict(list)
    for weight in weights:
        owners[weight.path.replace("/", "_")].append(weight)
    met: dict[str, int] = defaultdict(int)
    slots: dict[int, dict[str, keras.Variable]] = defaultdict(dict)
    others = []
    for variable in optimizer.variables:
        name = variable.path.rsplit("/", 1)[-1]
        prefixes = [p for p in owners if name.startswith(f"{p}_")]
        if not prefixes:
            others.append(variable)
            continue
        prefix = max(prefixes, key=len)
        weight = owners[prefix][met[name]]
        met[name] += 1
        slots[id(weight)][name.removeprefix(f"{prefix}_")] = variable
    return slots, others


def _copy_counters(
    old: Sequence[keras.Variable], new: Sequence[keras.Variable], optimizer: Any
) -> None:
    """Copies numbers that belong to no weight, except the learning rate."""
    for source, variable in itertools.zip_longest(old, new):
        both = source is not None and variable is not None
        # `len`, since TensorFlow's shape without axes counts as true.
        if not both or len(source.shape) or len(variable.shape):
            raise ValueError(
                f"The state of {type(optimizer).__name__} cannot be carried over: it "
                "is not clear to which weights its variables belong. "
                f"Received: optimizer={optimizer!r}"
            )
        if variable.name != "learning_rate":
            variable.assign(keras.ops.convert_to_numpy(source))


def _magnitudes(slots: dict[int, dict[str, keras.Variable]]) -> set[str]:
    """Returns the kinds of slots in which nothing is negative."""
    kinds = {kind for known in slots.values() for kind in known}
    for known in slots.values():
        for kind, slot in known.items():
            if kind in kinds and keras.ops.any(slot < 0):
                kinds.discard(kind)
    return kinds
