"""A classification set, ready for training and evaluation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

from resrep_tf.lazy import tf

from .order import Order
from .pixels import Scale, scale


class Source(Protocol):
    """The images of a data set; `Dataset` counts epochs and steps."""

    input_shape: tuple[int, int, int]
    classes: int
    class_names: tuple[str, ...] | None
    train_examples: int
    eval_examples: int
    pixels: Scale

    def training(
        self, order: Order, step: int, epochs: int | None
    ) -> tf.data.Dataset: ...

    def evaluation(self, batch_size: int) -> tf.data.Dataset: ...

    def find_unreadable(self, after_image: Callable[[], None]) -> str | None: ...


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A classification data set, as `load` makes it.

    Batches are pairs of normalised float32 images (channels last) and int32 labels.

    Attributes:
        name: The name of the set.
        input_shape: Height, width and channels of one image.
        classes: Number of classes.
        class_names: Their names in the order of the labels, if known.
        train_examples: Number of training images.
        eval_examples: Number of images held out for evaluation.
        batch_size: Images in one training batch over all shards.
        seed: Decides, with the epoch, the order and the augmentation.
        num_shards: Number of workers that share every batch.
        shard_index: The number of this worker's part of every batch.

    Example:

    ```python
    digits = resrep_tf.data.load("digits", batch_size=64)
    model.fit(
        digits.train_from(0),
        steps_per_epoch=digits.steps_per_epoch,
        validation_data=digits.evaluation(),
        epochs=10,
    )
    ```
    """

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    class_names: tuple[str, ...] | None = dataclasses.field(repr=False)
    train_examples: int
    eval_examples: int
    batch_size: int
    seed: int
    num_shards: int
    shard_index: int
    _source: Source = dataclasses.field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        source: Source,
        name: str,
        batch_size: int,
        seed: int,
        num_shards: int,
        shard_index: int,
    ) -> Dataset:
        """Returns a set of the images of a source."""
        return cls(
            name=name,
            input_shape=source.input_shape,
            classes=source.classes,
            class_names=source.class_names,
            train_examples=source.train_examples,
            eval_examples=source.eval_examples,
            batch_size=batch_size,
            seed=seed,
            num_shards=num_shards,
            shard_index=shard_index,
            _source=source,
        )

    @property
    def steps_per_epoch(self) -> int:
        """The number of training batches in an epoch; all are full.

        The examples that do not fill a batch are left out, other ones in each epoch.
        """
        return self._order.steps_per_epoch

    def train(self, epoch: int = 0, start_step: int = 0) -> tf.data.Dataset:
        """Returns the training batches of one epoch.

        Args:
            epoch: Its number, from 0. Each has its own order and augmentation.
            start_step: The first batch of that epoch to yield. The batches before it
                are not decoded, nor read where examples can be accessed by number.
        """
        _check_count("epoch", epoch)
        _check_count("start_step", start_step)
        if start_step >= self.steps_per_epoch:
            raise ValueError(
                f"`start_step` must be less than the {self.steps_per_epoch} steps of "
                f"an epoch. Received: start_step={start_step}"
            )
        step = epoch * self.steps_per_epoch + start_step
        batches = self._source.training(self._order, step, epochs=1)
        return self._finish(batches, self.steps_per_epoch - start_step)

    def train_from(self, step: int = 0) -> tf.data.Dataset:
        """Returns an endless stream of training batches: epoch after epoch of `train`.

        Use it for `fit` with `steps_per_epoch`: each epoch then starts where the last
        one ended.

        Args:
            step: The first batch to yield, counted from the start of training, such
                as the optimizer's iterations when a run is resumed.
        """
        _check_count("step", step)
        batches = self._source.training(self._order, step, epochs=None)
        return self._finish(batches, tf.data.INFINITE_CARDINALITY)

    def unvaried(self) -> Dataset:
        """Returns the same set without augmentation of its training images."""
        source = dataclasses.replace(self._source, augment=False)
        return dataclasses.replace(self, _source=source)

    @property
    def pixels(self) -> str:
        """The name of the scale of the pixels."""
        return self._source.pixels.name

    def with_pixels(self, name: str) -> Dataset:
        """Returns the same data set with pixels in another scale, given its name.

        For data sets in memory, the numbers in the arrays count as raw pixels.
        """
        source = dataclasses.replace(self._source, pixels=scale(name))
        return dataclasses.replace(self, _source=source)

    def whole(self) -> Dataset:
        """Returns the same data set with held-out images resized whole, not cropped.

        `keras.utils.image_dataset_from_directory` does the same. Data sets in memory
        are never cropped.
        """
        if not hasattr(self._source, "whole"):
            return self
        source = dataclasses.replace(self._source, whole=True)
        return dataclasses.replace(self, _source=source)

    def grey(self) -> Dataset:
        """Returns the same data set with images of one channel, scaled to 0..1.

        Data sets in memory stay as they are.
        """
        if not hasattr(self._source, "channels"):
            return self
        source = dataclasses.replace(self._source, channels=1, pixels=scale("0..1"))
        return dataclasses.replace(self, _source=source, input_shape=source.input_shape)

    def evaluation(self) -> tf.data.Dataset:
        """Returns all held-out images once, in a fixed order, without augmentation.

        They are not divided among shards: each worker evaluates all of them, since with
        unequal parts one worker would wait for another. The last batch may be smaller.
        """
        return self._evaluation

    @functools.cached_property
    def _evaluation(self) -> tf.data.Dataset:
        # Cached: making it takes longer than evaluating a small data set.
        batches = self._source.evaluation(self.batch_size)
        return self._finish(batches, -(-self.eval_examples // self.batch_size))

    def find_unreadable(
        self, after_image: Callable[[], None] = lambda: None
    ) -> str | None:
        """Returns an error about the image that made a batch fail, or None if unknown.

        Errors about TFRecord files do not name the image. So all images are decoded,
        up to the first that fails.

        Args:
            after_image: Called after each image that can be read, to show progress.
        """
        return self._source.find_unreadable(after_image)

    @property
    def _order(self) -> Order:
        return Order(
            self.train_examples,
            self.batch_size,
            self.seed,
            self.num_shards,
            self.shard_index,
        )

    def _finish(self, batches: tf.data.Dataset, cardinality: int) -> tf.data.Dataset:
        options = tf.data.Options()
        options.deterministic = True
        policy = tf.data.experimental.AutoShardPolicy
        # Sharding by file would change which images a global batch has, and sharding
        # what is already a shard would lose images.
        options.experimental_distribute.auto_shard_policy = (
            policy.OFF if self.num_shards > 1 else policy.DATA
        )
        batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
        return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def _check_count(argument: str, value: int) -> None:
    if value < 0:
        raise ValueError(
            f"`{argument}` must not be negative. Received: {argument}={value!r}"
        )
