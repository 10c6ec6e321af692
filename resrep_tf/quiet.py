"""Hides the output of TensorFlow's converters."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

# Warnings of other packages about each other, by the beginning of their text.
_NOISE = (
    r"\s*Warning: tf.lite.Interpreter is deprecated",
    # From TensorFlow's converter; a model with one input has only one order of inputs.
    r"Statistics for quantized inputs were expected",
    # From tf2onnx's patches for NumPy 2.
    r"In the future `np\.object` will be defined",
    r"__array__ implementation doesn't accept a copy",
)
_LOGGERS = ("absl", "tensorflow", "tf2onnx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discards what is written to stdout and stderr, by this process's C++ code too.

    The converters log from C++, which only a redirection of the file descriptors 1
    and 2 holds back. It applies to the whole process: what other threads print
    meanwhile is lost as well. Python's warnings are shown afterwards, except for the
    few in `_NOISE`.
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
        # The caller's filters apply, as if the warning had not been held back.
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
                except (
                    OSError
                ):  # The stream is closed, as in a program without a console.
                    continue
                undo.callback(os.close, copy)
                undo.callback(os.dup2, copy, descriptor)
                os.dup2(nowhere.fileno(), descriptor)
        yield
