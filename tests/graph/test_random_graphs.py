"""Random graphs, every weight randomised: conversion is exact, and never crashes."""

import pytest

from resrep_tf.graph.channel_graph import ChannelGraph
from support.checks import alive, assert_prunes_exactly, outputs, precision
from support.models.random_models import BATCH, check_batch, random_model


def check(seed):
    """Whether there was something to prune, and the outputs depend on the inputs."""
    dtype = "float64" if seed % 4 == 0 else "float32"
    with precision(dtype):
        model = random_model(seed)
        if not any(space.prunable for space in ChannelGraph(model).spaces):
            return False
        _, slim, _ = assert_prunes_exactly(
            model,
            kind="vector" if seed % 5 == 0 else "matrix",
            seed=seed,
            fuse_bn=seed % 3 > 0,
            dtype=dtype,
            must_live=False,
        )
        return alive(outputs(slim))


@pytest.mark.parametrize("first", range(0, 40, BATCH))
def test_random_graphs(first):
    check_batch(check, first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 640, BATCH))
def test_many_random_graphs(first):
    check_batch(check, first)
