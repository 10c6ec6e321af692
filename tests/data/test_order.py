"""The order of examples."""

import numpy as np
import tensorflow as tf

from resrep_tf.data.order import Order


def test_every_example_comes_first_in_some_epoch():
    order = Order(examples=8, batch_size=4, seed=0)
    epochs = tf.data.Dataset.range(200).map(
        lambda epoch: order.batches(order.words(epoch)[0])
    )
    batches = np.stack(list(epochs.as_numpy_iterator()))
    assert (np.sort(batches.reshape(200, 8)) == np.arange(8)).all()
    assert np.bincount(batches[:, 0, 0]).min() > 10
