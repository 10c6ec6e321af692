"""Encoded images on disk, and the order in which they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from resrep_tf.lazy import tf

from .images import decode
from .order import Order, permutation

UNREADABLE = (
    "Cannot read an image: its file is missing, corrupt, or neither JPEG nor PNG. "
    "Replace or remove it."
)

# A function from the parts of a stream's element to an image and its label.
Example = Callable[..., tuple[Any, Any]]


class Split(Protocol):
    """The training images or the held-out images of a data set.

    The elements of its streams are (index, payload), and possibly more. `open` turns
    these two into an encoded image and its label. `batches` applies a function that
    calls `open`, in parallel.
    """

    examples: int

    def shuffled(
        self, order: Order, word: tf.Tensor, start: tf.Tensor
    ) -> tf.data.Dataset: ...

    def ordered(self) -> tf.data.Dataset: ...

    def open(self, index: tf.Tensor, payload: Any) -> tuple[tf.Tensor, tf.Tensor]: ...

    def batches(
        self,
        elements: tf.data.Dataset,
        example: Example,
        batch_size: int,
        drop_remainder: bool,
    ) -> tf.data.Dataset: ...

    def find_unreadable(
        self, after_image: Callable[[], None] = lambda: None
    ) -> str | None:
        """Returns an error about the first image that cannot be read, or None."""


@dataclasses.dataclass(frozen=True, eq=False)
class FileSplit:
    """Images in files of their own, read in any order.

    Attributes:
        paths: The files.
        labels: Their labels.
    """

    paths: tf.Tensor
    labels: tf.Tensor

    @property
    def examples(self) -> int:
        return self.paths.shape[0]

    def shuffled(
        self, order: Order, word: tf.Tensor, start: tf.Tensor
    ) -> tf.data.Dataset:
        """Returns an epoch's elements, from a given batch on."""
        rows = tf.reshape(order.batches(word)[start:], [-1])
        return tf.data.Dataset.from_tensor_slices((rows, ()))

    def ordered(self) -> tf.data.Dataset:
        """Returns all elements, sorted by path."""
        return tf.data.Dataset.from_tensor_slices((tf.range(self.examples), ()))

    def open(self, index: tf.Tensor, payload: tuple) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns an encoded image and its label."""
        return tf.io.read_file(self.paths[index]), self.labels[index]

    def batches(
        self,
        elements: tf.data.Dataset,
        example: Example,
        batch_size: int,
        drop_remainder: bool,
    ) -> tf.data.Dataset:
        """Returns batches of images and labels; an error names the corrupt file.

        TensorFlow's own error does not name the image, and catching it around every
        image takes a fifth of the time of decoding. So images that fail are left out of
        the stream, which is then compared with the stream of their numbers: the first
        difference shows the image that is missing.
        """
        indices = elements.map(lambda index, *_: index)
        images = elements.map(
            lambda index, *rest: (index, *example(index, *rest)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        _, *empty = (tf.zeros(spec.shape, spec.dtype) for spec in images.element_spec)
        # Without this, a failure at the end would only make the stream shorter.
        ended = tf.data.Dataset.from_tensors((tf.constant(-1), *empty)).repeat()
        images = images.ignore_errors(log_warning=True).concatenate(ended)

        def check(expected: tf.Tensor, batch: tuple) -> tuple[tf.Tensor, tf.Tensor]:
            found, image, label = batch
            same = tf.equal(expected, found)
            path = self.paths[expected[tf.argmin(tf.cast(same, tf.int32))]]
            message = tf.strings.join([UNREADABLE, " Received: path=", path])
            complete = tf.debugging.Assert(tf.reduce_all(same), [message])
            with tf.control_dependencies([complete]):
                return tf.identity(image), tf.identity(label)

        pairs = tf.data.Dataset.zip(indices, images)
        return pairs.batch(batch_size, drop_remainder=drop_remainder).map(check)

    def find_unreadable(self, after_image: Callable[[], None] = lambda: None) -> None:
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSplit:
    """Images in TFRecord files of tensorflow-datasets, which can only be read in order.

    In each epoch the files are shuffled, several are read in turns, and their records
    pass through a shuffle buffer. The order depends on the seed and the epoch alone.
    To start within an epoch, the records before are read, but not decoded. Each shard
    reads the records of all shards.

    Attributes:
        files: The files' paths.
        lengths: The number of records in each.
        shuffle_buffer: The number of records among which the next one is chosen.
    """

    files: list[str]
    lengths: list[int]
    shuffle_buffer: int

    # Files read in turns, records read from one at a time, bytes read ahead in each.
    INTERLEAVED = 16
    BLOCK = 16
    READ_AHEAD = 2**20

    @property
    def examples(self) -> int:
        return sum(self.lengths)

    def shuffled(
        self, order: Order, word: tf.Tensor, start: tf.Tensor
    ) -> tf.data.Dataset:
        """Returns an epoch's elements, from a batch on; called in a traced graph."""
        files = tf.data.Dataset.from_tensor_slices(permutation(len(self.files), word))
        records = files.interleave(
            self._file,
            cycle_length=self.INTERLEAVED,
            block_length=self.BLOCK,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        # This seed holds for the graph of the calling function alone. Without it, the
        # order would also depend on the seed that the user sets for all of TensorFlow.
        # With 0, TensorFlow would compare `word` in Python, which a graph cannot.
        tf.random.set_seed(1)
        records = records.shuffle(
            self.shuffle_buffer, seed=word, reshuffle_each_iteration=False
        )
        return order.own(records, start)

    def ordered(self) -> tf.data.Dataset:
        """Returns all elements in the order in which they are stored."""
        return tf.data.Dataset.range(len(self.files)).flat_map(self._file)

    def open(self, index: tf.Tensor, payload: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns an encoded image and its label."""
        # tensorflow-datasets stores an image and its class in this form.
        form = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_single_example(payload, form)
        return example["image"], tf.cast(example["label"], tf.int32)

    def batches(
        self,
        elements: tf.data.Dataset,
        example: Example,
        batch_size: int,
        drop_remainder: bool,
    ) -> tf.data.Dataset:
        """Returns batches of images and labels; an error does not name the record."""
        images = elements.map(example, num_parallel_calls=tf.data.AUTOTUNE)
        return images.batch(batch_size, drop_remainder=drop_remainder)

    def find_unreadable(
        self, after_image: Callable[[], None] = lambda: None
    ) -> str | None:
        """Decodes all images; returns an error about the first that fails, or None."""

        def decoded(index: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
            contents, _ = self.open(index, record)
            return tf.shape(decode(contents))

        parts = zip(self.files, self.lengths, strict=True)
        for number, (path, length) in enumerate(parts):
            images = self._file(number).map(
                decoded, num_parallel_calls=tf.data.AUTOTUNE
            )
            record = 0
            try:
                for _ in images.as_numpy_iterator():
                    record += 1
                    after_image()
            except tf.errors.OpError:
                pass  # The error below names the record.
            if record < length:
                return f"{UNREADABLE} Received: path={path}, record {record}"
        return None

    def _file(self, number: tf.Tensor) -> tf.data.Dataset:
        """Returns the elements of one file; their index counts through all files."""
        file = tf.gather(self.files, number)
        records = tf.data.TFRecordDataset(file, buffer_size=self.READ_AHEAD)
        starts = np.cumsum([0, *self.lengths[:-1]])
        return records.enumerate(tf.gather(tf.constant(starts, tf.int64), number))
