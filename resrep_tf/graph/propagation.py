"""Computes facts about channels for a whole graph, until nothing changes."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from resrep_tf.rules import Call, Tensor

Facts = dict[int, np.ndarray]


@dataclass(frozen=True, eq=False)
class Link:
    """Passes a tensor into or out of a nested model."""

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
        start: Returns the fact of a tensor that no call of the graph makes.
        transfer: Returns the facts of a call's outputs, given those of its inputs.
        join: Combines the facts that two links pass to one tensor. For a nested model
            that is called at several places, a fact must be true at all of them.
            Facts may only change in one direction, so that the loop ends.
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
            # Another call of the nested model can make an earlier fact untrue.
            changed |= len(links) > 1 and not np.array_equal(
                before, joined, equal_nan=True
            )
            facts[id(step.target)] = joined
        if not changed:
            return facts
