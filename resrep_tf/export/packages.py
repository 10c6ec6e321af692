"""The packages that ONNX files need, which a plain installation does not bring."""

import importlib.util


def check_onnx(subject: str, *packages: str, received: str) -> None:
    """Raises if packages are not installed; imports none.

    Args:
        subject: What needs them.
        packages: Their names.
        received: What the user gave.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{subject} needs {' and '.join(missing)}: "
            f'pip install "resrep_tf[onnx]". Received: {received}'
        )
