"""Compares a model that was made from a pruner with the pruner itself."""

from collections.abc import Mapping

import keras

from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.rows import Rows, zeroed
from resrep_tf.surgery.rebuild import Rebuilder
from resrep_tf.surgery.verify import compare, random_inputs


def verified(
    pruner: ResRepModel,
    slim: keras.Model,
    rows: Rows,
    limit: float,
    what: str,
    measure_damage: bool,
) -> tuple[float, float | None]:
    """Compares a model with the pruner, its dropped rows set to zero.

    Args:
        pruner: The wrapped model.
        slim: The model that was made from it.
        rows: For each compactor, the rows that stay.
        limit: The largest difference to accept, relative to the outputs' scale.
        what: The kind of model that `slim` is, for the message.
        measure_damage: True to measure what dropping these rows changes, too.

    Returns:
        The largest difference, on random inputs; and the same between the pruner as
        it is and with its dropped rows set to zero, or None.
    """
    model, rows = _readable(pruner, rows)
    inputs = random_inputs(pruner, pruner.graph.input_shapes)
    with zeroed(rows):
        expected = model(inputs, training=False)
    difference = compare(expected, slim(inputs, training=False))
    damage = None
    if measure_damage:
        damage = compare(model(inputs, training=False), expected)
    if not difference <= limit:
        raise ValueError(
            f"The {what} model does not compute what the wrapped one does: outputs "
            f"differ by {difference:.3g} of their scale, more than {limit:.3g}. If the "
            "model computes in low precision, `verify` can be a larger number. "
            f"Received: verify={limit}"
        )
    return difference, damage


def _readable(pruner: ResRepModel, rows: Rows) -> tuple[keras.Model, Rows]:
    """Returns a model to compare with: the given one, or a copy if it has replicas.

    Called as it is, such a model would take the moving statistics of one replica.
    """
    if pruner.distribute_strategy.num_replicas_in_sync == 1:
        return pruner, rows
    rebuilder = Rebuilder(pruner.graph)
    model = rebuilder.build()
    return model, {rebuilder.made(c): kept for c, kept in rows.items()}


def verdict(
    kept: Mapping[str, int], difference: float | None, damage: float | None
) -> list[str]:
    """Returns the last lines of a report: what had to stay, and how exact it is."""
    lines = [
        f"{channels} channels had to stay: {reason}"
        for reason, channels in kept.items()
    ]
    if difference is not None:
        lines.append(f"verified: outputs differ by {difference:.3g} at most")
    if damage is not None:
        lines.append(f"dropping these rows changed the outputs by {damage:.3g}")
    return lines
