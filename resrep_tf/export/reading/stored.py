"""Checks of a stored model that need neither Keras nor TensorFlow."""

from pathlib import Path

from resrep_tf.export.reading import tflite_file

KNOWN = (
    "a .keras, .tflite or .onnx file or the folder of a SavedModel, as "
    "`resrep_tf.export` writes them"
)
_SUFFIXES = (".keras", ".tflite", ".onnx")


def is_saved_model(path: Path) -> bool:
    """Returns whether a path is the folder of a SavedModel."""
    return path.is_dir() and (path / "saved_model.pb").is_file()


def check_stored(path: str | Path) -> None:
    """Raises if there is no file or folder that can be a model, or it is cut short.

    Raises:
        ValueError: In one line that names it.
    """
    where = Path(path).expanduser()
    received = f"Received: path={str(path)!r}"
    if not where.exists():
        raise ValueError(f"`path` must be {KNOWN}, and must exist. {received}")
    if is_saved_model(where):
        return
    if where.is_dir() or where.suffix not in _SUFFIXES:
        raise ValueError(f"`path` must be {KNOWN}. {received}")
    if not where.stat().st_size:
        raise ValueError(f"`path` is an empty file. {received}")
    if where.suffix == ".tflite":
        tflite_file.check(where.read_bytes(), where)
