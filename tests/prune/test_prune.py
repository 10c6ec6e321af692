"""One call does what the parts do."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

import resrep_tf
from resrep_tf.prune.compiling import compiled_like
from support.checks import assert_plain

EPOCHS = 8


def trained():
    """A network that tells images apart by the channel that is brightest."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization(name="norm")(x))
    x = L.Conv2D(8, 3, strides=2, activation="relu", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, L.Dense(3, activation="softmax", name="head")(x))
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,  # Compiling takes far longer than training.
    )
    return model


def arrays(count, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    images = rng.normal(size=(count, 8, 8, 3)).astype("float32")
    images[np.arange(count), :, :, labels] += 0.5
    return images, labels


@pytest.fixture(scope="module")
def model():
    model = trained()
    model.fit(*arrays(96), epochs=10, batch_size=16, verbose=0)
    return model


@pytest.fixture(scope="module")
def outcome(model):
    weights = model.get_weights()
    data = tf.data.Dataset.from_tensor_slices(arrays(96)).batch(16)
    slim, report = resrep_tf.prune(
        model, data, arrays(64, 1), 0.5, EPOCHS, verbose=0, return_report=True
    )
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    return slim, report


def test_the_target_is_met_and_the_result_is_plain(outcome):
    slim, report = outcome
    assert_plain(slim)
    assert report.conversion.flops_removed >= 0.5
    assert 1 - resrep_tf.count_flops(slim) / report.conversion.flops >= 0.5


def test_the_rest_of_the_epochs_goes_to_the_narrower_network(outcome):
    _, report = outcome
    assert report.shrinking is not None and report.plan is not None
    assert len(report.history["loss"]) == EPOCHS
    assert len(report.history["flops_removed"]) < EPOCHS


def test_accuracies_are_those_of_evaluate(model, outcome):
    slim, report = outcome
    for network, found in [(model, report.before), (slim, report.after)]:
        right = network.evaluate(*arrays(64, 1), verbose=0, return_dict=True)
        assert found == pytest.approx(right)
    assert report.after["accuracy"] > 0.8
    assert f"accuracy {report.before['accuracy']:.4f} -> " in str(report)


def test_the_result_is_compiled_as_the_model(model, outcome):
    slim, _ = outcome
    assert type(slim.optimizer) is keras.optimizers.SGD
    assert slim.optimizer.get_config() == model.optimizer.get_config()
    assert slim.optimizer is not model.optimizer
    assert slim.loss == model.loss


def test_a_run_too_short_to_forget_is_converted_as_it_is(model):
    with pytest.warns(UserWarning):
        _, report = resrep_tf.prune(
            model,
            arrays(32),
            epochs=1,
            schedule="paper",
            verbose=0,
            return_report=True,
        )
    assert report.shrinking is None
    assert report.before == report.after == {}


def test_further_arguments_are_those_of_the_selection(model, capsys):
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(watch.model)
    )
    slim, report = resrep_tf.prune(
        model,
        arrays(96),
        epochs=EPOCHS,
        targets=["first"],
        teacher=model,
        batch_size=16,
        callbacks=[watch],
        params_target=0.2,
        round_to=2,
        verbose=2,
        return_report=True,
    )
    assert slim.get_layer("second").filters == 8
    assert slim.get_layer("first").filters % 2 == 0
    assert slim.get_layer("first").filters < 8
    assert len(seen) == 2
    assert "distillation" in "".join(report.history)
    assert "parameters" in capsys.readouterr().out
    assert_plain(slim)


def test_a_model_that_is_not_compiled_is_refused():
    model = keras.Sequential([keras.Input((8, 8, 3)), L.Conv2D(2, 3)])
    with pytest.raises(ValueError, match=r"must be compiled.*Received: model="):
        resrep_tf.prune(model, arrays(8))


@pytest.mark.parametrize("data", [None, "photos/train", Path("photos"), 3])
def test_data_that_are_none(data):
    for name in ("train", "validation")[: 1 if data is None else 2]:
        arguments = {"train": arrays(8), name: data}
        message = f"`{name}` must be what `fit` takes.*Received: {name}="
        with pytest.raises(TypeError, match=message):
            resrep_tf.prune(trained(), **arguments)


def test_a_path_is_no_model():
    with pytest.raises(TypeError, match=r"must be a `keras.Model`.*'my.keras'"):
        resrep_tf.prune("my.keras", arrays(8))


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "20", True, None])
def test_epochs_that_are_none(epochs):
    with pytest.raises(ValueError, match=r"`epochs` must be.*Received: epochs="):
        resrep_tf.prune(trained(), arrays(8), epochs=epochs)


def test_losses_and_metrics_of_the_users_are_kept():
    def loss(labels, outputs):
        return keras.losses.sparse_categorical_crossentropy(labels, outputs)

    model = trained()
    rate = keras.optimizers.schedules.CosineDecay(0.1, 7)
    model.compile(
        keras.optimizers.Adam(rate, beta_1=0.8),
        loss,
        metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="second")],
        jit_compile=False,
    )
    arguments = compiled_like(model)
    optimizer = arguments["optimizer"]
    assert optimizer.get_config() == model.optimizer.get_config()
    assert arguments["loss"] is loss
    (metric,) = arguments["metrics"]
    assert (metric.name, metric.k) == ("second", 2)
    assert arguments["jit_compile"] is False


def test_a_metric_that_cannot_be_made_anew_is_named():
    def unknown(labels, outputs):
        return outputs

    model = trained()
    model.compile("sgd", "mse", metrics=[unknown])
    with pytest.raises(ValueError, match=r"register_keras_serializable.*Received"):
        compiled_like(model)
