"""Random graphs, every weight randomised: conversion is exact, and never crashes."""

import pytest

from support.checks import alive, outputs
from support.models.random_graphs import prune
from support.models.random_models import BATCH, check_batch


def check(seed):
    """Whether there was something to prune, and the outputs depend on the inputs."""
    models = prune(seed)
    return models is not None and alive(outputs(models[1]))


@pytest.mark.parametrize("first", range(0, 20, BATCH))
def test_random_graphs(first):
    check_batch(check, first)


# `benchmarks/random_graphs.py` does the same with any others.
@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, 640, BATCH))
def test_many_random_graphs(first):
    check_batch(check, first)
