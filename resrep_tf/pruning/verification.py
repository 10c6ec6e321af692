"""Compares a pruner with a model that was made from it."""

import contextlib
import itertools
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.rows import Rows, zeroed
from resrep_tf.surgery.examples import batches_of
from resrep_tf.surgery.observing import in_single_precision, is_mixed
from resrep_tf.surgery.rebuild import Rebuilder
from resrep_tf.surgery.verify import (
    TOLERANCES,
    compare,
    difference,
    lowest_precision,
    random_inputs,
)

# The number of random examples: enough for this many numbers, within these bounds. In a
# small network, a channel may be zero for most examples.
_NUMBERS, _FEWEST, _MOST = 1 << 18, 4, 64
# The most batches of the user's own data, and the most examples of each.
_BATCHES, _BATCH_SIZE = 2, 64


@dataclass(frozen=True)
class Verification:
    """The differences between a model and the pruner that it was made from.

    Attributes:
        difference: The largest difference of their outputs and logits, relative to
            their scale, as in `surgery.verify.difference`.
        damage: The same between the pruner as it is and with its dropped rows set to
            zero, or None.
        verified_on: The inputs that they were compared on, in words.
    """

    difference: float
    damage: float | None
    verified_on: str


class Verifier:
    """Verifies models as the argument `verify` of `convert` and `shrink` says.

    Args:
        pruner: The wrapped model.
        verify: False, True, the largest difference to accept, or data.
        also: Data to compare on if `verify` is no data.
    """

    def __init__(self, pruner: ResRepModel, verify: Any, also: Any = None):
        self._pruner = pruner
        self.wanted = verify is not False
        self._limit: float | None = None
        self._data = also
        if isinstance(verify, numbers.Real) and not isinstance(verify, bool):
            self._limit = float(verify)
            if not 0 <= self._limit < math.inf:
                raise ValueError(
                    "`verify` must be a difference of at least 0, relative to the "
                    f"outputs' scale. Received: verify={verify}"
                )
        elif not isinstance(verify, bool):
            self._data = list(_first(pruner, verify))
            if not self._data:
                raise ValueError(
                    "`verify` must be True, False, a number, or data of at least one "
                    f"batch. Received: verify={verify!r} without any"
                )

    def __call__(
        self, slim: keras.Model, rows: Rows, what: str, measure_damage: bool
    ) -> Verification:
        """Compares a model with the pruner whose dropped rows are set to zero.

        Args:
            slim: The model that was made from it.
            rows: For each compactor, the rows that stay.
            what: The kind of model that `slim` is, for the message.
            measure_damage: True to measure too how dropping these rows changes the
                outputs.
        """
        model, rows = _readable(self._pruner, rows)
        own = [] if self._data is None else list(_first(model, self._data))
        shapes = self._pruner.graph.input_shapes
        size = max(math.prod(shape[1:]) for shape in shapes)
        batch = min(max(_NUMBERS // max(size, 1), _FEWEST), _MOST)
        inputs = [random_inputs(self._pruner, shapes, batch=batch), *own]
        kinds = f"{_count(inputs[:1])} random inputs"
        if own:
            kinds += f" and {_count(own)} of the given ones"
        precisions = [lowest_precision(self._pruner)]
        if is_mixed(model):
            precisions.insert(0, "float32")
        worst = 0.0
        for number, precision in enumerate(precisions):
            limit, explained = TOLERANCES[precision], precision
            if self._limit is not None:
                limit, explained = self._limit, None
            # The models themselves compute in the last precision of the list.
            with _in_single(number < len(precisions) - 1, model, slim), zeroed(rows):
                worst = max(
                    difference(model, slim, batch, limit, explained) for batch in inputs
                )
            if not worst <= limit:
                raise ValueError(
                    f"The {what} model does not compute what the wrapped one does: "
                    f"outputs or logits differ by {worst:.3g} of their scale in "
                    f"{precision}, more than {limit:.3g}, on {kinds}. If rounding "
                    "explains that, `verify` can be a larger number. "
                    f"Received: verify={limit}"
                )
        damage = _damage(model, rows, inputs) if measure_damage else None
        return Verification(worst, damage, f"{kinds}, in {' and '.join(precisions)}")


def _damage(model: keras.Model, rows: Rows, inputs: list[Any]) -> float:
    """Returns how much dropping rows changes the outputs, without looking at logits."""
    worst = 0.0
    for batch in inputs:
        with zeroed(rows):
            expected = model(batch, training=False)
        worst = max(worst, compare(model(batch, training=False), expected))
    return worst


def _first(model: keras.Model, data: Any) -> Iterator[Any]:
    """Yields the first batches of data, cut to a small size."""
    batches = batches_of(model, data, _BATCH_SIZE, "verify")
    for batch in itertools.islice(batches, _BATCHES):
        yield keras.tree.map_structure(lambda array: array[:_BATCH_SIZE], batch)


def _count(batches: list[Any]) -> int:
    return sum(len(keras.tree.flatten(batch)[0]) for batch in batches)


@contextlib.contextmanager
def _in_single(single: bool, *models: keras.Model) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for model in models if single else ():
            stack.enter_context(in_single_precision(model))
        yield


def _readable(pruner: ResRepModel, rows: Rows) -> tuple[keras.Model, Rows]:
    """Returns a model to compare with: the given one, or a copy if it has replicas.

    Outside of its strategy, a model with replicas would use the moving statistics of
    one replica.
    """
    if pruner.distribute_strategy.num_replicas_in_sync == 1:
        return pruner, rows
    rebuilder = Rebuilder(pruner.graph)
    model = rebuilder.build()
    return model, {rebuilder.made(c): kept for c, kept in rows.items()}


def verdict(
    kept: Mapping[str, int],
    difference: float | None,
    damage: float | None,
    on: str | None,
) -> list[str]:
    """Returns the last lines of a report: channels that stay, and differences."""
    lines = [
        f"{channels} channels had to stay: {reason}"
        for reason, channels in kept.items()
    ]
    if difference is not None:
        where = f", on {on}" if on else ""
        lines.append(f"verified: outputs differ by {difference:.3g} at most{where}")
    if damage is not None:
        lines.append(f"dropping these rows changed the outputs by {damage:.3g}")
    return lines
