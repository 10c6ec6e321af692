"""Builds a traced model, call by call."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras

from resrep_tf.graph.keras_calls import (
    all_layers,
    fit_as_in_inference,
    has_graph,
    is_leaf,
    is_sensitive,
    keep_output_names,
    last_node,
    operations,
    recorded_cast,
    run_in_order,
    stock_class,
    takes_training,
    twin,
)
from resrep_tf.graph.keras_nodes import (
    Node,
    as_function,
    copy_input,
    nodes,
    structures,
)
from resrep_tf.graph.tracing import lifted
from resrep_tf.graph.tracing.paths import Names, attribute_paths, inside, snake_case
from resrep_tf.graph.tracing.recording import OwnWeight, Untraceable, record
from resrep_tf.graph.tracing.report import Opaque


@dataclass(frozen=True)
class _Place:
    """The place of a call in the user's model.

    Args:
        path: The dotted path of the layer or model around it.
        trainable: Whether everything around it is trainable.
        recorded: Whether the call comes from a Functional model, and not from tracing.
    """

    path: str = ""
    trainable: bool = True
    recorded: bool = False


class Tracer:
    """Builds the traced model call by call.

    Args:
        model: The user's model.
        separate: The ids of variables that need a layer of their own.
        closed: For layers that must not be traced, by their ids, the reason.
    """

    def __init__(self, model: keras.Model, separate: set[int], closed: dict[int, str]):
        self.model = model
        self.opaque: dict[int, Opaque] = {}
        self.paths: dict[str, str] = {}
        self._separate = separate
        self._closed = closed
        self._traced: set[int] = set()
        self._paths = attribute_paths(model)
        self._known = {id(layer) for layer in all_layers(model)}
        self._names = Names()
        self._twins: dict[Any, Any] = {}
        self._owners: dict[int, set[str]] = {}
        self._order: list[Any] = []
        self._originals: list[Any] = []
        self._anchor: keras.KerasTensor | None = None

    def trace(self, built: tuple[list, dict[str, Any]] | None) -> keras.Model:
        if built is None:
            inputs, outputs = self._trace_graph()
        else:
            inputs, outputs = self._trace_call(*built)
        result = keras.Model(inputs, outputs, name=self.model.name)
        result.dtype_policy = self.model.dtype_policy
        run_in_order(result, self._order)
        if not takes_training(self.model):
            fit_as_in_inference(result)
        return result

    def clashes(self) -> tuple[set[int], dict[int, str]]:
        """Returns the variables and layers that would put one weight into two layers.

        Returns:
            The ids of variables that were lifted in more than one way, and the layers
            that could be traced at one call and not at another, with the reason.
        """
        variables = {key for key, names in self._owners.items() if len(names) > 1}
        layers = {
            key: opaque.reason
            for key, opaque in self.opaque.items()
            if key in self._traced
        }
        return variables, layers

    # === The model itself ===

    def _trace_graph(self) -> tuple[Any, Any]:
        function = as_function(self.model)
        copies = {
            id(tensor): copy_input(tensor, tensor.shape) for tensor in function.inputs
        }
        inputs = [copies[id(tensor)] for tensor in function.inputs]
        self._anchor = inputs[0]
        for op in operations(function):
            self._names.reserve(op.name)
        place = _Place("", self.model.trainable, recorded=True)
        outputs = self._inline_graph(function, inputs, place)
        keep_output_names(
            function.outputs, keras.tree.flatten(outputs), self._names.unique
        )
        structure = keras.tree.map_structure(
            lambda tensor: copies[id(tensor)], structures(function)[0]
        )
        return structure, outputs

    def _trace_call(self, args: list, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        structure = args[0] if args else list(kwargs.values())
        inputs = keras.tree.flatten(structure)
        self._anchor = inputs[0]
        for tensor in inputs:
            self._names.reserve(tensor.name)
        place = _Place("", self.model.trainable)
        try:
            outputs = self._inline_call(self.model, tuple(args), kwargs, place)
        except Untraceable as error:
            kind = type(self.model).__name__
            raise ValueError(
                f"`{kind}.call` cannot be traced: {error}. If only a part of it is "
                "concerned, move that part into a layer of its own: everything "
                f"around that layer can then be traced. Received: model={self.model!r}"
            ) from error
        return structure, outputs

    # === Graphs ===

    def _inline_graph(
        self, function: keras.Function, inputs: list, place: _Place
    ) -> Any:
        """Repeats the calls of a Functional model; returns its outputs."""
        table = {id(t): v for t, v in zip(function.inputs, inputs, strict=True)}
        place = dataclasses.replace(place, recorded=True)
        self._run_nodes(nodes(function), table, place)
        return keras.tree.map_structure(
            lambda tensor: table[id(tensor)], structures(function)[1]
        )

    def _inline_call(
        self, layer: keras.Layer, args: tuple, kwargs: dict, place: _Place
    ) -> Any:
        """Repeats the calls that a layer's `call` makes; returns its outputs."""
        place = dataclasses.replace(place, recorded=False)
        args, kwargs = keras.tree.map_structure(
            lambda value: self._cast(self._value(value), layer, place), (args, kwargs)
        )
        recording = record(layer, args, kwargs, self._known)
        table = dict(recording.inputs)
        self._run_nodes(recording.nodes, table, place, recording.told)
        return keras.tree.map_structure(
            lambda tensor: self._value(table[id(tensor)]), recording.outputs
        )

    def _run_nodes(
        self,
        calls: Iterable[Node],
        table: dict[int, Any],
        place: _Place,
        told: frozenset[int] = frozenset(),
    ) -> None:
        for node in calls:
            values = [table[id(tensor)] for tensor in node.inputs]
            args, kwargs = node.arguments(values)
            if node.key in told or kwargs.get("training", False) is None:
                kwargs.pop("training", None)
            outputs = self._call(node.op, args, kwargs, place)
            flat = keras.tree.flatten(outputs)
            table.update(zip(map(id, node.outputs), flat, strict=True))

    # === Calls ===

    def _call(self, op: Any, args: tuple, kwargs: dict, place: _Place) -> Any:
        if not isinstance(op, keras.Layer):
            applied = self._apply_weight(op, args, kwargs, place)
            if applied is not None:
                return applied
            return self._leaf(op, args, kwargs, place)
        mode = kwargs.get("training")
        if mode is not None and not place.recorded and is_sensitive(op):
            return self._fixed(op, args, kwargs, place)
        if not place.recorded or not is_leaf(op):
            kwargs = {k: v for k, v in kwargs.items() if k != "training"}
        if is_leaf(op) or stock_class(op) is not None:
            return self._leaf(op, args, kwargs, place)
        trainable = place.trainable and op.trainable
        inner = dataclasses.replace(
            place, path=self._path(op, place), trainable=trainable
        )
        try:
            return self._inline(op, args, kwargs, inner)
        except Untraceable as error:
            return self._leaf(op, args, kwargs, place, reason=str(error))

    def _inline(self, op: Any, args: tuple, kwargs: dict, place: _Place) -> Any:
        if id(op) in self._closed:
            raise Untraceable(self._closed[id(op)])
        if has_graph(op):
            entered = self._enter(op, args, kwargs, place)
            outputs = self._inline_graph(as_function(op), entered, place)
        else:
            outputs = self._inline_call(op, args, kwargs, place)
        self._traced.add(id(op))
        return outputs

    def _enter(
        self, model: keras.Model, args: tuple, kwargs: dict, place: _Place
    ) -> list[keras.KerasTensor]:
        """Returns the tensors that a call passes to a nested model's inputs."""
        function = as_function(model)
        given, *more = filter(_is_something, (*args, *kwargs.values()))
        if isinstance(given, dict) and not isinstance(structures(function)[0], dict):
            # Keras then finds inputs by their names, whatever their order.
            given = [given[tensor.name] for tensor in function.inputs]
        given = [self._value(value) for value in keras.tree.flatten(given)]
        shapes = [len(tensor.shape) for tensor in function.inputs]
        if more or [len(tensor.shape) for tensor in given] != shapes:
            raise Untraceable("it is called with other arguments than its inputs")
        return [
            self._cast_to(value, tensor.dtype, place)
            for value, tensor in zip(given, function.inputs, strict=True)
        ]

    def _leaf(
        self, op: Any, args: tuple, kwargs: dict, place: _Place, reason: str = ""
    ) -> Any:
        """Calls an operation unchanged, or a twin of it."""
        self._check_told_alike(op, None)
        new = self._twins.get(id(op))
        if new is None:
            path = self._path(op, place)
            name = self._name(op, path, place)
            self.paths[name] = path
            new = twin(op, name, place.trainable, stock_class(op))
            self._keep(id(op), new, op)
            if reason:
                self.opaque[id(op)] = Opaque(path, name, type(op).__name__, reason)
        args, kwargs = keras.tree.map_structure(self._value, (args, kwargs))
        return self._run(new, *args, **kwargs)

    def _fixed(self, op: Any, args: tuple, kwargs: dict, place: _Place) -> Any:
        """Calls a layer that always runs in the same mode."""
        mode = kwargs["training"]
        if len(args) != 1 or len(kwargs) > 1:
            raise Untraceable(f"it calls a layer with `training={mode}` and more")
        self._check_told_alike(op, mode)
        new = self._twins.get((id(op), mode))
        if new is None:
            path = self._path(op, place)
            name = self._names.unique(path)
            self.paths[name] = path
            inner = twin(op, op.name, place.trainable)
            new = lifted.FixedMode(inner, mode, name=name, dtype=op.dtype_policy)
            self._keep((id(op), mode), new, op)
            reason = f"it is always called with `training={mode}`"
            self.opaque[id(op)] = Opaque(path, name, type(op).__name__, reason)
        return self._run(new, keras.tree.map_structure(self._value, args[0]))

    def _check_told_alike(self, op: Any, mode: bool | None) -> None:
        keys = {None: id(op), True: (id(op), True), False: (id(op), False)}
        del keys[mode]
        if any(key in self._twins for key in keys.values()):
            raise Untraceable(
                f"it calls `{op.name}` with `training={mode}` and without"
            )

    def _run(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = op(*args, **kwargs)
        self._order.append(last_node(op))
        return outputs

    def _keep(self, key: Any, new: Any, op: Any) -> None:
        self._twins[key] = new
        self._originals.append(op)  # Kept alive so that its id is not used again.

    # === Weights and numbers ===

    def _value(self, value: Any) -> Any:
        """Returns an argument of a call in a form that a graph can hold."""
        if isinstance(value, OwnWeight):
            return self._weight(value)
        if keras.ops.is_tensor(value) and not isinstance(value, keras.KerasTensor):
            return keras.ops.convert_to_numpy(value)
        return value

    def _weight(self, own: OwnWeight) -> keras.KerasTensor:
        # A new one for each use, so that gradients are added in the same order as in
        # the user's `call`.
        return self._run(self._owner(lifted.Weight, own, ""), self._anchor)

    def _apply_weight(
        self, op: Any, args: tuple, kwargs: dict, place: _Place
    ) -> keras.KerasTensor | None:
        """Makes a call of `ApplyWeight`, if this is an operation on one weight."""
        function = lifted.FUNCTIONS.get(type(op).__name__)
        own = [value for value in args if isinstance(value, OwnWeight)]
        if function is None or len(args) != 2 or len(own) != 1 or kwargs:
            return None
        first = isinstance(args[0], OwnWeight)
        tensor = args[1 if first else 0]
        if (
            id(own[0].variable) in self._separate
            or not isinstance(tensor, keras.KerasTensor)
            or not lifted.applies(function, first, own[0].variable, tensor)
        ):
            return None
        kind = f"{function} {first}"
        layer = self._owner(
            lifted.ApplyWeight, own[0], kind, function=function, first=first
        )
        return self._run(layer, tensor)

    def _owner(
        self, cls: type[lifted.Owner], own: OwnWeight, kind: str, **settings: Any
    ) -> lifted.Owner:
        key = (id(own.variable), kind)
        if key not in self._twins:
            path = inside(self._paths.get(id(own.owner), ""), own.attribute)
            layer = cls.of(
                own.variable,
                name=self._names.unique(path),
                dtype=own.owner.dtype_policy,
                **settings,
            )
            self._keep(key, layer, own.variable)
            self._owners.setdefault(id(own.variable), set()).add(kind)
        return self._twins[key]

    def _cast(self, value: Any, layer: keras.Layer, place: _Place) -> Any:
        """Casts a tensor as Keras does before a layer's `call`."""
        if isinstance(value, keras.KerasTensor) and layer.autocast:
            return self._cast_to(value, layer.input_dtype, place)
        return value

    def _cast_to(
        self, tensor: keras.KerasTensor, dtype: str, place: _Place
    ) -> keras.KerasTensor:
        is_float = keras.backend.is_float_dtype
        if tensor.dtype == dtype or not (is_float(tensor.dtype) and is_float(dtype)):
            return tensor
        name = self._names.unique(inside(place.path, "cast"))
        return self._run(twin(recorded_cast(tensor, dtype), name), tensor)

    # === Names ===

    def _path(self, op: Any, place: _Place) -> str:
        if id(op) in self._paths:
            return self._paths[id(op)]
        part = op.name if place.recorded else snake_case(type(op).__name__)
        return inside(place.path, part)

    def _name(self, op: Any, path: str, place: _Place) -> str:
        if place.recorded and not place.path:
            return op.name
        return self._names.unique(path)


def _is_something(value: Any) -> bool:
    """Returns False for None and for the masks of tensors that have none."""
    return any(leaf is not None for leaf in keras.tree.flatten(value))
