"""Runtimes on which models are timed: LiteRT, SavedModel and Keras itself."""

import platform
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from resrep_tf.quiet import quiet

Run = Callable[[], Any]
# One conversion takes about a second whatever the model's size, so small models are
# converted together, up to this many parameters.
_CONVERTED_TOGETHER = 30_000_000


class Runtime(Protocol):
    """Runs models, on inputs of one batch size.

    Attributes:
        name: Its name in a latency table.
        clock: Returns seconds; differences of two readings are times.
        repeats: Whether short operations have to be repeated within one model,
            because calling a model takes long compared to them.
    """

    name: str
    clock: Callable[[], float]
    repeats: bool

    def versions(self) -> dict[str, str]:
        """Returns the versions of the software whose speed is measured."""
        ...

    def prepare(self, models: Sequence[keras.Model], batch_size: int) -> list[Run]:
        """Returns a function for each model that runs it once and waits for it."""
        ...


class SavedModelRuntime:
    """Runs what `model.export` writes: a TensorFlow function.

    TensorFlow's number of threads belongs to the process: set it with
    `tf.config.threading` before the first model is run.
    """

    name = "saved_model"
    repeats = True

    def __init__(self, threads: int | None):
        self.clock = clock_for(threads)

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def prepare(self, models: Sequence[keras.Model], batch_size: int) -> list[Run]:
        return [self._prepare(model, batch_size) for model in models]

    def _prepare(self, model: keras.Model, batch_size: int) -> Run:
        function = concrete_function(model, batch_size)
        values = [tf.constant(value) for value in example(model, batch_size)]
        return lambda: function(*values)


class KerasRuntime(SavedModelRuntime):
    """Runs `model.predict_on_batch`."""

    name = "keras"

    def _prepare(self, model: keras.Model, batch_size: int) -> Run:
        values = example(model, batch_size)
        inputs = values[0] if len(values) == 1 else values
        with quiet():  # TensorFlow warns of functions that are traced for many models.
            model.predict_on_batch(inputs)
        return lambda: model.predict_on_batch(inputs)


class LiteRTRuntime:
    """Runs TFLite models with LiteRT's interpreter."""

    name = "litert"
    repeats = False

    def __init__(self, threads: int | None):
        self.threads = threads
        self.clock = clock_for(threads)

    def versions(self) -> dict[str, str]:
        return {_interpreter_class().__module__.split(".")[0]: _interpreter_version()}

    def prepare(self, models: Sequence[keras.Model], batch_size: int) -> list[Run]:
        runs: list[Run] = []
        together: list[keras.Model] = []
        size = 0
        for model in models:
            parameters = model.count_params()
            if together and size + parameters > _CONVERTED_TOGETHER:
                runs += self._prepare(together, batch_size)
                together, size = [], 0
            together.append(model)
            size += parameters
        return runs + (self._prepare(together, batch_size) if together else [])

    def _prepare(self, models: list[keras.Model], batch_size: int) -> list[Run]:
        content = convert_together(models, batch_size)
        if len(models) == 1:
            return [self._interpreter(content)]
        return [self._interpreter(part) for part in split(content, models)]

    def _interpreter(self, content: bytes) -> Run:
        with quiet():
            interpreter = _interpreter_class()(
                model_content=content, num_threads=self.threads
            )
            interpreter.allocate_tensors()
        rng = np.random.default_rng(0)
        for detail in interpreter.get_input_details():
            value = rng.standard_normal(detail["shape"]).astype(detail["dtype"])
            interpreter.set_tensor(detail["index"], value)
        return interpreter.invoke


_RUNTIMES = {
    kind.name: kind for kind in (LiteRTRuntime, SavedModelRuntime, KerasRuntime)
}


def runtime_for(runtime: "str | Runtime", threads: int | None) -> Runtime:
    """Returns a runtime by its name, or the given one."""
    if not isinstance(runtime, str):
        return runtime
    if runtime not in _RUNTIMES:
        raise ValueError(
            f"`runtime` must be one of {sorted(_RUNTIMES)}. Received: "
            f"runtime={runtime!r}"
        )
    return _RUNTIMES[runtime](threads)


def clock_for(threads: int | None) -> Callable[[], float]:
    """Returns the clock to measure with.

    On one thread, CPU time is the time that the model takes on a quiet machine, and
    other programs disturb it far less than wall-clock time.
    """
    return time.process_time if threads == 1 else time.perf_counter


def machine() -> dict[str, Any]:
    """Describes the machine that this program runs on."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
            names = [line.split(":", 1)[1].strip() for line in lines]
    except OSError:
        names = []
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "system": platform.system(),
    }


def example(model: keras.Model, batch_size: int) -> list[np.ndarray]:
    """Returns random inputs for a model."""
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal((batch_size, *tensor.shape[1:])).astype(tensor.dtype)
        for tensor in model.inputs
    ]


def concrete_function(model: keras.Model, batch_size: int) -> Any:
    """Returns a model's inference as a TensorFlow function of its flat inputs."""
    specs = [
        tf.TensorSpec((batch_size, *tensor.shape[1:]), tensor.dtype)
        for tensor in model.inputs
    ]

    def infer(*values):
        return model(values[0] if len(values) == 1 else list(values), training=False)

    return tf.function(infer, autograph=False).get_concrete_function(*specs)


# === TFLite ===


def convert_together(models: Sequence[keras.Model], batch_size: int) -> bytes:
    """Converts models to one TFLite model in which they stand side by side."""
    specs = [
        tf.TensorSpec(
            (batch_size, *tensor.shape[1:]), tensor.dtype, name=f"model_{number}_input"
        )
        for number, model in enumerate(models)
        for tensor in model.inputs
    ]

    def infer(*values):
        outputs, start = [], 0
        for model in models:
            given = list(values[start : start + len(model.inputs)])
            start += len(model.inputs)
            made = model(given[0] if len(given) == 1 else given, training=False)
            outputs += keras.tree.flatten(made)
        return outputs

    function = tf.function(infer, autograph=False).get_concrete_function(*specs)
    # Do not give the models as a second argument: their weights would become variables
    # that nothing initialises, and computing with NaNs and denormals is far slower.
    with quiet():
        return tf.lite.TFLiteConverter.from_concrete_functions([function]).convert()


def split(content: bytes, models: Sequence[keras.Model]) -> list[bytes]:
    """Cuts a TFLite model of several models side by side into those models."""
    from tensorflow.lite.tools import flatbuffer_utils

    whole = flatbuffer_utils.convert_bytearray_to_object(bytearray(content))
    (graph,) = whole.subgraphs
    makers = {int(t): op for op in graph.operators for t in op.outputs}
    # The converter changes the order of inputs and outputs. The name of an input says
    # which model it belongs to; an output belongs to the model of the inputs it needs.
    owners = {int(t): _owner(graph.tensors[t].name) for t in graph.inputs}
    outputs: dict[int, list[int]] = {}
    for output in graph.outputs:
        needed = _needed([int(output)], makers)
        owner = next(owners[tensor] for tensor in needed if tensor in owners)
        outputs.setdefault(owner, []).append(int(output))
    parts = [
        _part(whole, graph, outputs[number], makers) for number in range(len(models))
    ]
    return [bytes(flatbuffer_utils.convert_object_to_bytearray(p)) for p in parts]


def _owner(name: bytes) -> int:
    found = re.search(r"model_(\d+)_input", name.decode())
    if found is None:
        raise RuntimeError(f"TFLite's converter renamed an input. Received: {name!r}")
    return int(found[1])


def _needed(outputs: Sequence[int], makers: dict[int, Any]) -> set[int]:
    """Returns the tensors that take part in computing some outputs."""
    needed: set[int] = set()
    waiting = list(outputs)
    while waiting:
        tensor = waiting.pop()
        if tensor < 0 or tensor in needed:
            continue
        needed.add(tensor)
        if tensor in makers:
            waiting += [int(t) for t in makers[tensor].inputs]
            waiting += [int(t) for t in makers[tensor].outputs]
    return needed


def _part(whole: Any, graph: Any, outputs: list[int], makers: dict[int, Any]) -> Any:
    """Returns the TFLite model that computes the given outputs and nothing else."""
    needed = _needed(outputs, makers)
    tensors = sorted(needed)
    places = {tensor: place for place, tensor in enumerate(tensors)}
    places[-1] = -1
    part, piece = type(whole)(), type(graph)()
    part.version, part.operatorCodes = whole.version, whole.operatorCodes
    part.subgraphs, part.buffers = [piece], [whole.buffers[0]]
    piece.tensors, piece.operators = [], []
    for tensor in tensors:
        copy = _copy(graph.tensors[tensor])
        if whole.buffers[copy.buffer].data is not None:
            part.buffers.append(whole.buffers[copy.buffer])
            copy.buffer = len(part.buffers) - 1
        else:
            copy.buffer = 0
        piece.tensors.append(copy)
    for operator in graph.operators:
        if int(operator.outputs[0]) in needed:
            copy = _copy(operator)
            copy.inputs = [places[int(t)] for t in operator.inputs]
            copy.outputs = [places[int(t)] for t in operator.outputs]
            piece.operators.append(copy)
    piece.inputs = [places[int(t)] for t in graph.inputs if int(t) in needed]
    piece.outputs = [places[t] for t in outputs]
    return part


def _copy(thing: Any) -> Any:
    copy = type(thing)()
    copy.__dict__.update(thing.__dict__)
    return copy


def _interpreter_class() -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        return tf.lite.Interpreter
    return Interpreter


def _interpreter_version() -> str:
    module = _interpreter_class().__module__.split(".")[0]
    return str(getattr(__import__(module), "__version__", "unknown"))
