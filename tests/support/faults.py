"""Faults of many kinds, which tests plant into a conversion one at a time."""

import keras
import numpy as np

from resrep_tf.rules import Fusion
from resrep_tf.surgery.narrow import Narrower

# === Faults of a layer's weights: from a layer and its weights to wrong ones ===


def _kernel(change):
    """Returns a fault that changes the first weight with several axes."""

    def fault(op, weights, rng):
        for index, weight in enumerate(weights):
            if np.ndim(weight) >= 2:
                wrong = change(np.asarray(weight), rng)
                return None if wrong is None else _with(weights, index, wrong)
        return None

    return fault


def _last(change):
    """Returns a fault that changes the last weight, a bias or a statistic."""

    def fault(op, weights, rng):
        if not weights or np.ndim(weights[-1]) != 1:
            return None
        return _with(weights, len(weights) - 1, change(np.asarray(weights[-1]), rng))

    return fault


def _with(weights, index, value):
    return [value if i == index else w for i, w in enumerate(weights)]


def _swapped(kernel, rng):
    if kernel.ndim == 4 and kernel.shape[0] == kernel.shape[1] > 1:
        return np.swapaxes(kernel, 0, 1)
    return kernel.T if kernel.ndim == 2 and kernel.shape[0] == kernel.shape[1] else None


def _one_entry(kernel, rng):
    wrong = kernel.copy()
    wrong[tuple(rng.integers(n) for n in wrong.shape)] += np.abs(kernel).max()
    return wrong


WEIGHTS = {
    "wrong input slice": _kernel(lambda k, rng: np.roll(k, 1, axis=-2)),
    "wrong output slice": _kernel(lambda k, rng: np.roll(k, 1, axis=-1)),
    "reversed channels": _kernel(lambda k, rng: k[..., ::-1]),
    "shuffled channels": _kernel(lambda k, rng: rng.permutation(k, axis=-1)),
    "swapped axes": _kernel(_swapped),
    "flipped kernel": _kernel(lambda k, rng: k[::-1]),
    "one wrong entry": _kernel(_one_entry),
    "one filter lost": _kernel(lambda k, rng: k * (np.arange(k.shape[-1]) > 0)),
    "one input lost": _kernel(
        lambda k, rng: k * (np.arange(k.shape[-2]) > 0)[:, np.newaxis]
    ),
    "wrong scale": _kernel(lambda k, rng: 1.01 * k),
    "wrong sign": _kernel(lambda k, rng: -k),
    "bias twice": _last(lambda b, rng: 2 * b),
    "bias lost": _last(lambda b, rng: 0 * b + 1e-3),
    "bias shifted": _last(lambda b, rng: np.roll(b, 1)),
}


# === Faults of a rule: what it is told about channels, constants and merging ===


def _lost_constants(keeps, fusion):
    return _with_constants(keeps, 0.0), fusion


def _doubled_constants(keeps, fusion):
    return _with_constants(keeps, 2.0), fusion


def _with_constants(keeps, factor):
    """Multiplies the constants of channels that go; NaN marks those without."""
    if not any(
        (constants[~np.isnan(constants)] != 0).any() for constants in keeps.constants
    ):
        return None
    return _changed(keeps, constants=[factor * c for c in keeps.constants])


def _other_inputs(keeps, fusion):
    return _rolled(keeps, "inputs"), fusion


def _other_outputs(keeps, fusion):
    return _rolled(keeps, "outputs"), fusion


def _rolled(keeps, name):
    right = getattr(keeps, name)
    wrong = [np.roll(kept, 1) for kept in right]
    if all(np.array_equal(a, b) for a, b in zip(right, wrong, strict=True)):
        return None
    return _changed(keeps, **{name: wrong})


def _nothing_merged(keeps, fusion):
    empty = all(part is None for part in vars(fusion).values())
    return (None if empty else keeps), Fusion()


def _changed(keeps, **values):
    fields = ("inputs", "outputs", "constants", "replaced")
    return type(keeps)(**{name: getattr(keeps, name) for name in fields} | values)


# Each returns None for the channels where it would change nothing.
RULES = {
    "constants lost": _lost_constants,
    "constants doubled": _doubled_constants,
    "other inputs kept": _other_inputs,
    "other outputs kept": _other_outputs,
    "BatchNorm and compactor lost": _nothing_merged,
}


# === Faults of the operation itself ===


def _activation_lost(op):
    if getattr(op, "activation", keras.activations.linear) is keras.activations.linear:
        return False
    op.activation = keras.activations.linear
    return True


def _other_epsilon(op):
    if not isinstance(op, keras.layers.BatchNormalization):
        return False
    op.epsilon = 0.5
    return True


OPS = {"activation lost": _activation_lost, "wrong epsilon": _other_epsilon}
KINDS = (*WEIGHTS, *RULES, *OPS)


def plant(monkeypatch, kind, first, rng):
    """Makes surgery wrong at one operation.

    Args:
        monkeypatch: Undoes it.
        kind: One of `KINDS`.
        first: The number of the first operation to do it at; it happens at the first
            one from there on where this kind of fault is possible.
        rng: For the kinds that are random.

    Returns:
        A list that is filled with the name of the operation when it is made.
    """
    planted, made = [], []
    right = Narrower.make

    def make(self, call):
        made.append(call)
        if planted or len(made) <= first:
            return right(self, call)
        return _by_rule(self, call) if kind in RULES else _of_layer(self, call)

    def _by_rule(self, call):
        keeps, fusion = self.keeps(call), self.fusion(call)
        wrong, other = RULES[kind](keeps, fusion)
        if wrong is None:
            return call.rule.narrow(call, keeps, fusion)
        planted.append(call.name)
        return call.rule.narrow(call, wrong, other)

    def _of_layer(self, call):
        op, weights = right(self, call)
        if kind in OPS:
            planted.extend([call.name] if OPS[kind](op) else [])
            return op, weights
        wrong = WEIGHTS[kind](op, list(weights), rng)
        if wrong is None or _same(wrong, weights):
            return op, weights
        planted.append(call.name)
        return op, wrong

    monkeypatch.setattr(Narrower, "make", make)
    return planted


def _same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
