"""Minimal structures: no channel can go, by brute force, and none is tried in vain."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.baselines.minimal import minimal_structure
from resrep_tf.surgery.slicing import slice_channels
from support.checks import randomise


def classifier(first=5, second=4):
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(first, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="bn1")(x))
    x = L.Conv2D(second, 3, padding="same", activation="relu", name="conv2")(x)
    x = L.GlobalAveragePooling2D()(x)
    return balance(randomise(keras.Model(inputs, L.Dense(3, name="logits")(x))))


def balance(model):
    """Makes all classes occur, so that every channel can matter."""
    mean = np.mean(model(images(200), training=False), axis=0)
    bias = model.get_layer("logits").bias
    bias.assign(bias - mean)
    return model


def images(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 6, 6, 2)).astype("float32")


def labelled(model, examples=60, wrong=12, seed=0):
    """Batches that the model classifies correctly, but for some."""
    x = images(examples, seed)
    y = np.argmax(model(x, training=False), axis=-1)
    y[:wrong] = (y[:wrong] + 1) % 3
    return [(x[start : start + 16], y[start : start + 16]) for start in (0, 16, 32, 48)]


def accuracy(model, data):
    right = [np.argmax(model(x, training=False), axis=-1) == y for x, y in data]
    return np.concatenate(right).mean()


def kill(model, name, channels):
    """Makes channels superfluous: nothing reads them any more."""
    layer = model.get_layer(name)
    kernel = np.array(layer.kernel)
    kernel[..., channels, :] = 0
    layer.kernel.assign(kernel)


def assert_minimal(model, structure, data, narrowed):
    """By the definition: with `narrowed(keep)` a model that lacks channels."""
    assert accuracy(narrowed(structure.keep), data) == structure.accuracy
    assert structure.accuracy >= structure.original_accuracy == accuracy(model, data)
    tried = 0
    for name, kept in structure.keep.items():
        for channel in np.flatnonzero(kept) if kept.sum() > 1 else []:
            fewer = kept.copy()
            fewer[channel] = False
            slim = narrowed({**structure.keep, name: fewer})
            assert accuracy(slim, data) < structure.original_accuracy
            tried += 1
    assert tried


@pytest.mark.parametrize("seed", [0, 1])
def test_no_channel_of_the_result_can_go(seed):
    model = classifier()
    data = labelled(model, seed=seed)
    before = model.get_weights()
    structure = minimal_structure(model, data, batch_size=7)
    assert structure.proven
    assert_minimal(model, structure, data, lambda keep: slice_channels(model, keep))
    slim = slice_channels(model, structure.keep)
    assert structure.flops == resrep_tf.count_flops(slim)
    assert structure.original_flops == resrep_tf.count_flops(model)
    assert structure.widths == {
        name: slim.get_layer(name).filters for name in ("conv1", "conv2")
    }
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_wrapped_model_loses_rows_of_its_compactors():
    pruner = resrep_tf.wrap(classifier())
    rng = np.random.default_rng(0)
    for compactor in pruner.compactors:
        noise = 0.05 * rng.normal(size=compactor.kernel.shape)
        compactor.kernel.assign(np.asarray(compactor.kernel) + noise)
    before = [np.asarray(c.kernel) for c in pruner.compactors]
    data = labelled(balance(pruner))
    structure = minimal_structure(pruner, data)
    assert_minimal(
        pruner,
        structure,
        data,
        lambda keep: resrep_tf.convert(pruner, keep=keep, verify=False),
    )
    for old, compactor in zip(before, pruner.compactors, strict=True):
        np.testing.assert_array_equal(old, compactor.kernel)


def test_a_channel_that_had_to_stay_gets_another_chance():
    inputs = keras.Input((3,))
    hidden = L.Dense(3, activation="relu", name="hidden")
    logits = L.Dense(2)
    model = keras.Model(inputs, logits(hidden(inputs)))
    hidden.set_weights([np.eye(3), np.zeros(3)])
    logits.set_weights([np.array([[0, 1], [0, 1], [0, 1]]), np.array([0.5, 0])])
    # The second unit is wrong about its example. Without it there is one right answer
    # to spare, and the first unit can go, which it could not before.
    data = [(np.eye(3, dtype="float32")[[0, 1, 2, 2]], np.array([1, 0, 1, 1]))]
    scores = {"hidden": np.arange(3.0)}
    structure = minimal_structure(model, data, scores=scores)
    np.testing.assert_array_equal(structure.keep["hidden"], [False, False, True])
    assert structure.accuracy == structure.original_accuracy == 3 / 4


def test_filters_give_the_structure_of_the_plain_model():
    model = classifier()
    data = labelled(model)
    plain = minimal_structure(model, data)
    wrapped = minimal_structure(resrep_tf.wrap(model, compactor="filters"), data)
    assert plain.widths == wrapped.widths
    assert plain.flops == wrapped.flops < plain.original_flops


def test_the_search_shows_how_far_it_has_got(capsys):
    model = classifier()
    structure = minimal_structure(model, labelled(model), verbose=1)
    last = capsys.readouterr().out.replace("\b", "").splitlines()[-1]
    assert f"{structure.evaluations}/Unknown" in last
    assert f"channels_left: {sum(structure.widths.values())}" in last
    minimal_structure(model, labelled(model))
    assert not capsys.readouterr().out


def test_superfluous_channels_go_in_blocks():
    model = classifier(first=48)
    dead = np.arange(48) >= 6
    kill(model, "conv2", dead)
    data = labelled(model, wrong=0)
    scores = {"conv1": np.where(dead, 0.0, 1.0), "conv2": np.ones(4)}
    structure = minimal_structure(model, data, scores=scores)
    assert not structure.keep["conv1"][dead].any()
    assert structure.proven
    # One at a time, the 42 dead ones alone would take as many.
    assert structure.evaluations < 42


def test_a_layer_keeps_its_least_width():
    model = classifier()
    for name in ("conv2", "logits"):
        kill(model, name, slice(None))  # The outputs are constant.
    data = labelled(model, wrong=0)
    for least in (1, 3):
        structure = minimal_structure(model, data, min_width=least)
        assert set(structure.widths.values()) == {least}
        assert structure.proven


def test_a_search_that_is_cut_short_says_so():
    model = classifier()
    data = labelled(model)
    structure = minimal_structure(model, data, max_evaluations=2)
    assert structure.evaluations == 2
    assert not structure.proven
    assert structure.accuracy >= structure.original_accuracy
    assert str(structure).endswith("% of the FLOPs can go, perhaps more")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": []}, r"`data` must not be empty. Received: data=\[\]"),
        ({"min_width": 0}, "Received: min_width=0"),
        ({"scores": {"conv1": np.ones(5)}}, r"Received: scores of shapes"),
        (
            {"data": [(np.zeros((2, 6, 6, 2)), np.eye(3)[:2])]},
            r"Received: labels of shape \(2, 3\) and type float64",
        ),
    ],
)
def test_errors(options, message):
    model = classifier()
    options = {"data": labelled(model), **options}
    with pytest.raises(ValueError, match=message):
        minimal_structure(model, **options)
