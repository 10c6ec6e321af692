"""Wrong surgery is refused, whatever is wrong and whatever the model ends with."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.surgery.verify import TOLERANCES, compare, random_inputs
from support.checks import forget_at_random, randomise
from support.faults import KINDS, plant
from support.models.graphs import GRAPHS
from support.models.random_models import random_model

LOGITS = "the_logits"
REFUSAL = "does not compute what the wrapped one does"
# A fault counts if it changes the logits by more than this on other inputs than those
# that the verification looks at: ten times what rounding may do.
CHANGED = 10 * TOLERANCES["float32"]


def _saturated(x):
    return L.Softmax()(L.Rescaling(1e3)(x))


def _nested(x):
    inputs = keras.Input(x.shape[1:])
    return keras.Model(inputs, L.Softmax()(inputs), name="ending")(x)


# Every usual end of a network, behind logits that are a layer of their own.
HEADS = {
    "logits": lambda x: x,
    "softmax": lambda x: L.Softmax()(x),
    "sigmoid": lambda x: L.Activation("sigmoid")(x),
    "log_softmax": lambda x: keras.ops.log_softmax(x),
    "softmax of ops": lambda x: keras.ops.softmax(x),
    "saturated": _saturated,
    "saturated sigmoid": lambda x: keras.ops.sigmoid(1e3 * x),
    "dead": lambda x: L.ReLU()(x - 1e4),
    "clipped": lambda x: keras.ops.clip(x, -1e-3, 1e-3),
    "reshaped": lambda x: L.Dropout(0.5)(L.Reshape((-1, 1))(L.Softmax()(x))),
    "nested": _nested,
}
# Activations of the last layer itself.
INSIDE = ("softmax", "sigmoid", "log_softmax", "relu", "tanh")


def with_head(body, head):
    """A model that ends with a head on all that `body` gives."""
    parts = [L.Flatten()(tensor) for tensor in body.outputs]
    x = L.Concatenate()(parts) if len(parts) > 1 else parts[0]
    if head in INSIDE:
        outputs = L.Dense(4, activation=head, name=LOGITS)(x)
    else:
        outputs = HEADS[head](L.Dense(4, name=LOGITS)(x))
    return keras.Model(body.inputs, outputs)


def body_of(seed):
    names = sorted(GRAPHS)
    if seed % 2:
        return GRAPHS[names[seed // 2 % len(names)]]()
    return random_model(seed)


def logits(model, inputs):
    """What the layer before the head gives, without its activation."""
    layer = model.get_layer(LOGITS)
    part = keras.Model(model.inputs, layer.input)(inputs, training=False)
    kernel, bias = layer.get_weights()
    return np.asarray(part, "float64") @ kernel + bias


def faults(seed, count, monkeypatch):
    """Plants faults into one random network, one after the other.

    Returns:
        For each, whether it was refused; without those that nobody could see.
    """
    rng = np.random.default_rng(seed)
    heads = (*HEADS, *INSIDE)
    head = heads[seed % len(heads)]
    model = randomise(with_head(body_of(seed), head), seed)
    try:
        pruner = resrep_tf.wrap(model)
    except ValueError:
        return []  # Nothing can be pruned in this random graph.
    forget_at_random(pruner, rng)
    resrep_tf.convert(pruner)  # Without a fault, nothing is refused.
    found = []
    for _ in range(count):
        kind = KINDS[rng.integers(len(KINDS))]
        first = int(rng.integers(1 + len(pruner.graph.calls_by_op()) // 2))
        refused = is_refused(pruner, kind, first, seed, monkeypatch)
        if refused is False:
            print(f"slipped through: seed {seed}, {kind} from {first}, head {head}")
        found += [] if refused is None else [refused]
    return found


def is_refused(pruner, kind, first, seed, monkeypatch):
    """Returns whether a fault is refused; None if it is none or cannot be seen."""
    with monkeypatch.context() as patch:
        planted = plant(patch, kind, first, np.random.default_rng(seed))
        try:
            resrep_tf.convert(pruner)
        except (ValueError, IndexError) as error:
            # Others are so wrong that no model can be built.
            return True if REFUSAL in str(error) else None
    if not planted:
        return None
    with monkeypatch.context() as patch:
        plant(patch, kind, first, np.random.default_rng(seed))
        wrong = resrep_tf.convert(pruner, verify=False)
    inputs = random_inputs(pruner, pruner.graph.input_shapes, batch=32, seed=seed + 1)
    change = compare(logits(pruner, inputs), logits(wrong, inputs))
    outputs = compare(pruner(inputs, training=False), wrong(inputs, training=False))
    return False if max(change, outputs) > CHANGED else None


def check(seeds, count, at_least, monkeypatch):
    found = [each for seed in seeds for each in faults(seed, count, monkeypatch)]
    print(f"{len(found)} faults planted, {found.count(False)} slipped through")
    assert all(found)
    assert len(found) >= at_least


unfinished = pytest.mark.filterwarnings(
    "ignore::resrep_tf.convert.conversion.UnfinishedWarning"
)


@unfinished
def test_planted_faults_are_refused(monkeypatch):
    check(range(6), 4, 10, monkeypatch)


@pytest.mark.slow
@unfinished
@pytest.mark.parametrize("first", range(1000, 1160, 40))
def test_many_planted_faults_are_refused(first, monkeypatch):
    check(range(first, first + 40), 5, 125, monkeypatch)


# === What random inputs and the outputs of a model do not show ===


def _dense(activation="softmax", dtype=None, shift=0.0):
    inputs = keras.Input((5,))
    x = L.Dense(6, name="first", dtype=dtype)(inputs)
    x = L.BatchNormalization(dtype=dtype)(x)
    x = L.ReLU(dtype=dtype)(x - shift if shift else x)
    x = L.Dense(6, name="second", activation="relu", dtype=dtype)(x)
    x = L.Dense(3, activation=activation, dtype=dtype)(x)
    model = randomise(keras.Model(inputs, x))
    pruner = resrep_tf.wrap(model, targets=["first"])
    forget_at_random(pruner, np.random.default_rng(0))
    return pruner


def _refuses(pruner, kind, monkeypatch, **arguments):
    with monkeypatch.context() as patch:
        planted = plant(patch, kind, 2, np.random.default_rng(0))
        with pytest.raises(ValueError, match=REFUSAL) as error:
            resrep_tf.convert(pruner, **arguments)
    assert planted
    return str(error.value)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_low_precision_hides_nothing(policy, monkeypatch):
    pruner = _dense(dtype=policy)
    _, report = resrep_tf.convert(pruner, return_report=True)
    assert f"in float32 and {policy.removeprefix('mixed_')}" in str(report)
    # One hundredth is rounding in bfloat16, and a fault in float32.
    assert "in float32" in _refuses(pruner, "wrong scale", monkeypatch)


def test_the_users_own_data_are_looked_at(monkeypatch):
    # Nothing random reaches beyond this threshold.
    pruner = _dense(shift=1e6)
    plain, fault = np.ones((8, 5), "float32"), "wrong output slice"
    with monkeypatch.context() as patch:
        planted = plant(patch, fault, 2, np.random.default_rng(0))
        resrep_tf.convert(pruner)
        assert planted
    large = 1e9 * np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((large, np.zeros(8))).batch(4)
    for verify in (data, large, (large, np.zeros(8)), [plain, large]):
        assert "given ones" in _refuses(pruner, fault, monkeypatch, verify=verify)
    _, report = resrep_tf.convert(pruner, verify=data, return_report=True)
    assert "64 random inputs and 8 of the given ones, in float32" in str(report)


@pytest.mark.parametrize("verify", [float("nan"), -1.0, [], "yes", None, float("inf")])
def test_verify_must_mean_something(verify):
    with pytest.raises((ValueError, TypeError), match=r"`verify` must be .*Received:"):
        resrep_tf.convert(_dense(), verify=verify)
