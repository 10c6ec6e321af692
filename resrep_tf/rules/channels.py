"""The ids of channels while a graph is read: which are equal, and which must stay."""

from typing import Any

import numpy as np


class Channels:
    """The ids of channels while a graph is read: which are equal, and which must stay.

    Ids are tied with a union-find, element by element, so that all fixed connections
    of channels (concatenation, repetition, permutation) are followed exactly.
    """

    def __init__(self):
        self._parent = np.zeros(0, np.int64)
        self._pins: list[tuple[np.ndarray, str]] = []
        self._weights: dict[tuple[int, str], np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, width: int) -> np.ndarray:
        """Returns new ids."""
        start = len(self._parent)
        ids = np.arange(start, start + width, dtype=np.int64)
        self._parent = np.concatenate([self._parent, ids])
        return ids

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns the smallest id that each of these is tied to."""
        roots = self._parent[ids]
        while not np.array_equal(roots, above := self._parent[roots]):
            roots = above
        self._parent[ids] = roots
        return roots

    def tie(self, a: np.ndarray, b: np.ndarray) -> None:
        """Makes `a[i]` and `b[i]` the same channel for every i."""
        while True:
            a, b = self.find(a), self.find(b)
            differ = a != b
            if not differ.any():
                return
            # An assignment with repeated indices stores only one of the values. So a
            # root that must be tied to several others is tied to one of them per
            # iteration.
            low, high = np.minimum(a, b)[differ], np.maximum(a, b)[differ]
            self._parent[high] = low

    def bundle(self, ids: np.ndarray, groups: int) -> None:
        """Ties the channels at the same position of all groups."""
        first, *others = np.split(ids, groups)
        for other in others:
            self.tie(first, other)

    def pin(self, ids: np.ndarray, reason: str, first: bool = False) -> None:
        """Records that these channels must stay, and why (the first reason counts)."""
        if len(ids):
            self._pins.insert(0 if first else len(self._pins), (ids, reason))

    def pinned(self, width: int, reason: str) -> np.ndarray:
        """Returns new ids that must stay."""
        ids = self.new(width)
        self.pin(ids, reason)
        return ids

    def of_weights(self, op: Any, side: str, ids: np.ndarray) -> np.ndarray:
        """Ties `ids` to those on which an operation was called earlier.

        A layer called at several places has one set of weights, so all its calls
        lose the same channels.
        """
        known = self._weights.setdefault((id(op), side), ids)
        self.tie(known, ids)
        return ids

    def made_by(self, op: Any, width: int) -> np.ndarray:
        """Returns the channels a layer's weights create: the same at every call."""
        key = (id(op), "made")
        if key not in self._weights:
            self._weights[key] = self.new(width)
        return self._weights[key]

    def reasons(self) -> dict[int, str]:
        """Returns the first reason given for each pinned channel, by root id."""
        found: dict[int, str] = {}
        for ids, reason in self._pins:
            for root in np.unique(self.find(ids)).tolist():
                found.setdefault(root, reason)
        return found
