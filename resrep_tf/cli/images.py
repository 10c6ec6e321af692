"""Errors about images of `--dataset` that cannot be read."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from resrep_tf.cli.errors import CommandError, brief
from resrep_tf.lazy import keras, tf

if TYPE_CHECKING:
    from resrep_tf.data import Dataset

# The data pipeline's error about a file that it cannot read.
_UNREADABLE = re.compile(r"Cannot read an image.*?Received: path=[^\n\]]+")


@contextlib.contextmanager
def blame_images(data: Dataset | None = None) -> Iterator[None]:
    """Turns an error about data that cannot be read into one of `--dataset`.

    Args:
        data: The data, where nothing but reading them can raise errors of TensorFlow.
            Without them, only errors that name an image are taken for such.
    """
    try:
        yield
    except tf.errors.OpError as error:
        named = _UNREADABLE.search(str(error))
        message = named and named.group()
        if data is None:
            pass
        elif isinstance(error, (tf.errors.NotFoundError, tf.errors.DataLossError)):
            message = message or (
                "a TFRecord file is missing or damaged. Put it back; the same "
                f"command then continues. Received: {brief(error)}"
            )
        elif message is None and "IteratorGetNext" in str(error):
            print("\nLooking for an image that cannot be read")
            images = data.train_examples + data.eval_examples
            progress = keras.utils.Progbar(
                images, verbose=verbosity(), unit_name="image"
            )
            message = data.find_unreadable(lambda: progress.add(1))
            print()
        if message is None:
            raise
        raise CommandError(f"`--dataset`: {message}") from error


def verbosity() -> int:
    """Returns Keras's `verbose`: bars on a terminal, lines in a file."""
    return 1 if sys.stdout.isatty() else 2
