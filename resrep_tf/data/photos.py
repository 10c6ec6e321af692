"""Encoded images of any size, which are decoded, cropped and resized one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from resrep_tf.lazy import tf

from .images import (
    WINDOW_DRAWS,
    central_crop,
    grey,
    random_resized_crop,
    resized,
)
from .order import Order, uniform
from .pixels import SCALES, Scale
from .splits import Split

IMAGE_SIZE = 224


@dataclasses.dataclass(frozen=True, eq=False)
class PhotoSource:
    """Encoded images: cropped at random for training, in the middle for evaluation.

    Attributes:
        train: The training images.
        held_out: The held-out images.
        image_size: Height and width to which images are resized.
        classes: Number of classes.
        class_names: Their names, if known.
        augment: Whether training images are cropped at random.
        flip: Whether mirror images are of the same class.
        pixels: The scale of the pixels.
        whole: Whether held-out images are resized whole, instead of cropped in the
            middle.
        channels: 3, or 1 for shades of grey.
    """

    train: Split
    held_out: Split
    image_size: int
    classes: int
    class_names: tuple[str, ...] | None
    augment: bool
    flip: bool
    pixels: Scale = SCALES["imagenet"]
    whole: bool = False
    channels: int = 3

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.image_size, self.image_size, self.channels

    @property
    def train_examples(self) -> int:
        return self.train.examples

    @property
    def eval_examples(self) -> int:
        return self.held_out.examples

    def training(self, order: Order, step: int, epochs: int | None) -> tf.data.Dataset:
        """Returns batches from a global step on; see `Order.chain`."""

        def epoch_from(epoch: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
            order_word, augmentation_word = order.words(epoch)
            elements = self.train.shuffled(order, order_word, start)
            return elements.map(
                lambda index, payload: (index, payload, augmentation_word)
            )

        def example(
            index: tf.Tensor, payload: Any, word: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            contents, label = self.train.open(index, payload)
            if self.augment:
                return self._varied(contents, word, index), label
            return self._plain(contents), label

        elements = order.chain(epoch_from, step, epochs)
        return self.train.batches(
            elements, example, order.shard_batch_size, drop_remainder=True
        )

    def evaluation(self, batch_size: int) -> tf.data.Dataset:
        """Returns batches of the held-out images, in the order on disk."""

        def example(index: tf.Tensor, payload: Any) -> tuple[tf.Tensor, tf.Tensor]:
            contents, label = self.held_out.open(index, payload)
            return self._plain(contents), label

        elements = self.held_out.ordered()
        return self.held_out.batches(
            elements, example, batch_size, drop_remainder=False
        )

    def find_unreadable(self, after_image: Callable[[], None]) -> str | None:
        """Returns an error about an unreadable image, or None; may decode all."""
        found = self.train.find_unreadable(after_image)
        return found or self.held_out.find_unreadable(after_image)

    def _varied(
        self, contents: tf.Tensor, word: tf.Tensor, index: tf.Tensor
    ) -> tf.Tensor:
        draws = uniform([WINDOW_DRAWS + 1], word, index)
        image = random_resized_crop(contents, draws[:-1], self.image_size)
        if self.flip:
            mirror = draws[-1] < 0.5
            # A slice with a step of -1 would take as long as decoding the image.
            image = tf.cond(mirror, lambda: tf.reverse(image, [1]), lambda: image)
        return self._scaled(image)

    def _plain(self, contents: tf.Tensor) -> tf.Tensor:
        shape = resized if self.whole else central_crop
        return self._scaled(shape(contents, self.image_size))

    def _scaled(self, image: tf.Tensor) -> tf.Tensor:
        if self.channels == 1:
            image = grey(image)
        return self.pixels(image)
