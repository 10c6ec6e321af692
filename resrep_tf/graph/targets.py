"""Finds the spaces of channels that the user means by `targets`."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.graph.spaces import Space
from resrep_tf.rules.fusion import MATRIX
from resrep_tf.rules.weights import weights_of

Targets = str | Sequence[str] | re.Pattern | Callable[[keras.Layer], bool] | None


def choose_spaces(graph: ChannelGraph, targets: Targets) -> list[Space]:
    """Returns the spaces that `targets` means; raises if one cannot be pruned."""
    prunable = [space for space in graph.spaces if space.prunable]
    if targets is None:
        chosen = [space for space in prunable if space.internal]
    elif isinstance(targets, str) and targets == "all":
        chosen = prunable
    else:
        names = _target_names(graph, targets)
        chosen = [s for s in graph.spaces if any(p.name in names for p in s.producers)]
        for space in chosen:
            if not space.prunable:
                raise ValueError(
                    f"Layer `{space.producers[0].name}` cannot be pruned: "
                    f"{space.reason}. Leave it out of `targets`; "
                    "`resrep_tf.explain(model)` lists every layer. "
                    f"Received: targets={targets!r}"
                )
    if not chosen:
        raise ValueError(
            f"The model `{graph.model.name}` has nothing to prune: "
            + _why_nothing(graph, targets)
            + f" Received: targets={targets!r}"
        )
    return chosen


def _target_names(graph: ChannelGraph, targets: Targets) -> set[str]:
    layers = {producer.name: producer.layer for producer in graph.producers}
    if isinstance(targets, re.Pattern):
        return {name for name in layers if targets.match(name)}
    if callable(targets):
        return {name for name, layer in layers.items() if targets(layer)}
    if not isinstance(targets, Iterable):
        raise TypeError(
            "`targets` must be None, 'all', names of layers, a compiled regular "
            f"expression or a function of a layer. Received: targets={targets!r}"
        )
    names = [targets] if isinstance(targets, str) else list(targets)
    for name in names:
        if name not in layers:
            near = difflib.get_close_matches(str(name), layers, n=3, cutoff=0.4)
            hint = f"Did you mean {near}?" if near else f"There are: {sorted(layers)}."
            raise ValueError(
                f"No convolution or dense layer is called {name!r}. {hint} "
                f"Received: targets={targets!r}"
            )
    return set(names)


def _why_nothing(graph: ChannelGraph, targets: Targets) -> str:
    if not graph.producers:
        return "it has no convolution or dense layer with a rule."
    if any(space.prunable for space in graph.spaces):
        if targets is None:
            return (
                "every prunable space of channels is shared by several layers; "
                "`targets='all'` prunes those too."
            )
        return "`targets` matches none of its convolution and dense layers."
    reasons = "; ".join(
        f"`{space.producers[0].name}`: {space.reason}" for space in graph.spaces[:5]
    )
    return f"no layer can lose a channel ({reasons})."


# === Checks ===


def check_not_wrapped(graph: ChannelGraph) -> None:
    """Raises if a model has compactors: operations whose role is that of a matrix."""
    if any(call.rule.role == MATRIX for call in graph.calls.values()):
        raise ValueError(
            f"The model `{graph.model.name}` already has compactors: it has been "
            "wrapped. Train it as it is, or `resrep_tf.convert` it first. "
            f"Received: model={graph.model!r}"
        )


def check_finite(graph: ChannelGraph) -> None:
    """Raises if a model has NaN or infinite weights: it cannot be pruned exactly."""
    bad = [
        calls[0].name
        for calls in graph.calls_by_op()
        if any(
            np.issubdtype(weight.dtype, np.floating) and not np.isfinite(weight).all()
            for weight in weights_of(calls[0].op)
        )
    ]
    if bad:
        raise ValueError(
            "Every weight must be finite. Load a model that trained without NaN. "
            f"Received: layers with NaN or infinite weights: {bad}"
        )
