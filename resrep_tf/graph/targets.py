"""Which spaces of channels the user means by `targets`, and whether they can go."""

import difflib
import re
from collections.abc import Callable, Sequence

import keras
import numpy as np

from resrep_tf.graph.channel_graph import ChannelGraph, Space
from resrep_tf.pruning.compactor import Compactor

Targets = str | Sequence[str] | re.Pattern | Callable[[keras.Layer], bool] | None


def choose_spaces(graph: ChannelGraph, targets: Targets) -> list[Space]:
    """The spaces that `targets` means, or an error that says what is wrong."""
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
    if any(isinstance(call.op, Compactor) for call in graph.calls.values()):
        raise ValueError(
            f"The model `{graph.model.name}` already has compactors: it has been "
            "wrapped. Train it as it is, or `resrep_tf.convert` it first. "
            f"Received: model={graph.model!r}"
        )


def check_finite(graph: ChannelGraph) -> None:
    """A model with NaN or infinite weights cannot be pruned losslessly."""
    bad = []
    for layer in {id(c.op): c.op for c in graph.calls.values()}.values():
        weights = layer.get_weights() if isinstance(layer, keras.Layer) else []
        if any(
            np.issubdtype(w.dtype, np.floating) and not np.isfinite(w).all()
            for w in weights
        ):
            bad.append(layer.name)
    if bad:
        raise ValueError(
            "Every weight must be finite. Load a model that trained without NaN. "
            f"Received: layers with NaN or infinite weights: {bad}"
        )
