"""Silence around TensorFlow's converters, which write to the process's own streams."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

# Warnings of third parties among themselves, by the beginning of their text.
_NOISE = (
    r"\s*Warning: tf.lite.Interpreter is deprecated",
    # Of TensorFlow's converter: there is no other order of inputs here.
    r"Statistics for quantized inputs were expected",
    # Of tf2onnx's patches for NumPy 2.
    r"In the future `np\.object` will be defined",
    r"__array__ implementation doesn't accept a copy",
)
_LOGGERS = ("absl", "tensorflow", "tf2onnx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discards what is written to stdout and stderr, by this process's C++ code too.

    The converters log from C++, which only a redirection of the file descriptors 1
    and 2 holds back. It holds for the whole process: what other threads print
    meanwhile is lost as well. Python's own warnings pass, but for the few that are
    about TensorFlow's parts among themselves; they are printed afterwards.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with _descriptors_silenced(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
    for warning in caught:
        # By the filters of whoever called, as if it had not been held back.
        warnings.warn_explicit(
            warning.message, warning.category, warning.filename, warning.lineno
        )


@contextlib.contextmanager
def _descriptors_silenced() -> Iterator[None]:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # None, or closed.
            stream.flush()
    with contextlib.ExitStack() as undo:
        with open(os.devnull, "w") as nowhere:
            for descriptor in (1, 2):
                try:
                    copy = os.dup(descriptor)
                except OSError:  # Closed, as in a program without a console.
                    continue
                undo.callback(os.close, copy)
                undo.callback(os.dup2, copy, descriptor)
                os.dup2(nowhere.fileno(), descriptor)
        yield
