"""Networks by name and from files: `--arch`."""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resrep_tf import models
from resrep_tf.cli.errors import CommandError, blame
from resrep_tf.export.reading.keras_file import check_keras, load_keras
from resrep_tf.lazy import keras, tf
from resrep_tf.models.registry import WEIGHT_FILES

if TYPE_CHECKING:
    from resrep_tf.data.heads import Head

_KERAS, _HUB = "keras:", "hub:"
# The activations of outputs whose meaning is known. Outputs of log_softmax count as
# logits: their softmax is the same.
_READ = ("softmax", "sigmoid", "linear", "log_softmax")
# Arguments of keras.applications that the data and other flags decide.
_DECIDED = (
    *("input_shape", "classes", "weights", "include_top", "pooling"),
    "classifier_activation",
)


def kind(arch: str) -> str:
    """Returns where a network is from: `"package"`, `"keras"`, `"hub"` or `"file"`."""
    if arch.startswith(_KERAS):
        return "keras"
    if arch.startswith(_HUB):
        return "hub"
    if arch.endswith(".keras") or os.sep in arch:
        return "file"
    return "package"


def check_whole(flag: str, name: str) -> None:
    """Raises unless a flag names a .keras file that is whole; nothing is built."""
    check_file(flag, name)
    with blame(flag):
        check_keras(_path(name))


def check_file(flag: str, name: str) -> None:
    """Raises unless a flag names an existing .keras file."""
    path = _path(name)
    if not path.endswith(".keras") or not os.path.isfile(path):
        _check_path(path)
        raise CommandError(
            f"`--{flag}` must be an existing .keras file. Received: --{flag}={name}"
        )


def check_weights(name: str | None) -> None:
    """Raises unless `--init_weights`, if it is given, is an existing file."""
    if name in (None, models.IMAGENET):
        return
    if os.path.isfile(_path(name)):
        if name.endswith(WEIGHT_FILES):
            return
        raise CommandError(
            f"`--init_weights` must end with one of {', '.join(WEIGHT_FILES)}. "
            f"Received: --init_weights={name}"
        )
    _check_path(_path(name))
    raise CommandError(
        "`--init_weights` must be an existing file, or imagenet. "
        f"Received: --init_weights={name}"
    )


def _check_path(path: str) -> None:
    """Raises the system's error about an impossible path, such as one too long."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)


def check(arch: str, options: Mapping[str, Any]) -> None:
    """Raises if there is no such network, without building anything."""
    where = kind(arch)
    if where == "file":
        if not os.path.isfile(_path(arch)) or not arch.endswith(".keras"):
            _check_path(_path(arch))
            raise CommandError(
                "`--arch` must be a name or an existing .keras file. "
                f"Received: --arch={arch}"
            )
        if options:
            raise CommandError(
                "`--arch_options` are for networks that are built by name, not for a "
                f".keras file. Received: --arch_options={options}"
            )
    elif where == "keras":
        _application(arch)
    elif where == "package" and arch not in models.names():
        near = difflib.get_close_matches(arch.lower(), models.names(), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise CommandError(
            f"`--arch` must be one of: {', '.join(models.names())}; keras:NAME; "
            f"hub:PRESET; or the path of a .keras file.{hint} Received: --arch={arch}"
        )


def published_for(arch: str) -> str:
    """Returns the data set that a network of this package was published for."""
    check(arch, {})
    if kind(arch) != "package":
        raise CommandError(
            f"`--dataset` is needed with `--arch={arch}`. Received: no --dataset"
        )
    return "imagenet2012" if models.default_classes(arch) == 1000 else "cifar10"


def parse_options(items: Sequence[str]) -> dict[str, Any]:
    """Reads `name=value` pairs; values are Python literals or else strings."""
    options = {}
    # Commas within brackets do not separate options.
    whole = re.split(r",(?![^(\[]*[)\]])", ",".join(items)) if items else []
    for item in whole:
        name, separator, value = item.partition("=")
        if not separator or not name.isidentifier():
            raise CommandError(
                "`--arch_options` must be a list of name=value, separated by commas. "
                f"Received: --arch_options={','.join(items)}"
            )
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def build(
    arch: str,
    input_shape: tuple[int, int, int],
    classes: int,
    *,
    options: Mapping[str, Any],
    weight_decay: float | None = None,
    init_weights: str | None = None,
) -> keras.Model:
    """Builds or loads a network, and loads its weights if any are given.

    Args:
        arch: As `--arch`.
        input_shape: Height, width and channels of one image of the data.
        classes: Number of classes of the data.
        options: As `--arch_options`, parsed.
        weight_decay: L2 on convolution and dense kernels. None leaves a loaded model
            as it is.
        init_weights: As `--init_weights`; `"imagenet"` for the weights that Keras
        publishes.
    """
    for name in ("input_shape", "classes"):
        if name in options:
            raise CommandError(
                f"`--arch_options`: the data decide `{name}`; see `--dataset` "
                f"and `--image_size`. Received: --arch_options={options}"
            )
    published = init_weights == models.IMAGENET
    if published and kind(arch) != "keras":
        raise CommandError(
            "`--init_weights=imagenet` is for `--arch=keras:NAME`. "
            f"Received: --init_weights=imagenet --arch={arch}"
        )
    with blame("init_weights" if published else "arch"):
        if kind(arch) == "package":
            decay = {} if weight_decay is None else {"weight_decay": weight_decay}
            model = models.build(arch, input_shape, classes, **{**decay, **options})
        else:
            model = _of_others(arch, input_shape, classes, options, published)
            if weight_decay is not None:
                model = _decayed(model, weight_decay)
    check_fits(model, input_shape, classes, "arch")
    if keras.config.dtype_policy().name.startswith("mixed") and kind(arch) != "file":
        from resrep_tf.export.precision import in_float32

        model = in_float32(model, only=model.output_names)
    if init_weights is not None and not published:
        with blame("init_weights"):
            models.load_weights(model, init_weights)
    return model


def _of_others(
    arch: str,
    input_shape: tuple[int, int, int],
    classes: int,
    options: Mapping[str, Any],
    published: bool,
) -> keras.Model:
    """Builds or loads a network of another package or from a file."""
    if kind(arch) == "keras":
        builder = _application(arch)
        _check_options(arch, builder, options)
        weights = models.IMAGENET if published else None
        return models.build_application(
            builder, input_shape, classes, weights, **options
        )
    if kind(arch) == "hub":
        preset = arch.removeprefix(_HUB)
        return models.build_preset(preset, input_shape, classes, options)
    return _sized(load_file(arch), input_shape)


def load_file(arch: str) -> keras.Model:
    """Returns the model in a .keras file."""
    from resrep_tf.graph.tracing import has_graph, trace

    with blame("arch"):
        model = load_keras(_path(arch))
        return model if has_graph(model) else trace(model)


def _sized(model: keras.Model, input_shape: tuple[int, int, int]) -> keras.Model:
    """Returns a model of open size with the data's size, and others unchanged."""
    shape = tuple(model.inputs[0].shape) if len(model.inputs) == 1 else ()
    if len(shape) != 4 or None not in shape[1:3]:
        return model
    whole = tuple(a or b for a, b in zip(shape[1:], input_shape, strict=True))
    inputs = keras.Input(whole, name=model.inputs[0].name)
    copy = keras.models.clone_model(model, input_tensors=inputs)
    copy.set_weights(model.get_weights())
    return copy


def _frozen_note(model: keras.Model) -> str | None:
    """Returns a note about frozen layers, or None if there are none."""
    from resrep_tf.pruning.fit_checks import frozen_layers

    names = frozen_layers(model)
    if not names:
        return None
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return (
        f"NOTE: frozen layers: {len(names)} ({shown}). They can lose channels, but "
        "cannot learn to compensate for lost ones. To let them learn, set "
        "`trainable = True` and save the model again."
    )


def _path(arch: str) -> str:
    # Shells do not expand `~` behind an equals sign.
    return os.path.expanduser(arch)


def check_fits(
    model: keras.Model, input_shape: tuple[int, int, int], classes: int, flag: str
) -> None:
    """Raises if a model does not fit the images and classes of the data."""
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise CommandError(
            f"`--{flag}` must be a model with one input and one output. Received: "
            f"{len(model.inputs)} inputs and {len(model.outputs)} outputs"
        )
    tensors = model.inputs[0], model.outputs[0]
    images, outputs = (tf.TensorShape(tensor.shape) for tensor in tensors)
    check_shapes(images, outputs, input_shape, classes, flag)
    if outputs[-1] == 1 and _activation(model) == "softmax":
        raise CommandError(
            f"`--{flag}` must not end with the softmax of a single output, which is 1 "
            "whatever the image. For two classes, end it with a sigmoid, or with two "
            "outputs. Received: a model with 1 output behind softmax"
        )


def check_shapes(
    images: tf.TensorShape,
    outputs: tf.TensorShape,
    input_shape: tuple[int, int, int],
    classes: int,
    flag: str,
) -> None:
    """Raises if the shapes of a model's inputs and outputs do not fit the data."""
    # A model of two classes may have a single output, for the second class.
    widths = (1, 2) if classes == 2 else (classes,)
    if not (
        images.is_compatible_with((None, *input_shape))
        and any(outputs.is_compatible_with((None, width)) for width in widths)
    ):
        raise CommandError(
            f"`--{flag}` must fit the data, images of {input_shape} and {classes} "
            "classes; see `--dataset` and `--image_size`. "
            f"Received: a model from {images[1:]} to {outputs[1:]}"
        )


def _activation(model: keras.Model) -> str | None:
    from resrep_tf.graph.heads import output_activation

    return output_activation(model, 0)


def head(model: keras.Model, classes: int) -> Head:
    """Returns how to read the outputs of a model, for data of so many classes."""
    from resrep_tf.data.heads import head_behind

    return head_behind(_activation(model), model.outputs[0].shape[-1], classes)


def notes(model: keras.Model) -> list[str]:
    """Returns notes for the user about a model that is going to be trained."""
    found = [_frozen_note(model)]
    activation = _activation(model)
    if activation not in _READ:
        found.append(
            f"NOTE: the outputs are treated as logits, though the model ends with "
            f"{activation}. If they are probabilities, end it with a softmax."
        )
    return list(filter(None, found))


# === keras.applications ===


def _application(arch: str) -> Any:
    name = arch.removeprefix(_KERAS)
    known = sorted(
        entry
        for entry in dir(keras.applications)
        if entry[0].isupper() and callable(getattr(keras.applications, entry))
    )
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f" Did you mean 'keras:{near[0]}'?" if near else ""
        raise CommandError(
            f"`--arch=keras:NAME` must name one of: {', '.join(known)}.{hint} "
            f"Received: --arch={arch}"
        )
    return getattr(keras.applications, name)


def _check_options(arch: str, builder: Any, options: Mapping[str, Any]) -> None:
    accepted = inspect.signature(builder).parameters
    for option in options:
        if option not in accepted or option in _DECIDED:
            raise CommandError(
                f"`--arch_options`: `{option}` is not an option of {arch!r}. Its "
                f"options are: {', '.join(sorted(set(accepted) - set(_DECIDED)))}. "
                f"Received: --arch_options={options}"
            )


def _decayed(model: keras.Model, weight_decay: float) -> keras.Model:
    """Returns a copy with weight decay on convolution and dense kernels only."""
    penalty = keras.regularizers.L2(weight_decay / 2) if weight_decay else None
    kinds = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Dense)

    def with_penalty(layer: keras.Layer) -> keras.Layer:
        config = layer.get_config()
        if type(layer) in kinds:
            config["kernel_regularizer"] = keras.regularizers.serialize(penalty)
        return type(layer).from_config(config)

    copy = keras.models.clone_model(model, clone_function=with_penalty, recursive=True)
    copy.set_weights(model.get_weights())
    return copy
