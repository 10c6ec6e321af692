"""Loads a file of weights into a model."""

import json
import os
import pathlib
import re
import warnings

import keras
import numpy as np

from resrep_tf.export.reading.keras_file import load_keras

from .registry import WEIGHT_FILES

# From Keras's name of a variable to PyTorch's name.
_TORCH_VARIABLES = {
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_BLOCK_LAYER = re.compile(r"^stage(\d+)_block(\d+)_(shortcut_)?(conv|bn)(\d*)$")

# The most weights that an error names for each problem.
_LISTED = 8
# The exceptions that a damaged header raises.
_DAMAGED = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def load_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Loads the weights of a file into a model, all of them or none.

    Args:
        model: The model to fill, in place.
        path: A `.keras` file, whose weights are matched by the names of layers; a
            `.weights.h5` file, as `model.save_weights` writes it; or a
            `.safetensors` file with PyTorch's names, for the ResNets of this
            package: torchvision's names (`layer1.0.downsample.0.weight`, `fc.bias`)
            and those common for CIFAR ResNets (`shortcut`, `linear`).

    Raises:
        ValueError: If the file's weights are not exactly the model's. The message
            names them, and the model is not changed. A `.weights.h5` file has no
            names of layers; it is checked by Keras, which names the first layer
            that does not fit and ignores weights that the model does not have.
    """
    path = pathlib.Path(path).expanduser()
    if not path.name.endswith(WEIGHT_FILES):
        raise ValueError(
            f"`path` must end with one of {WEIGHT_FILES}. Received: path={str(path)!r}"
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"`path` must be an existing file. Received: path={str(path)!r}"
        )
    if path.suffix == ".keras":
        saved = load_keras(path)
        found = {name: v.numpy() for name, v in _variables(saved).items()}
        _assign(_variables(model), found, model, path)
    elif path.suffix == ".safetensors":
        tensors = _read_safetensors(path)
        _assign(_torch_variables(model, tensors), tensors, model, path)
    else:
        _load_h5(model, path)


def _load_h5(model: keras.Model, path: pathlib.Path) -> None:
    # Keras may find a mismatch only after it has loaded half of the model.
    before = model.get_weights()
    try:
        with warnings.catch_warnings():
            # A warning that Keras repeats dozens of times before the real error.
            warnings.filterwarnings("ignore", "Skipping nested container")
            model.load_weights(path)
    except Exception as error:
        model.set_weights(before)
        # Further lines of the error print the values of a whole variable.
        reason = str(error).partition("\n")[0].rstrip(":")
        raise ValueError(
            f"The weights in `path` are not those of the model. {reason}. "
            f"Received: path={str(path)!r}, model={model.name!r}"
        ) from error


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    return {
        f"{layer.name}.weights[{index}]": variable
        for layer in model.layers
        for index, variable in enumerate(layer.weights)
    }


def _torch_variables(
    model: keras.Model, tensors: dict[str, np.ndarray]
) -> dict[str, keras.Variable]:
    """Returns the model's variables under the names of the file's convention."""
    head = "linear" if "linear.weight" in tensors else "fc"
    shortcut = "shortcut" if any(".shortcut." in t for t in tensors) else "downsample"
    prefixes = {"stem_conv": "conv1", "stem_bn": "bn1", "logits": head}
    variables = {}
    for layer in model.layers:
        if not layer.weights:
            continue
        block = _BLOCK_LAYER.match(layer.name)
        if block:
            stage, number, is_shortcut, kind, index = block.groups()
            part = f"{shortcut}.{int(kind == 'bn')}" if is_shortcut else kind + index
            prefix = f"layer{stage}.{number}.{part}"
        elif layer.name in prefixes:
            prefix = prefixes[layer.name]
        else:
            raise ValueError(
                "`model` must be a ResNet of this package to be loaded from a "
                f".safetensors file; its layer {layer.name!r} has no counterpart "
                f"there. Received: model={model.name!r}"
            )
        for variable in layer.weights:
            variables[f"{prefix}.{_TORCH_VARIABLES[variable.name]}"] = variable
    return variables


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads a file's tensors, in Keras's layout.

    The format is so simple (the header's length in 8 bytes, a JSON header, raw
    little-endian buffers) that a dependency is not worth it.
    """
    content = memoryview(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        if not 8 < start <= len(content):
            raise ValueError(f"a header of {start - 8} bytes")
        header = json.loads(bytes(content[8:start]))
        header.pop("__metadata__", None)
        return {
            name: _decode(entry, content[start:])
            for name, entry in header.items()
            if not name.endswith("num_batches_tracked")
        }
    except _DAMAGED as error:
        raise ValueError(
            "`path` must be a complete safetensors file of floating-point tensors "
            f"({', '.join(_DTYPES)}). Received: path={str(path)!r}"
        ) from error


def _decode(entry: dict, buffers: memoryview) -> np.ndarray:
    begin, end = entry["data_offsets"]
    # Python would count negative numbers from the end, and NumPy would replace -1.
    if not 0 <= begin <= end <= len(buffers) or min(entry["shape"], default=0) < 0:
        raise ValueError(f"the place {begin} to {end} of a tensor")
    array = np.frombuffer(buffers[begin:end], _DTYPES[entry["dtype"]])
    if entry["dtype"] == "BF16":  # The upper half of a float32.
        array = (array.astype("<u4") << 16).view("<f4")
    array = array.reshape(entry["shape"])
    if array.ndim == 4:  # (out, in, height, width)
        return array.transpose(2, 3, 1, 0)
    return array.T


def _assign(
    variables: dict[str, keras.Variable],
    arrays: dict[str, np.ndarray],
    model: keras.Model,
    path: pathlib.Path,
) -> None:
    """Assigns arrays to the variables of the same names, if all of them fit."""
    wrong = [
        f"{name} (model: {tuple(variable.shape)}, file: {arrays[name].shape})"
        for name, variable in variables.items()
        if name in arrays and tuple(variable.shape) != arrays[name].shape
    ]
    problems = {
        "Missing in the file": [name for name in variables if name not in arrays],
        "Not in the model": [name for name in arrays if name not in variables],
        "Of another shape": wrong,
    }
    if any(problems.values()):
        raise ValueError(
            "The weights in `path` are not those of the model. "
            + "".join(
                f"{problem}: {_listed(items)}. "
                for problem, items in problems.items()
                if items
            )
            + f"Received: path={str(path)!r}, model={model.name!r}"
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _listed(items: list[str]) -> str:
    """Returns the first items as text, and the number of the others."""
    rest = len(items) - _LISTED
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(items[:_LISTED]) + more
