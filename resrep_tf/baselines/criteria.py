"""Other ways to choose channels, to compare ResRep with.

A criterion gives every channel a score at once, from the trained model alone; the
channels of the smallest scores go. All criteria and ResRep share the code that knows
which channels can go, when the budget is met, and how channels are taken out.

Scores of all layers are sorted in one list, as the paper does for its
pruned-and-finetuned baseline (Table 3). The scores of `l1` and `l2` grow with the
number of weights of a filter and are taken as they are, which is what the paper and
the common tools do. `fpgm` was published for a fixed rate in every layer, so its
scores are divided by their layer's mean. A channel that several layers make (of a
residual stream), or one layer at several positions (in front of a grouped convolution),
has the sum of their scores.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.baselines import names
from resrep_tf.budget.goals import Goals
from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.graph.channel_graph import ChannelGraph, Producer, Space
from resrep_tf.graph.targets import (
    Targets,
    check_finite,
    check_not_wrapped,
    choose_spaces,
)
from resrep_tf.rules.weights import read
from resrep_tf.selection.rows import RowChannels
from resrep_tf.selection.selection import Constraints, check_reachable, select
from resrep_tf.surgery.slicing import reinitialise, slice_graph

Batches = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Evidence:
    """The things that a criterion may look at.

    Attributes:
        model: The trained model.
        data: Batches of (inputs, targets), if given.
        loss: The loss, if given or compiled.
        seed: Decides the scores of `random`.
    """

    model: keras.Model
    data: Batches | None = None
    loss: Any = None
    seed: int = 0


# From spaces of channels to a score for each channel of each of them.
Criterion = Callable[[list[Space], Evidence], list[np.ndarray]]


# === Criteria ===


def random(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores channels at random: the result that any criterion has to beat."""
    rng = np.random.default_rng(evidence.seed)
    return [rng.random(space.width) for space in spaces]


def uniform(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores channels so that all spaces lose the same share, whatever their weights.

    Within a space, channels are removed from the last to the first.
    """
    return [np.arange(space.width, 0, -1) / space.width for space in spaces]


def l1(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores a filter by the sum of its absolute weights (Li et al., 2017)."""
    return _summed(spaces, lambda producer: np.abs(_filters(producer)).sum(axis=1))


def l2(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores a filter by its norm: the paper's pruned-and-finetuned baseline."""
    return _summed(spaces, lambda producer: np.linalg.norm(_filters(producer), axis=1))


def fpgm(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores a filter by its distance to the others of its layer (He et al., 2019).

    The score is the sum of its Euclidean distances to them, divided by the layer's
    mean. The filter of the smallest score is nearest to the geometric median, so the
    others can replace it best.
    """

    def remoteness(producer: Producer) -> np.ndarray:
        products = _filters(producer) @ _filters(producer).T
        squares = np.diag(products)
        # (a - b)^2 = a^2 + b^2 - 2ab, which rounding may bring below zero.
        squared = squares[:, None] + squares[None, :] - 2 * products
        distances = np.sqrt(np.maximum(squared, 0.0)).sum(axis=1)
        return distances / (distances.mean() or 1.0)

    return _summed(spaces, remoteness)


def bn_gamma(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores a channel by the absolute scale of its BatchNorm (Liu et al., 2017)."""
    return _summed(spaces, lambda producer: np.abs(read(_gamma(producer, "bn_gamma"))))


def taylor(spaces: list[Space], evidence: Evidence) -> list[np.ndarray]:
    """Scores a channel by its first-order effect on the loss (Molchanov et al., 2019).

    The score is `(gamma * dL/dgamma) ** 2` for the scale of the layer's BatchNorm,
    averaged over batches. L is a batch's mean loss, with BatchNorms as in inference.
    """
    if evidence.data is None:
        raise ValueError(
            "`taylor` needs `data`: batches of (inputs, targets). Received: data=None"
        )
    if evidence.loss is None:
        raise ValueError(
            "`taylor` needs a `loss`, or a compiled model. Received: loss=None"
        )
    model, loss = evidence.model, keras.losses.get(evidence.loss)
    producers = [producer for space in spaces for producer in space.producers]
    gammas = [_gamma(producer, "taylor").value for producer in producers]

    @tf.function(reduce_retracing=True)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            tape.watch(gammas)  # Those of frozen layers too.
            value = loss(y, model(x, training=False))
        return tape.gradient(value, gammas)

    totals, batches = [0.0] * len(gammas), 0
    for x, y in evidence.data:
        for number, gradient in enumerate(gradients(x, y)):
            totals[number] += np.square(read(gammas[number]) * read(gradient))
        batches += 1
    if not batches:
        raise ValueError(f"`data` must not be empty. Received: data={evidence.data!r}")
    scores = {
        id(producer): total / batches
        for producer, total in zip(producers, totals, strict=True)
    }
    return _summed(spaces, lambda producer: scores[id(producer)])


CRITERIA: dict[str, Criterion] = dict(
    zip(
        names.CRITERIA,
        (random, uniform, l1, l2, fpgm, bn_gamma, taylor),
        strict=True,
    )
)


def _summed(
    spaces: list[Space], scorer: Callable[[Producer], np.ndarray]
) -> list[np.ndarray]:
    totals = []
    for space in spaces:
        total = np.zeros(space.width)
        for producer in space.producers:
            np.add.at(total, space.index_of(producer.channels), scorer(producer))
        totals.append(total)
    return totals


def _filters(producer: Producer) -> np.ndarray:
    """Returns a layer's filters as (outputs, weights), in float64."""
    variable, axis = producer.calls[0].rule.filters(producer.layer)
    filters = np.moveaxis(read(variable), axis, 0)
    return filters.reshape(len(filters), -1)


def _gamma(producer: Producer, criterion: str) -> keras.Variable:
    norm = producer.batchnorm
    if norm is None or not norm.scale:
        raise ValueError(
            f"`{criterion}` scores a layer by the BatchNormalization directly behind "
            f"it, and `{producer.name}` has none with a scale. Leave it out of "
            f"`targets`, or take another of {sorted(CRITERIA)}. "
            f"Received: criterion={criterion!r}"
        )
    return norm.gamma


# === Scoring and pruning ===


def score(
    model: keras.Model,
    criterion: str | Criterion,
    targets: Targets = None,
    *,
    data: Batches | None = None,
    loss: Any = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Scores the channels of a trained model; those of small scores can go first.

    Args:
        model: Any model.
        criterion: `"random"`, `"l1"`, `"l2"`, `"fpgm"`, `"taylor"`, `"bn_gamma"` or
            `"uniform"`; or a function of your own, from the spaces of channels and
            the `Evidence` to an array for each of them.
        targets: Which layers, as in `resrep_tf.wrap`.
        data: For `"taylor"`, batches of (inputs, targets).
        loss: For `"taylor"`, a Keras loss; by default that of the compiled model.
        seed: For `"random"`.

    Returns:
        By the name of a layer, a score for each channel that it makes. Of layers that
        make the same channels, the first is named.
    """
    graph, spaces = _read(model, targets)
    loss = getattr(model, "loss", None) if loss is None else loss
    return _score(graph, spaces, criterion, data=data, loss=loss, seed=seed)


def prune_by_scores(
    model: keras.Model,
    scores: str | Criterion | Mapping[str, np.ndarray],
    flops_target: float | None = None,
    targets: Targets = None,
    *,
    data: Batches | None = None,
    loss: Any = None,
    seed: int = 0,
    min_width: int = 1,
    round_to: int = 1,
    params_target: float | None = None,
    latency_target: float | None = None,
    latency_table: LatencyTable | str | Path | None = None,
) -> keras.Model:
    """Removes the channels of the smallest scores until all targets are met.

    The result has the same layers, BatchNorms included, and is to be finetuned.

    Args:
        model: Any trained model; it is not changed.
        scores: A criterion, or scores as `score` returns them.
        flops_target: The fraction of FLOPs to remove, between 0 and 1.
        targets: Which layers, as in `resrep_tf.wrap`.
        data: Batches that the criterion may look at, as in `score`.
        loss: As in `score`.
        seed: As in `score`.
        min_width: The least number of channels that a layer keeps.
        round_to: Makes widths multiples of this, within the same budget.
        params_target: The fraction to remove of the model's parameters.
        latency_target: As in `resrep_tf.ChannelSelection`.
        latency_table: The same.

    Example:

    ```python
    slim = criteria.prune_by_scores(model, "l2", flops_target=0.5)
    slim.compile("sgd", loss)
    ```
    """
    goals = Goals(flops_target, params_target, latency_target, latency_table)
    constraints = Constraints(None, min_width, round_to)
    graph, spaces = _read(model, targets)
    if not isinstance(scores, Mapping):
        loss = getattr(model, "loss", None) if loss is None else loss
        scores = _score(graph, spaces, scores, data=data, loss=loss, seed=seed)
    leading = [layout[0] for space in spaces for layout in space.layouts]
    names = [graph.label(producer.calls[0]) for producer in leading]
    if set(scores) != set(names):
        raise ValueError(
            f"`scores` must have the spaces of `targets`: {names}. "
            f"Received: scores of {list(scores)}"
        )
    channels = RowChannels.of(graph, [producer.channels for producer in leading])
    budget = goals.budget(graph, fuse_bn=False)  # BatchNorms stay in the result.
    check_reachable(channels, budget, constraints)
    chosen = select([scores[name] for name in names], channels, budget, constraints)
    kept = np.ones(graph.num_channels, bool)
    kept[channels.masked(chosen.masks)] = False
    return slice_graph(graph, {space: kept[space.channels] for space in spaces})


def shrink(
    model: keras.Model,
    flops_target: float | None = None,
    targets: Targets = None,
    min_width: int = 1,
    round_to: int = 1,
    params_target: float | None = None,
    latency_target: float | None = None,
    latency_table: LatencyTable | str | Path | None = None,
) -> keras.Model:
    """Returns the same architecture, uniformly narrower, with fresh weights.

    The paper's second baseline (Table 3): every target layer keeps the same share of
    its channels. Weights come from the layers' initializers; Keras's global seed
    decides which.

    Args:
        model: Any model; its weights do not matter.
        flops_target: The fraction of FLOPs to remove, between 0 and 1.
        targets: Which layers, as in `resrep_tf.wrap`.
        min_width: The least number of channels that a layer keeps.
        round_to: Makes widths multiples of this, within the same budget.
        params_target: As in `prune_by_scores`.
        latency_target: The same.
        latency_table: The same.
    """
    # Fresh before and after: a fresh BatchNorm leaves no constants of removed
    # channels that would need biases, and a fresh kernel has the scale that an
    # initializer gives to its new number of inputs.
    slim = prune_by_scores(
        reinitialise(model),
        "uniform",
        flops_target,
        targets,
        min_width=min_width,
        round_to=round_to,
        params_target=params_target,
        latency_target=latency_target,
        latency_table=latency_table,
    )
    return reinitialise(slim)


def _read(model: keras.Model, targets: Targets) -> tuple[ChannelGraph, list[Space]]:
    graph = ChannelGraph(model)
    check_not_wrapped(graph)
    check_finite(graph)
    return graph, choose_spaces(graph, targets)


def _score(
    graph: ChannelGraph, spaces: list[Space], criterion: str | Criterion, **given: Any
) -> dict[str, np.ndarray]:
    if isinstance(criterion, str):
        if criterion not in CRITERIA:
            raise ValueError(
                f"`criterion` must be one of {sorted(CRITERIA)}. "
                f"Received: criterion={criterion!r}"
            )
        criterion = CRITERIA[criterion]
    found = {}
    scores = criterion(spaces, Evidence(graph.model, **given))
    for space, values in zip(spaces, scores, strict=True):
        for producer in (layout[0] for layout in space.layouts):
            name = graph.label(producer.calls[0])
            found[name] = np.asarray(values)[space.index_of(producer.channels)]
    return found
