"""Runs a TensorFlow Lite file once, in a process that may crash.

This is a script for `tflite_file.try_out`. It reads the file from standard input. Its
argument is the path of the interpreter's library; an empty one means TensorFlow's,
which is slow to import. It imports nothing of this package, as that would import
TensorFlow.
"""

import contextlib
import importlib.machinery
import importlib.util
import sys
from typing import Any

# Exit codes: the interpreter refused the file; the library alone is not enough.
REFUSED = 3
NEEDS_TENSORFLOW = 4
# The address space of a trial, beyond the size of the file itself. With it, a size that
# is wrong by a factor of a billion does not take all of the machine's memory.
_BYTES = 16 << 30
_BATCHES = (1, 2)
# The size of images if the file leaves it open.
_EXTENT = 224


def _direct(content: bytes, library: str) -> Any:
    """Returns TensorFlow Lite's interpreter without TensorFlow."""
    name = "_pywrap_tensorflow_interpreter_wrapper"
    loader = importlib.machinery.ExtensionFileLoader(name, library)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=library)
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    # The same call as in `tf.lite.Interpreter`.
    return module.CreateWrapperFromBuffer(content, 1, [], [], False, False, 1, False)


def _run(interpreter: Any) -> None:
    import numpy as np

    random = np.random.default_rng(0)
    interpreter.AllocateTensors()
    for batch in _BATCHES:
        for index in interpreter.InputIndices():
            signature = interpreter.TensorSizeSignature(index, 0)
            if not len(signature):
                continue
            extents = [batch, *[_EXTENT] * (len(signature) - 1)]
            shape = np.where(signature < 0, extents, signature).astype("int32")
            interpreter.ResizeInputTensor(index, shape, False, 0)
        interpreter.AllocateTensors()
        for index in interpreter.InputIndices():
            kind = interpreter.TensorType(index, 0)
            values = 100 * random.random(interpreter.TensorSize(index, 0))
            interpreter.SetTensor(index, values.astype(kind), 0)
        interpreter.Invoke()
        for index in interpreter.OutputIndices():
            interpreter.GetTensor(index, 0)


def _limit_memory(content: bytes) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows.
        import resource

        limit = _BYTES + 8 * len(content)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    """Runs the file that comes on stdin once; returns the exit code."""
    content = sys.stdin.buffer.read()
    _limit_memory(content)
    try:
        if sys.argv[1]:
            interpreter = _direct(content, sys.argv[1])
        else:
            import tensorflow as tf

            interpreter = tf.lite.Interpreter(model_content=content)._interpreter
        _run(interpreter)
    except (RuntimeError, ValueError) as error:
        if "Select TensorFlow op" in str(error):
            return NEEDS_TENSORFLOW
        print(error)
        return REFUSED
    except Exception:
        # This version of TensorFlow calls the library with other arguments.
        return NEEDS_TENSORFLOW
    return 0


if __name__ == "__main__":
    sys.exit(main())
