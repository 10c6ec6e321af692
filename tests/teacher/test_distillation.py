"""Teachers: the loss is the formula's, and nothing of them stays in the model."""

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras.distillation import FeatureDistillation, LogitsDistillation

import resrep_tf
from resrep_tf.teacher.distillation import Distillation, Student, prepare
from support.checks import precision, randomise

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype("float32")
Y = RNG.integers(0, 3, 8)
CROSSENTROPY = {
    "softmax": "sparse_categorical_crossentropy",
    None: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}


def network(activation="softmax", units=3, seed=0, **options):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,), name="image")
    x = L.Dense(5, activation="tanh", name="hidden", **options)(inputs)
    x = L.BatchNormalization(name="bn")(x)
    outputs = L.Dense(units, activation=activation, dtype="float32", name="out")(x)
    return randomise(keras.Model(inputs, outputs, name=f"net{seed}"), seed)


def student(model=None, **options):
    model = Student.of(network(seed=1) if model is None else model)
    model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY["softmax"], **options)
    return model


def pruner(**options):
    model = resrep_tf.wrap(network(seed=1))
    model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY["softmax"], **options)
    return model


def softmax(z):
    z = np.exp(z - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


def divergence(teacher, student, temperature):
    """The mean Kullback-Leibler divergence, from logits, times temperature squared."""
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    return temperature**2 * (p * np.log(p / q)).sum(-1).mean()


def as_logits(outputs, activation):
    outputs = np.asarray(outputs, np.float64)
    if activation == "softmax":
        return np.log(outputs)
    if activation == "sigmoid":
        z = np.log(outputs / (1 - outputs))
        return np.stack([z, 0 * z], -1)
    return outputs


# === The formula ===


@pytest.mark.parametrize("theirs", ["softmax", None])
@pytest.mark.parametrize("ours", ["softmax", None])
def test_the_loss_is_the_formula(theirs, ours):
    teacher, base = network(theirs), network(ours, seed=1, kernel_regularizer="l2")
    model = Student.of(base)
    model.compile("sgd", CROSSENTROPY[ours], teacher=teacher)
    outputs = model(X, training=True)
    loss = float(model.compute_loss(X, Y, outputs))
    ours_, theirs_ = as_logits(outputs, ours), as_logits(teacher(X), theirs)
    labels = -np.log(softmax(ours_)[np.arange(8), Y]).mean()
    penalty = 0.01 * np.square(base.get_layer("hidden").kernel).sum()
    expected = 0.3 * labels + 0.7 * divergence(theirs_, ours_, 4.0) + penalty
    assert loss == pytest.approx(expected, rel=1e-5)
    plain = float(model.compute_loss(X, Y, outputs, training=False))
    assert plain == pytest.approx(labels + penalty, rel=1e-5)


@pytest.mark.parametrize("units", [1, 4])
@pytest.mark.parametrize("theirs", ["sigmoid", None])
def test_sigmoids_are_yes_and_no(units, theirs):
    teacher = network(theirs, units)
    model = Student.of(network("sigmoid", units, seed=1))
    model.compile("sgd", "binary_crossentropy", teacher=teacher)
    outputs = model(X)
    found = float(model.teacher.loss(X, outputs))
    raw = np.asarray(teacher(X), np.float64)
    theirs_ = np.stack([raw, 0 * raw], -1) if theirs is None else as_logits(raw, theirs)
    expected = divergence(theirs_, as_logits(outputs, "sigmoid"), 4.0)
    assert found == pytest.approx(expected, rel=1e-4)


def test_losses_of_many_kinds():
    teacher, model = network(), student()
    outputs, taught = model(X), teacher(X)
    p, q = np.asarray(taught), np.asarray(outputs)
    kl = divergence(np.log(p), np.log(q), 2.0)
    squared = np.square(p - q).mean()
    for losses, expected in [
        (LogitsDistillation(2.0), kl),
        (LogitsDistillation(2.0, keras.losses.KLDivergence()), kl),
        (LogitsDistillation(2.0, "mse"), np.square(np.log(p / q) / 2).mean()),
        (FeatureDistillation(), squared),
        (FeatureDistillation(keras.losses.MeanSquaredError()), squared),
        ([LogitsDistillation(2.0), FeatureDistillation()], kl + squared),
    ]:
        model.teach(teacher, losses)
        assert float(model.teacher.loss(X, outputs)) == pytest.approx(
            expected, rel=1e-4
        )


def two_headed(seed, last="tanh"):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    outputs = [L.Dense(3, "softmax")(inputs), L.Dense(2, last)(inputs)]
    return keras.Model(inputs, outputs)


def test_several_outputs():
    teacher, base = two_headed(0, None), two_headed(1, None)
    model = Student.of(base)
    model.compile("sgd", ["sparse_categorical_crossentropy", "mse"], teacher=teacher)
    found = float(model.teacher.loss(X, model(X)))
    (a, b), (c, d) = teacher(X), model(X)
    first = divergence(as_logits(a, "softmax"), as_logits(c, "softmax"), 4.0)
    second = divergence(np.asarray(b), np.asarray(d), 4.0)
    assert found == pytest.approx(first + second, rel=1e-4)
    model = Student.of(two_headed(1))
    skipping = LogitsDistillation(4.0, ["kl_divergence", None])
    targets = ["sparse_categorical_crossentropy", "mse"]
    model.compile("sgd", targets, teacher=two_headed(0), distillation=skipping)
    assert model.teacher.loss(X, model(X)) > 0


def test_training_follows_the_gradient_of_the_formula():
    teacher, model = network(), pruner()
    weights = model.get_weights()
    model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY["softmax"], teacher=teacher)
    variable = model.get_layer("out").kernel
    with tf.GradientTape() as tape:
        outputs = model(X, training=True)
        p, q = (tf.nn.softmax(tf.math.log(o) / 4) for o in (teacher(X), outputs))
        kl = tf.reduce_mean(tf.reduce_sum(p * tf.math.log(p / q), -1))
        labels = keras.losses.sparse_categorical_crossentropy(Y, outputs)
        total = 0.3 * tf.reduce_mean(labels) + 0.7 * 16 * kl
    gradient = tape.gradient(total, variable.value)
    model.set_weights(weights)
    before, theirs = np.array(variable), teacher.get_weights()
    model.train_on_batch(X, Y)
    np.testing.assert_allclose(
        np.asarray(variable), before - 0.1 * np.asarray(gradient), rtol=1e-4, atol=1e-6
    )
    for old, new in zip(theirs, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)  # Its BatchNorm stands still, too.


@pytest.mark.parametrize("make", [student, pruner])
def test_without_weight_it_is_as_without_a_teacher(make):
    weights = []
    for options in ({}, {"teacher": network(), "distillation": Distillation(0.0)}):
        model = make(**options)
        history = keras.Model.fit(model, X, Y, 4, 3, 0, shuffle=False)
        assert "distillation_loss" not in history.history
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("make", [student, pruner])
def test_the_student_comes_nearer_to_the_teacher(make):
    teacher = network()
    model = make(teacher=teacher, distillation=Distillation(1.0))
    before = float(model.teacher.loss(X, model(X)))
    history = keras.Model.fit(
        model, X, Y, 8, 30, 0, validation_data=(X, Y), shuffle=False
    ).history
    assert float(model.teacher.loss(X, model(X, training=False))) < 0.5 * before
    losses = history["distillation_loss"]
    assert losses[-1] < 0.5 * losses[0]
    np.testing.assert_allclose(losses, history["loss"], rtol=1e-4)
    assert "val_distillation_loss" not in history
    assert set(model.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss"}


# === Precision, XLA, replicas ===


@pytest.mark.parametrize(
    "policies",
    [
        ("mixed_float16", "float32"),
        ("float32", "mixed_float16"),
        ("mixed_bfloat16", "mixed_float16"),
    ],
)
def test_mixed_precision(policies):
    models = []
    for seed, policy in enumerate(policies):
        keras.config.set_dtype_policy(policy)
        models.append(network(seed=seed))
    teacher, base = models
    model = resrep_tf.wrap(base)
    model.compile(keras.optimizers.SGD(0.1), CROSSENTROPY["softmax"], teacher=teacher)
    loss = model.teacher.loss(X, model(X))
    assert loss.dtype == "float32"
    p, q = np.log(teacher(X)), np.log(model(X))
    assert float(loss) == pytest.approx(divergence(p, q, 4.0), rel=1e-3)
    history = keras.Model.fit(model, X, Y, 8, 20, 0, shuffle=False).history
    assert history["distillation_loss"][-1] < history["distillation_loss"][0]


def test_double_precision_is_kept():
    with precision("float64"):
        model = student(network(seed=1), teacher=network())
        assert model.teacher.loss(X, tf.cast(model(X), tf.float64)).dtype == "float64"


@pytest.mark.parametrize("make", [student, pruner])
def test_xla(make):
    results = []
    for jit in (False, True):
        model = make(teacher=network(), jit_compile=jit)
        history = keras.Model.fit(model, X, Y, 4, 2, 0, shuffle=False).history
        results.append([*history["loss"], *history["distillation_loss"]])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4)


@pytest.mark.slow
def test_replicas():
    """In a process of its own, where there are two devices."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "tensorflow"}
    result = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]


def check_replicas():
    """Two replicas do what one device does."""
    devices = tf.config.list_physical_devices("CPU")[:1]
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(devices[0], logical)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def train(scope, inside):
        with precision("float64"):
            teacher = None if inside else plain(0)
            with scope:
                teacher = teacher or plain(0)
                model = resrep_tf.wrap(plain(1))
                optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
                model.compile(optimizer, CROSSENTROPY["softmax"], teacher=teacher)
            return model, keras.Model.fit(model, X, Y, 8, 4, 0, shuffle=False).history

    def plain(seed):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((6,))
        x = L.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
        return keras.Model(inputs, L.Dense(3, activation="softmax")(x))

    one, history = train(contextlib.nullcontext(), True)
    for inside in (True, False):
        two, histories = train(strategy.scope(), inside)
        for a, b in zip(one.variables, two.variables, strict=True):
            for part in strategy.experimental_local_results(b.value):
                np.testing.assert_allclose(part, a.value, rtol=1e-10, atol=1e-13)
        for name in ("loss", "distillation_loss"):
            np.testing.assert_allclose(history[name], histories[name], rtol=1e-5)


# === The teacher is no part of the model ===


@pytest.mark.parametrize("make", [student, pruner])
def test_nothing_of_the_teacher_is_in_the_model(make, tmp_path):
    alone, taught = make(), make(teacher=network())
    keras.Model.fit(taught, X, Y, verbose=0)
    for name in ("variables", "weights", "trainable_variables", "layers"):
        names = [[v.name for v in getattr(m, name)] for m in (alone, taught)]
        assert names[0] == names[1]
    assert taught.count_params() == alone.count_params()
    assert "net0" not in json.dumps(taught.get_config())
    for number, model in enumerate((alone, taught)):
        model.save(tmp_path / f"{number}.keras")
    stored = []
    for number in range(2):
        with zipfile.ZipFile(tmp_path / f"{number}.keras") as archive:
            (tmp_path / "weights.h5").write_bytes(archive.read("model.weights.h5"))
        with h5py.File(tmp_path / "weights.h5") as file:
            found = []
            file.visit(found.append)
            stored.append(found)
    assert stored[0] == stored[1]
    taught.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(X), taught(X), rtol=1e-5)


@pytest.mark.parametrize("make", [student, pruner])
def test_a_loaded_model_asks_for_its_teacher(make, tmp_path):
    distillation = Distillation(0.4, (LogitsDistillation(3.0),))
    model = make(teacher=network(), distillation=distillation)
    keras.Model.fit(model, X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model(X))
    loaded.evaluate(X, Y, verbose=0)  # Needs no teacher.
    with pytest.raises(ValueError, match="Received: no model for the teacher `net0`"):
        keras.Model.fit(loaded, X, Y, verbose=0)
    loaded.save(tmp_path / "again.keras")  # Still without one.
    loaded = keras.models.load_model(tmp_path / "again.keras")
    with pytest.raises(ValueError, match="which is not saved with it"):
        loaded.train_on_batch(X, Y)
    loaded.teach(network())  # As it was taught before.
    assert loaded.teacher.weight == 0.4
    for trained in (model, loaded):
        keras.Model.fit(trained, X, Y, 4, 2, 0, shuffle=False)
    for a, b in zip(model.variables, loaded.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    loaded.teach(None)
    assert "distillation_loss" not in loaded.train_on_batch(X, Y, return_dict=True)


def test_a_student_trains_the_model_it_was_made_of():
    base = network(seed=1)
    before = base.get_weights()
    model = student(base, teacher=network())
    model.fit(X, Y, verbose=0)
    assert any((a != b).any() for a, b in zip(before, base.get_weights(), strict=True))
    np.testing.assert_array_equal(model(X), base(X))


def test_distillation_can_be_stored():
    losses = (LogitsDistillation(3.0), FeatureDistillation())
    config = keras.saving.serialize_keras_object(Distillation(0.2, losses))
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert again.weight == 0.2
    assert again.losses[0].temperature == 3.0
    assert isinstance(again.losses[1], FeatureDistillation)


# === Refusals, before training ===


def test_refusals():
    with pytest.raises(ValueError, match=r"must have the outputs .*\(None, 4\)"):
        student(teacher=network(units=4))
    with pytest.raises(TypeError, match="Received: distillation=3"):
        student(teacher=network(), distillation=3)
    with pytest.raises(ValueError, match="`distillation` needs a `teacher`"):
        student(distillation=Distillation())


def test_other_refusals():
    model = student()
    with pytest.raises(ValueError, match=r"must have the inputs .*\(None, 7\)"):
        model.teach(keras.Sequential([keras.Input((7,)), L.Dense(3)]))
    with pytest.raises(TypeError, match="Received: teacher=3"):
        model.teach(3)
    with pytest.raises(ValueError, match="must not share weights"):
        model.teach(model)
    with pytest.raises(ValueError, match=r"Received: weight=1\.5"):
        Distillation(1.5)
    with pytest.raises(ValueError, match=r"with the layers \['hidden', None\]"):
        Distillation(losses=(FeatureDistillation(teacher_layer_name="hidden"),))
    with pytest.raises(ValueError, match="needs a loss for each of them"):
        model.teach(network(), LogitsDistillation(2.0, ["mse", "mse"]))
    for activation, units in [("tanh", 3), (None, 1), ("relu", 3)]:
        base = network(activation, units, seed=1)
        with pytest.raises(ValueError, match="Logits can be distilled from a softmax"):
            prepare(network(activation, units), Student.of(base), Distillation())


if __name__ == "__main__":
    check_replicas()
