"""The order of training examples, as a function of seed and epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from resrep_tf.lazy import tf


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of the training examples, and one shard's part in it.

    Every random decision of an epoch derives from two random words: one for the order
    and one for the augmentation. So the two are independent, and neither depends on
    what was drawn before.

    Attributes:
        examples: Number of training examples.
        batch_size: Examples in a batch over all shards.
        seed: Decides, with the epoch, the order and the augmentation.
        num_shards: Number of workers that share every batch.
        shard_index: Which part of every batch is this worker's.
    """

    examples: int
    batch_size: int
    seed: int
    num_shards: int = 1
    shard_index: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """The number of whole batches in an epoch; each leaves out other examples."""
        return self.examples // self.batch_size

    @property
    def shard_batch_size(self) -> int:
        """The number of examples of every batch that this shard gets."""
        return self.batch_size // self.num_shards

    def words(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws the random words of an epoch's order and its augmentation."""
        seed = tf.stack([tf.constant(self.seed, tf.int64), epoch])
        order, augmentation = tf.unstack(_integers(2, seed))
        return order, augmentation

    def batches(self, word: tf.Tensor) -> tf.Tensor:
        """Permutes the examples: row `i` is this shard's part of the `i`-th batch."""
        used = self.steps_per_epoch * self.batch_size
        order = permutation(self.examples, word)[:used]
        shape = [self.steps_per_epoch, self.num_shards, self.shard_batch_size]
        return tf.reshape(order, shape)[:, self.shard_index]

    def own(self, records: tf.data.Dataset, start: tf.Tensor) -> tf.data.Dataset:
        """Returns this shard's records of an epoch's stream, from batch `start` on."""
        records = records.take(self.steps_per_epoch * self.batch_size)
        records = records.skip(start * self.batch_size)
        if self.num_shards == 1:
            return records

        def mine(position: tf.Tensor, _) -> tf.Tensor:
            shard = position % self.batch_size // self.shard_batch_size
            return tf.equal(shard, self.shard_index)

        return records.enumerate().filter(mine).map(lambda _, record: record)

    def chain(
        self,
        epoch_from: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset],
        step: int,
        epochs: int | None,
    ) -> tf.data.Dataset:
        """Joins the epochs' streams, from a global step on.

        Args:
            epoch_from: Makes the stream of an epoch from its number and the number
                of batches to leave out at its start.
            step: The first batch, counted from the start of training.
            epochs: The number of epochs, including the one that `step` is in. `None`
                for an endless stream.
        """
        first, skipped = divmod(step, self.steps_per_epoch)
        numbers = tf.data.Dataset.counter(first)
        if epochs is not None:
            numbers = numbers.take(epochs)

        @tf.autograph.experimental.do_not_convert
        def stream(epoch: tf.Tensor) -> tf.data.Dataset:
            start = tf.where(epoch == first, tf.constant(skipped, tf.int64), 0)
            return epoch_from(epoch, start)

        return numbers.flat_map(stream)


def permutation(count: int, word: tf.Tensor) -> tf.Tensor:
    """Returns the integers below `count` in a random order."""
    # `tf.random.experimental.index_shuffle` would compute one position without the
    # others, but is far from uniform: it puts some examples first ten times as often.
    keys = _integers(count, tf.stack([word, tf.zeros_like(word)]))
    return tf.argsort(keys, stable=True)


def uniform(shape: list[int], word: tf.Tensor, index: tf.Tensor | int = 0) -> tf.Tensor:
    """Draws numbers in [0, 1) for an epoch's word and an example's index."""
    seed = tf.stack([word, tf.cast(index, tf.int64)])
    # The algorithm is named, because the default depends on the device.
    return tf.random.stateless_uniform(shape, seed, alg="philox")


def _integers(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws 64-bit integers: so many are possible that no two will be equal."""
    return tf.random.stateless_uniform(
        [count], seed, minval=None, maxval=None, dtype=tf.int64, alg="philox"
    )
