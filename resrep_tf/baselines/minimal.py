"""The minimal structure of a trained model (Sect. 4.3 of the paper).

Channels are removed one at a time while the accuracy does not fall below the
original's, until removing any other one would make it fall. This shows how many
channels of a trained network are superfluous, whatever the method.

Nothing is rebuilt during the search: a removed channel is a row of zeros in a
compactor, so one compiled function evaluates all structures.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.baselines import criteria
from resrep_tf.graph import terms
from resrep_tf.graph.targets import Targets
from resrep_tf.pruning.compactor import VECTOR, Compactor
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.rows import zeroed
from resrep_tf.pruning.wrap import wrap
from resrep_tf.selection.checks import check_positive_integer


@dataclass(frozen=True, eq=False)
class MinimalStructure:
    """The result of `minimal_structure`.

    Attributes:
        keep: For each target layer's name, a boolean for each channel: what
            `resrep_tf.slicing.slice_channels` takes for a plain model, and
            `resrep_tf.convert` for a wrapped one.
        flops: Multiply-adds of the structure.
        original_flops: Multiply-adds of the model.
        accuracy: Accuracy of the structure.
        original_accuracy: Accuracy of the model.
        evaluations: How many structures were evaluated, some of them in part.
        proven: Whether every single further removal was tried, and failed.
    """

    keep: dict[str, np.ndarray]
    flops: int
    original_flops: int
    accuracy: float
    original_accuracy: float
    evaluations: int
    proven: bool

    @property
    def flops_removed(self) -> float:
        return 1 - self.flops / self.original_flops

    @property
    def widths(self) -> dict[str, int]:
        """The number of channels that each target layer keeps."""
        return {name: int(kept.sum()) for name, kept in self.keep.items()}

    def __str__(self):
        kept, rows = sum(self.widths.values()), sum(map(len, self.keep.values()))
        return (
            f"{kept:,} of {rows:,} channels are needed for an accuracy of "
            f"{self.accuracy:.2%} (originally {self.original_accuracy:.2%}): "
            f"{self.flops_removed:.2%} of the FLOPs can go"
            + ("" if self.proven else ", perhaps more")
        )


def minimal_structure(
    model: keras.Model,
    data: Iterable[tuple[Any, Any]],
    targets: Targets = None,
    *,
    scores: Mapping[str, np.ndarray] | None = None,
    min_width: int = 1,
    batch_size: int = 256,
    max_evaluations: int | None = None,
    verbose: int = 0,
) -> MinimalStructure:
    """Removes channels until any one more would cost accuracy.

    Args:
        model: A trained classifier, plain or wrapped; it is not changed.
        data: Batches of inputs and integer labels, which are kept in memory.
        targets: For a plain model, which layers, as in `resrep_tf.wrap`.
        scores: For each target layer's name, a score for each channel; the smallest
            are tried first. By default the norms of filters, or of the compactors'
            rows for a wrapped model.
        min_width: The least number of channels that a layer keeps.
        batch_size: For evaluation.
        max_evaluations: After that many the search stops with what it has, which need
            not be minimal. As many as it takes by default.
        verbose: 1 to show how many evaluations have been made, and how many channels
            are left.

    Example:

    ```python
    structure = minimal_structure(model, test_batches)
    slim = resrep_tf.slicing.slice_channels(model, structure.keep)
    ```
    """
    check_positive_integer("min_width", min_width)
    if isinstance(model, ResRepModel):
        pruner = model
        norms = {c.targets[0]: np.asarray(c.row_norms()) for c in pruner.compactors}
    else:
        # A vector suffices: rows are kept or not, never mixed.
        pruner = wrap(model, targets, compactor=VECTOR)
        norms = criteria.score(model, "l2", targets) if scores is None else {}
    ranked = _by_compactor(pruner, norms if scores is None else scores)
    judge = _Judge(pruner, data, batch_size)
    rows = {c: np.ones(c.width, bool) for c in pruner.compactors}
    original = judge.count(rows)
    judge.reorder(rows)
    search = _Search(judge, rows, original, min_width, max_evaluations, verbose)
    proven = search.run(_ordered(ranked))
    keep = np.ones(pruner.graph.num_channels, bool)
    keep[pruner.compactor_channels().masked(list(rows.values()))] = False
    return MinimalStructure(
        keep={compactor.targets[0]: kept for compactor, kept in rows.items()},
        flops=terms.count(pruner.graph.terms, keep),
        original_flops=terms.count(pruner.graph.terms),
        accuracy=judge.count(rows) / judge.examples,
        original_accuracy=original / judge.examples,
        evaluations=search.evaluations,
        proven=proven,
    )


def _by_compactor(
    pruner: ResRepModel, scores: Mapping[str, np.ndarray]
) -> dict[Compactor, np.ndarray]:
    expected = {c.targets[0]: (c.width,) for c in pruner.compactors}
    received = {name: np.shape(values) for name, values in scores.items()}
    if received != expected:
        raise ValueError(
            f"`scores` must have an array for each target layer, of shapes {expected}. "
            f"Received: scores of shapes {received}"
        )
    return {c: np.asarray(scores[c.targets[0]]) for c in pruner.compactors}


def _ordered(scores: Mapping[Compactor, np.ndarray]) -> list[tuple[Compactor, int]]:
    """Returns all rows, the smallest scores first; equal ones in graph order."""
    rows = [(c, row) for c, values in scores.items() for row in range(len(values))]
    order = np.argsort(np.concatenate(list(scores.values())), kind="stable")
    return [rows[number] for number in order]


class _Search:
    """Removes rows from `rows`, in place, as long as enough answers stay right."""

    def __init__(
        self,
        judge: "_Judge",
        rows: dict[Compactor, np.ndarray],
        needed: int,
        min_width: int,
        most: int | None,
        verbose: int,
    ):
        self._judge = judge
        self._rows = rows
        self._needed = needed
        self._min_width = min_width
        self._most = most
        self._progress = keras.utils.Progbar(
            target=None,
            verbose=verbose,
            stateful_metrics=["channels_left"],
            unit_name="evaluation",
        )
        self.evaluations = 0

    def run(self, order: Sequence[tuple[Compactor, int]]) -> bool:
        """Tries the rows in their order; returns whether the result is minimal.

        Blocks of rows are tried at once, twice as many after a success and half as
        many after a failure: where many can go, most are never tried alone. A row
        that cannot go alone is put at the end of the queue. Accuracy may rise when
        another row goes, so all waiting rows are tried again after a success. In the
        end each has failed against the final structure.
        """
        queue, block, failed = deque(order), 1, 0
        while failed < len(queue) and self.evaluations != self._most:
            chunk = self._chunk(queue, min(block, len(queue) - failed))
            if not chunk:  # The layer of the first row is at its minimum width.
                queue.popleft()
            elif self._try(chunk):
                for _ in chunk:
                    queue.popleft()
                if failed:  # The most critical examples are others now.
                    self._judge.reorder(self._rows)
                block, failed = 2 * block, 0
            elif len(chunk) > 1:
                block = len(chunk) // 2
            else:
                queue.rotate(-1)
                block, failed = 1, failed + 1
        self._show(finalize=True)
        return failed == len(queue)

    def _chunk(
        self, queue: deque[tuple[Compactor, int]], most: int
    ) -> list[tuple[Compactor, int]]:
        """Returns the next rows, up to one whose layer is at its minimum width."""
        chunk: list[tuple[Compactor, int]] = []
        taken: Counter[Compactor] = Counter()
        for compactor, row in queue:
            spare = self._rows[compactor].sum() - self._min_width - taken[compactor]
            if len(chunk) == most or spare <= 0:
                break
            taken[compactor] += 1
            chunk.append((compactor, row))
        return chunk

    def _try(self, chunk: list[tuple[Compactor, int]]) -> bool:
        for compactor, row in chunk:
            self._rows[compactor][row] = False
        self.evaluations += 1
        enough = self._judge.enough(self._rows, self._needed)
        for compactor, row in () if enough else chunk:
            self._rows[compactor][row] = True
        self._show()
        return enough

    def _show(self, finalize: bool = False) -> None:
        left = sum(int(rows.sum()) for rows in self._rows.values())
        metrics = [("channels_left", left)]
        self._progress.update(self.evaluations, metrics, finalize)


class _Judge:
    """Counts the right answers of a model in which some rows are zero."""

    def __init__(
        self, pruner: ResRepModel, data: Iterable[tuple[Any, Any]], batch_size: int
    ):
        batches = list(data)
        if not batches:
            raise ValueError(f"`data` must not be empty. Received: data={data!r}")
        inputs, labels = zip(*batches, strict=True)
        self._inputs = keras.tree.map_structure(
            lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *inputs
        )
        self._labels = np.concatenate([np.asarray(part) for part in labels])
        if self._labels.ndim != 1 or self._labels.dtype.kind not in "iu":
            raise ValueError(
                "`data` must have an integer label for each example. Received: labels "
                f"of shape {self._labels.shape} and type {self._labels.dtype}"
            )
        self._batch_size = batch_size
        self._predict = tf.function(
            lambda inputs: pruner(inputs, training=False), reduce_retracing=True
        )

    @property
    def examples(self) -> int:
        return len(self._labels)

    def count(self, rows: Mapping[Compactor, np.ndarray]) -> int:
        """Returns the number of examples that are classified correctly."""
        with zeroed(rows):
            return sum(int((margins > 0).sum()) for margins in self._margins())

    def enough(self, rows: Mapping[Compactor, np.ndarray], needed: int) -> bool:
        """Returns whether `count` is at least `needed`; stops once that is certain."""
        right, left = 0, self.examples
        with zeroed(rows):
            for margins in self._margins():
                right += int((margins > 0).sum())
                left -= len(margins)
                if right >= needed or right + left < needed:
                    break
        return right >= needed

    def reorder(self, rows: Mapping[Compactor, np.ndarray]) -> None:
        """Moves the critical examples to the front: wrong ones, then nearly wrong ones.

        A smaller structure can only gain examples that are wrong now. Once these are
        counted, a few losses are enough to tell that a structure is too small.
        """
        with zeroed(rows):
            margins = np.concatenate(list(self._margins()))
        order = np.argsort(margins, kind="stable")
        self._inputs, self._labels = _take(self._inputs, order), self._labels[order]

    def _margins(self) -> Iterator[np.ndarray]:
        """Yields, for each batch, by how much the right class leads the next one."""
        for start in range(0, self.examples, self._batch_size):
            part = slice(start, start + self._batch_size)
            outputs = np.array(self._predict(_take(self._inputs, part)), np.float64)
            labels = self._labels[part]
            examples = np.arange(len(labels))
            right = outputs[examples, labels]
            outputs[examples, labels] = -np.inf
            yield right - outputs.max(axis=1)


def _take(inputs: Any, examples: slice | np.ndarray) -> Any:
    return keras.tree.map_structure(lambda array: array[examples], inputs)
