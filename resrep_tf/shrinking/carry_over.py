"""Takes an optimizer's state from a model to a narrower one.

Weights that are the same have the same momentum and moments, and those that lost
channels lost them there too. Weights that were merged from several start from rest.
Only a slot that holds magnitudes (nothing in it is negative, such as the second moments
of Adam) is filled with its mean in the given model: at zero, and with the steps counted
on, the first updates would be several times too large.
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
    """Where a weight of the narrower model comes from.

    Args:
        variable: The weight.
        source: The weight of the given model that it was made from.
        axes: By axis, which entries of the source it has; all on other axes. None if
            it was merged from several weights.
    """

    variable: keras.Variable
    source: keras.Variable
    axes: Axes | None


def find_axes(
    source: keras.Variable, variable: keras.Variable, masks: Sequence[np.ndarray]
) -> Axes | None:
    """Returns how a weight was cut out of another one, or None if it was not.

    Args:
        source: The wider weight.
        variable: The narrower weight.
        masks: The channels that each input and output of the layer keeps. Which axis
            has which is found by comparing values.
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
        # A kernel with groups has the inputs of one of them.
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
    """Lets an optimizer go on where another one is, on a narrower model.

    Its learning rate stays what it is; the count of steps, on which schedules of the
    learning rate depend, is taken over.

    Args:
        old: The optimizer of the given model.
        new: One of the same configuration, built on the narrower model's weights.
        origins: Where its weights come from.
        weights: The weights that `old` trains; others among them do no harm.
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
    """Returns an optimizer's slots by id of weight and kind; and all that are none.

    Keras names a slot after its weight and its kind. Weights of the same path, in
    nested models, have their slots in the order in which they are.
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
    """Copies numbers that belong to no weight, but for the learning rate."""
    for source, variable in itertools.zip_longest(old, new):
        both = source is not None and variable is not None
        # A shape without axes is true as a truth value, to TensorFlow.
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
