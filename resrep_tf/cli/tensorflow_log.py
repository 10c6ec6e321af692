"""Hides TensorFlow's own log, which is for its developers."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def start_tensorflow() -> None:
    """Imports TensorFlow and looks for devices, without the log of doing so.

    That log, on stderr, says that there is no GPU and which instructions are used.
    Nothing is hidden if the user has set the log's level, or if TensorFlow fails.
    """
    if _LEVEL in os.environ:
        return
    os.environ[_LEVEL] = "2"  # For all that comes after the start.
    with _held_back():
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Holds back stderr, of C++ code too; shows it only after an error."""
    try:
        stderr = os.dup(2)
    except OSError:  # Closed, as in a program without a console.
        yield
        return
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except Exception:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            with contextlib.suppress(AttributeError, ValueError):  # None, or closed.
                sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
