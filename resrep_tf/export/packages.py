"""Checks for the packages of ONNX files, which only the extra `onnx` installs."""

import importlib.util


def check_onnx(subject: str, *packages: str, received: str) -> None:
    """Raises if packages are not installed; does not import them.

    Args:
        subject: The action that needs them.
        packages: Their names.
        received: What the user gave.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{subject} needs {' and '.join(missing)}: "
            f'pip install "resrep_tf[onnx]". Received: {received}'
        )
