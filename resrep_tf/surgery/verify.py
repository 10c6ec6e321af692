"""Compares two models, on random inputs or given ones."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from resrep_tf.graph.keras_nodes import check_model, structures
from resrep_tf.surgery.observing import Path, observer
from resrep_tf.surgery.rounding import as_rows, rounding

_TINY = float(np.finfo(np.float32).tiny)
# The largest difference that rounding explains, relative to the outputs' scale, by the
# precision in which the models compute.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 1e-1, "float16": 2e-2}


def lowest_precision(model: keras.Model) -> str:
    """Returns the least precise type of numbers that a model computes with."""
    kinds = [layer.compute_dtype for layer in _leaves(model)] + [model.compute_dtype]
    known = [kind for kind in kinds if kind in TOLERANCES]
    return max(known, key=lambda kind: TOLERANCES[kind], default="float32")


def _leaves(model: keras.Model) -> Iterator[keras.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer


def random_inputs(
    model: keras.Model, shapes: Sequence[tuple], batch: int = 2, seed: int = 0
) -> Any:
    """Returns random inputs in a model's structure.

    Every second example has values of the size of pixels of 0 to 255: a model that
    rescales its images first would hardly see a difference between small values. Of
    four examples, two are around zero, one has no negative numbers, and one is between
    0 and 1.

    Args:
        model: The model.
        shapes: The shape of each input, with a number for every open size.
        batch: The number of examples.
        seed: Other seeds give other inputs.
    """
    rng = np.random.default_rng(seed)
    flat = []
    for tensor, shape in zip(model.inputs, shapes, strict=True):
        size = (tensor.shape[0] or batch, *shape[1:])
        if np.issubdtype(np.dtype(_numpy_type(tensor.dtype)), np.floating):
            values = rng.standard_normal(size)
            values[1::2] *= 128
            values[3::4] = np.abs(values[3::4])
            values[2::4] = rng.random(values[2::4].shape)
            flat.append(values.astype(_numpy_type(tensor.dtype)))
        else:
            flat.append(rng.integers(0, 2, size).astype(tensor.dtype))
    structure, _ = structures(check_model(model))
    return keras.tree.pack_sequence_as(structure, flat)


def _numpy_type(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


def compare(a: Any, b: Any, explained: Sequence[np.ndarray] | None = None) -> float:
    """Returns the largest difference of two outputs, relative to the scale of `a`.

    Each example has its own scale, its largest number, so that large examples do not
    hide differences of small ones. NaN or infinity in only one of the two outputs is
    an infinite difference.

    Args:
        a: One or several outputs.
        b: The outputs to compare with them.
        explained: For each output, the difference of each example that rounding
            explains; examples that do not differ by more are not counted.
    """
    worst = 0.0
    flat = keras.tree.flatten(a)
    allowed = [0.0] * len(flat) if explained is None else explained
    for one, other, most in zip(flat, keras.tree.flatten(b), allowed, strict=True):
        left, right = as_rows(one), as_rows(other)
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return 0.0 if np.array_equal(left, right, equal_nan=True) else float("inf")
        scale = np.abs(left).max(axis=1, initial=0.0)
        scale = np.maximum(scale, max(1e-3 * scale.max(initial=0.0), _TINY))
        difference = np.abs(left - right).max(axis=1, initial=0.0)
        counts = difference > most
        worst = max(worst, float((difference / scale).max(initial=0.0, where=counts)))
    return worst


def difference(
    a: keras.Model,
    b: keras.Model,
    inputs: Any,
    limit: float,
    precision: str | None = None,
) -> float:
    """Returns the largest difference of two models, relative to the scale of `a`.

    The outputs are compared, and the values before them, such as logits: see
    `surgery.observing`.

    Args:
        a: The model that is right.
        b: The model to compare with it.
        inputs: The inputs that they are compared on.
        limit: If they differ by more, differences that rounding explains are left
            out: see `surgery.rounding`.
        precision: The type of the numbers that they compute with. With None, rounding
            explains no difference.
    """
    run = observer(a)
    expected, found = run(inputs), observer(b)(inputs)
    worst = _differ(expected, found, {})
    if worst <= limit or precision is None:
        return worst
    allowed = rounding(a, lambda: list(run(inputs).values()), precision)
    return _differ(expected, found, dict(zip(expected, allowed, strict=True)))


def _differ(
    a: dict[Path, Any], b: dict[Path, Any], explained: dict[Path, np.ndarray]
) -> float:
    """Returns the largest difference of the values observed in two models."""
    worst = 0.0
    for path, left in a.items():
        left = keras.ops.convert_to_numpy(left)
        is_output = len(path) == 1
        if not is_output and (path not in b or not np.isfinite(left).all()):
            # Only outputs must exist in both models, and be infinite at the same
            # places.
            continue
        right = keras.ops.convert_to_numpy(b[path])
        if left.shape == right.shape:
            allowed = [explained[path]] if path in explained else None
            worst = max(worst, compare(left, right, allowed))
        elif is_output:
            return float("inf")
    return worst
