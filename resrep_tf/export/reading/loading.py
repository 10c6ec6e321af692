"""Loads any of the files that `export` writes, as a function from images to outputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.export.calibration import fits, in_batches
from resrep_tf.export.packages import check_onnx
from resrep_tf.export.reading import tflite_file
from resrep_tf.export.reading.keras_file import UnreadableModel, load_keras
from resrep_tf.export.reading.stored import check_stored, is_saved_model
from resrep_tf.quiet import quiet


class Predictor:
    """A stored model as a function from a batch of images to outputs.

    Call it with an array or tensor of what the Keras model takes; it returns a NumPy
    array of what the Keras model returns. Quantisation of integer files happens
    inside, and batches of any size are allowed whatever the file's.

    Attributes:
        path: The file or folder.
        input_shape: The shape of its input with the batch, None where open.
        output_shape: The shape of its output, likewise.
        dtype: The dtype of the file's input: `"float32"`, `"int8"` or `"uint8"`.
    """

    def __init__(
        self,
        path: Path,
        input_shape: tuple,
        output_shape: tuple,
        run: Callable[[np.ndarray], np.ndarray],
        dtype: str = "float32",
        owner: Any = None,
    ):
        self.path = path
        self.input_shape = input_shape
        self.output_shape = output_shape
        self.dtype = dtype
        self._run = run
        # Keeps the variables that `run` reads alive, as TensorFlow's functions do not.
        self._owner = owner

    @property
    def model(self) -> keras.Model | None:
        """The Keras model of a .keras file; None for other files."""
        return self._owner if isinstance(self._owner, keras.Model) else None

    def __call__(self, images: Any) -> np.ndarray:
        images = np.asarray(keras.ops.convert_to_numpy(images), "float32")
        if not fits(images.shape, self.input_shape):
            raise ValueError(
                f"`images` must be a batch for {self.path.name}, whose input is "
                f"{self.input_shape}. Received: images of shape {images.shape}"
            )
        size = self.input_shape[0]
        if size is None or size == len(images):
            return self._run(images)
        outputs = [
            # A short batch is filled up with its first images; their outputs are cut.
            self._run(np.resize(batch, (size, *batch.shape[1:])))[: len(batch)]
            for batch in in_batches(images, size)
        ]
        return np.concatenate(outputs)

    def __repr__(self):
        return (
            f"Predictor({str(self.path)!r}, input_shape={self.input_shape}, "
            f"output_shape={self.output_shape}, dtype={self.dtype!r})"
        )


def load(path: str | Path) -> Predictor:
    """Loads a .keras, .tflite or .onnx file or the folder of a SavedModel.

    A .tflite file that may be damaged is first tried in a process of its own, since
    TensorFlow Lite ends the process on some of them.

    Raises:
        ValueError: If the file is missing, damaged or of another kind; in one line
            that names it.
    """
    where = Path(path).expanduser()
    check_stored(path)
    if where.suffix == ".tflite":
        tflite_file.try_out(where.read_bytes(), where)
    return load_written(where, where)


def load_written(path: Path, named: Path) -> Predictor:
    """Loads a file that this process has written, without a trial.

    Args:
        path: Where it is now.
        named: Its name in messages.
    """
    reader = _saved_model if is_saved_model(path) else _READERS[path.suffix]
    try:
        with quiet():
            return reader(path, named)
    except (ImportError, UnreadableModel):
        raise
    except Exception as error:
        # The readers raise all kinds of exceptions on a damaged file.
        text = " ".join(str(error).split())
        if "Select TensorFlow op" in text:
            raise ValueError(
                "`path` uses operations of TensorFlow itself, and the interpreter of "
                "this TensorFlow has no Flex delegate to run them. "
                f"Received: path={str(named)!r}"
            ) from error
        raise ValueError(
            f"`path` cannot be loaded: it is damaged, or not what its name says. "
            f"Received: path={str(named)!r} ({type(error).__name__}: {text[:300]})"
        ) from error


def _keras(path: Path, named: Path) -> Predictor:
    model = load_keras(path)
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            f"it has {len(model.inputs)} inputs and {len(model.outputs)} outputs, "
            "where one of each is needed"
        )
    shape = tuple(model.inputs[0].shape)
    spec = tf.TensorSpec(shape, tf.float32)

    @tf.function(input_signature=[spec], autograph=False)
    def predict(images: tf.Tensor) -> tf.Tensor:
        return tf.cast(model(images, training=False), tf.float32)

    # Without this, TensorFlow warns of retracing when many models are loaded.
    concrete = predict.get_concrete_function()

    def run(images: np.ndarray) -> np.ndarray:
        return concrete(tf.constant(images)).numpy()

    return Predictor(named, shape, tuple(model.outputs[0].shape), run, owner=model)


def _saved_model(path: Path, named: Path) -> Predictor:
    loaded = tf.saved_model.load(str(path))
    signatures = loaded.signatures
    if "serving_default" not in signatures:
        raise ValueError(f"it has no signature serving_default, but {list(signatures)}")
    serve = signatures["serving_default"]
    arguments = serve.structured_input_signature[1]
    if len(arguments) != 1 or len(serve.structured_outputs) != 1:
        raise ValueError("its signature has more than one input or output")
    (argument, spec), (result, outputs) = (
        next(iter(tensors.items())) for tensors in (arguments, serve.structured_outputs)
    )

    def run(images: np.ndarray) -> np.ndarray:
        given = tf.cast(images, spec.dtype)
        return tf.cast(serve(**{argument: given})[result], tf.float32).numpy()

    return Predictor(named, tuple(spec.shape), tuple(outputs.shape), run, owner=loaded)


def _tflite(path: Path, named: Path) -> Predictor:
    interpreter = tf.lite.Interpreter(model_content=path.read_bytes())
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError("it has more than one input or output")
    source, result = inputs[0], outputs[0]
    interpreter.allocate_tensors()
    input_shape, output_shape = (
        tuple(None if n < 0 else int(n) for n in tensor["shape_signature"])
        for tensor in (source, result)
    )

    def run(images: np.ndarray) -> np.ndarray:
        current = tuple(interpreter.get_input_details()[0]["shape"])
        if current != images.shape:
            interpreter.resize_tensor_input(source["index"], images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], _quantised(images, source))
        interpreter.invoke()
        return _real(interpreter.get_tensor(result["index"]), result)

    dtype = np.dtype(source["dtype"]).name
    return Predictor(named, input_shape, output_shape, run, dtype)


def _quantised(images: np.ndarray, tensor: dict[str, Any]) -> np.ndarray:
    """Returns numbers in the units of a tensor of a TensorFlow Lite file."""
    scale, zero = tensor["quantization"]
    if scale:
        limits = np.iinfo(tensor["dtype"])
        images = np.clip(np.round(images / scale) + zero, limits.min, limits.max)
    return images.astype(tensor["dtype"])


def _real(values: np.ndarray, tensor: dict[str, Any]) -> np.ndarray:
    scale, zero = tensor["quantization"]
    values = values.astype("float32")
    return (values - np.float32(zero)) * np.float32(scale) if scale else values


def _onnx(path: Path, named: Path) -> Predictor:
    check_onnx("Reading ONNX", "onnx", received=f"path={str(named)!r}")
    import onnx

    content = path.read_bytes()
    proto = onnx.load_model_from_string(content)
    onnx.checker.check_model(proto)
    inputs, outputs = proto.graph.input, proto.graph.output
    if len(inputs) != 1 or len(outputs) != 1:
        raise ValueError("it has more than one input or output")
    input_shape, output_shape = (
        tuple(
            extent.dim_value if extent.HasField("dim_value") else None
            for extent in tensor.type.tensor_type.shape.dim
        )
        for tensor in (inputs[0], outputs[0])
    )
    name = inputs[0].name
    session: Any
    try:
        import onnxruntime
    except ImportError:
        # Slow, but it comes with onnx.
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(proto)
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(content, options, providers=providers)

    def run(images: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {name: images})[0], "float32")

    return Predictor(named, input_shape, output_shape, run)


_READERS = {".keras": _keras, ".tflite": _tflite, ".onnx": _onnx}
