"""Follows a fact about channels through a graph, to a fixed point."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.rules import Call, Tensor

Facts = dict[int, np.ndarray]


@dataclass(frozen=True, eq=False)
class Link:
    """Hands a tensor into or out of a nested model."""

    source: Tensor
    target: Tensor


def propagate(
    steps: Sequence[Call | Link],
    start: Callable[[Tensor], np.ndarray],
    transfer: Callable[[Call, list[np.ndarray]], list[np.ndarray]],
    join: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Facts:
    """Computes the fact of every tensor, keyed by `id(tensor)`.

    Args:
        steps: Calls and links in the order in which they run.
        start: Returns the fact of a tensor that nothing in the graph makes.
        transfer: Returns the facts of a call's outputs from those of its inputs.
        join: Combines the facts that two links bring to one tensor: a nested model
            that is called at several places knows only what holds at all of them.
            It must move in one direction, which makes the loop end.
    """
    facts: Facts = {}
    entered: dict[int, Facts] = {}

    def get(tensor: Tensor) -> np.ndarray:
        return facts[id(tensor)] if id(tensor) in facts else start(tensor)

    while True:
        changed = False
        for step in steps:
            if isinstance(step, Call):
                outputs = transfer(step, [get(tensor) for tensor in step.inputs])
                for tensor, fact in zip(step.outputs, outputs, strict=True):
                    facts[id(tensor)] = fact
                continue
            links = entered.setdefault(id(step.target), {})
            links[id(step)] = get(step.source)
            joined = functools.reduce(join, links.values())
            before = facts.get(id(step.target))
            # Another call of the nested model can take back what held so far.
            changed |= len(links) > 1 and not np.array_equal(
                before, joined, equal_nan=True
            )
            facts[id(step.target)] = joined
        if not changed:
            return facts
