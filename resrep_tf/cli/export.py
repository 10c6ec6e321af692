"""Writing a converted model in all formats."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import keras

from resrep_tf.cli import output
from resrep_tf.cli.errors import CommandError


def write(model: keras.Model, folder: Path, everything: bool = True) -> None:
    """Writes pruned.keras and, if everything is wanted, saved_model/ and pruned.tflite.

    The SavedModel's signature `serving_default` takes a batch of any size and
    returns what the model does: logits, for the networks of this package.
    """
    with _exported(folder / output.PRUNED) as path:
        model.save(path)
    if not everything:
        return
    with _exported(folder / output.SAVED_MODEL) as path:
        model.export(str(path), verbose=False)
    try:
        with _exported(folder / output.TFLITE) as path:
            model.export(str(path), format="litert", verbose=False)
    except CommandError:
        raise
    except Exception as error:
        # TensorFlow Lite lacks some operations, its converter raises all kinds of
        # exceptions, and the rest of the run is worth keeping.
        print(f"NOTE: no {output.TFLITE}, TensorFlow Lite cannot express it: {error}")


@contextlib.contextmanager
def _exported(path: Path) -> Iterator[Path]:
    """Prints the name of the file, since exporting may take minutes."""
    print(f"Exporting {path.name}", flush=True)
    with quiet(), output.atomic(path) as temporary:
        yield temporary


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the log messages of exporters within the block."""
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
