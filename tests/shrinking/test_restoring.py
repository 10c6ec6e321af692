"""Restored BatchNorms: their statistics, and the filters in front of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from resrep_tf.shrinking.restoring import rescale
from resrep_tf.shrinking.shrinking import shrink
from resrep_tf.surgery.verify import compare
from support.checks import example, precision
from support.models.graphs import (
    GRAPHS,
    chain,
    forgetful,
    shared,
    two_inputs,
    without_batchnorms,
)


def test_filters_have_the_norms_of_the_model():
    pruner = forgetful(chain())
    slim = shrink(pruner, example(pruner))
    kept = [np.asarray(c.row_norms()) > 0 for c in pruner.compactors]
    for name, ins, outs in [
        ("conv1", np.ones(3, bool), kept[0]),
        ("conv2", kept[0], kept[1]),
    ]:
        old = np.asarray(pruner.get_layer(name).kernel)[:, :, ins][..., outs]
        new = np.asarray(slim.get_layer(name).kernel)
        assert old.shape == new.shape
        np.testing.assert_allclose(
            np.sqrt((new**2).sum((0, 1, 2))),
            np.sqrt((old**2).sum((0, 1, 2))),
            rtol=1e-5,
        )


def test_rescaling():
    own = np.array([[3.0, 0.0, 1.0, 0.0], [4.0, 0.0, 0.0, 0.0]])
    merged = np.array([[0.0, 5.0, 0.0, 0.0], [10.0, 0.0, 0.0, 0.0]])
    filters, scale = rescale(merged, own)
    floor = 0.01 * (5 + 1) / 4
    np.testing.assert_allclose(scale, [2, 5 / floor, 0, 0])
    np.testing.assert_allclose(filters, [[0, floor, 1, 0], [5, 0, 0, 0]])
    _, scale = rescale(merged, np.zeros((2, 4)))
    np.testing.assert_allclose(scale, [10, 5, 0, 0])


@pytest.mark.parametrize("name", ["chain", "residual", "dense", "two_inputs"])
def test_training_and_inference_agree_on_the_measured_batch(name):
    with precision("float64"):
        pruner = forgetful(GRAPHS[name]())
        x = example(pruner, 5)
        slim = shrink(pruner, keras.tree.map_structure(np.array, x))
        before = slim.get_weights()
        assert compare(slim(x, training=False), slim(x, training=True)) < 1e-9
    # Moving averages stand where the batch's own statistics are.
    for old, new in zip(before, slim.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-9, atol=1e-12)


def test_statistics_are_pooled_over_batches_and_calls():
    with precision("float64"):
        pruner = forgetful(shared())
        x = example(pruner, 5)
        whole = shrink(pruner, x, verify=False)
        parts = shrink(pruner, [x[:3], x[3:4], x[4:]], verify=False)
    for a, b in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_data_of_many_kinds():
    pruner = forgetful(two_inputs())
    a, b = example(pruner, 5)
    y = np.zeros(8)
    expected = shrink(pruner, [a, b], batch_size=8, verify=False).get_weights()
    for data in (
        ([a, b], y),
        [([a, b], y)],
        iter([([a, b], y)]),
        {"a": a, "b": b},
        [{"a": a, "b": b}],
        tf.data.Dataset.from_tensors(({"a": a, "b": b}, y)),
        tf.data.Dataset.from_tensors(({"a": a, "b": b}, y)).repeat(),
        [tf.constant(a), tf.constant(b)],
    ):
        for old, new in zip(
            expected,
            shrink(pruner, data, 1, 8, verify=False).get_weights(),
            strict=True,
        ):
            np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)


def test_only_so_many_batches_are_read():
    pruner, read = forgetful(chain()), []

    def batches():
        while True:
            read.append(None)
            yield example(pruner, len(read))

    _, report = shrink(pruner, batches(), batches=3, return_report=True)
    assert len(read) == report.batches == 3
    _, report = shrink(pruner, example(pruner), batch_size=3, return_report=True)
    assert report.batches == 3  # Of 3, 3 and 2 examples.


def test_no_data_where_there_is_nothing_to_measure():
    pruner = forgetful(without_batchnorms())
    assert shrink(pruner, None).count_params() < pruner.count_params()
