"""Prunes random graphs: for the tests, and for `benchmarks/random_graphs.py`."""

import keras

from resrep_tf.graph.channel_graph import ChannelGraph
from support.checks import assert_prunes_exactly, precision
from support.models.random_models import random_model


def dtype_of(seed: int) -> str:
    """Returns float64 for every fourth graph, since rounding hides little there."""
    return "float64" if seed % 4 == 0 else "float32"


def prune(seed: int) -> tuple[keras.Model, keras.Model] | None:
    """Prunes the random graph of a seed, and runs all checks.

    Returns:
        The wrapped and the converted model, or None if nothing can be pruned.
    """
    dtype = dtype_of(seed)
    with precision(dtype):
        model = random_model(seed)
        if not any(space.prunable for space in ChannelGraph(model).spaces):
            return None
        pruner, slim, _ = assert_prunes_exactly(
            model,
            kind="vector" if seed % 5 == 0 else "matrix",
            seed=seed,
            fuse_bn=seed % 3 > 0,
            dtype=dtype,
            must_live=False,
        )
    return pruner, slim
