"""The compactor layer: identity at the start, and all that a Keras layer must do."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.pruning.compactor import KINDS, Compactor, SplitActivation
from support.checks import precision

SIZES = {2: (7, 5), 3: (2, 9, 5), 4: (2, 4, 3, 5), 5: (2, 3, 2, 4, 5)}


def inputs_of(rank, axis=-1, seed=0):
    values = np.random.default_rng(seed).normal(size=SIZES[rank]).astype("float32")
    return np.moveaxis(values, -1, axis)


# === What it computes ===


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("rank", SIZES)
def test_it_starts_as_the_identity_bit_for_bit(rank, axis, kind):
    inputs = inputs_of(rank, axis)
    compactor = KINDS[kind](kind=kind, axis=axis)
    outputs = np.asarray(compactor(inputs))
    assert outputs.dtype == np.float32
    np.testing.assert_array_equal(outputs, inputs)
    assert compactor.compute_output_shape((None, *inputs.shape[1:])) == (
        None,
        *inputs.shape[1:],
    )
    symbolic = compactor(keras.Input(inputs.shape[1:]))
    assert symbolic.shape == (None, *inputs.shape[1:])


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("rank", SIZES)
def test_rows_are_columns_of_the_kernel(rank, axis):
    """Output channel j is the sum over i of input channel i times kernel[i, j]."""
    inputs = inputs_of(rank, axis).astype("float64")
    kernel = np.random.default_rng(1).normal(size=(5, 5))
    compactor = Compactor(axis=axis, dtype="float64")
    compactor.build(inputs.shape)
    compactor.kernel.assign(kernel)
    outputs = np.moveaxis(np.asarray(compactor(inputs)), axis, -1)
    channels = np.moveaxis(inputs, axis, -1)
    for j in range(5):
        expected = sum(channels[..., i] * kernel[i, j] for i in range(5))
        np.testing.assert_allclose(outputs[..., j], expected, rtol=1e-12)


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_vector_scales_each_channel(axis):
    inputs = inputs_of(4, axis)
    compactor = Compactor(kind="vector", axis=axis)
    compactor.build(inputs.shape)
    scales = np.array([0.0, 1.0, -2.0, 0.5, 4.0], "float32")
    compactor.kernel.assign(scales)
    outputs = np.moveaxis(np.asarray(compactor(inputs)), axis, -1)
    np.testing.assert_array_equal(outputs, np.moveaxis(inputs, axis, -1) * scales)
    np.testing.assert_array_equal(compactor.row_norms(), np.abs(scales))


def test_row_norms_and_matrix():
    kernel = np.random.default_rng(1).normal(size=(5, 5)).astype("float32")
    kernel[:, 3] = 0
    compactor = Compactor()
    compactor.build((None, 5))
    compactor.kernel.assign(kernel)
    norms = np.asarray(compactor.row_norms())
    assert norms.shape == (5,) and norms[3] == 0
    np.testing.assert_allclose(norms, np.linalg.norm(kernel, axis=0), rtol=1e-6)
    assert compactor.matrix().dtype == np.float64
    np.testing.assert_array_equal(compactor.matrix(), kernel)
    assert compactor.width == 5


def test_the_matrix_of_a_vector_is_diagonal():
    compactor = Compactor(kind="vector")
    compactor.build((None, 3))
    compactor.kernel.assign([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(compactor.matrix(), np.diag([1.0, 2.0, 3.0]))
    assert compactor.width == 3


# === As a Keras layer ===


@pytest.mark.parametrize("kind", ["matrix", "vector"])
def test_only_the_kernel_is_trained(kind):
    compactor = Compactor(kind=kind)
    compactor.build((None, 6))
    shape = (6, 6) if kind == "matrix" else (6,)
    assert [v.name for v in compactor.trainable_variables] == ["kernel"]
    assert [v.name for v in compactor.non_trainable_variables] == ["mask"]
    assert compactor.kernel.shape == shape and compactor.mask.shape == (6,)
    np.testing.assert_array_equal(compactor.mask, np.ones(6))
    assert not compactor.losses and compactor.kernel.regularizer is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [-1, 1])
def test_config_round_trip(kind, axis):
    arguments = {"axis": axis, "name": "c", "dtype": "float64"}
    compactor = KINDS[kind](["a", "b"], kind=kind, **arguments)
    config = compactor.get_config()
    copy = Compactor.from_config(config)
    assert type(copy) is KINDS[kind]
    assert copy.get_config() == config
    assert copy.targets == ("a", "b") and copy.kind == kind and copy.axis == axis
    assert copy.name == "c" and copy.dtype == "float64"
    stored = keras.saving.serialize_keras_object(compactor)
    assert keras.saving.deserialize_keras_object(stored).get_config() == config


@pytest.mark.parametrize("kind", KINDS)
def test_reload(kind, tmp_path):
    inputs = keras.Input((4, 4, 5))
    x = KINDS[kind](["conv"], kind=kind, name="compactor")(inputs)
    x = SplitActivation("relu", name="activation")(x)
    model = keras.Model(inputs, x)
    compactor = model.get_layer("compactor")
    rng = np.random.default_rng(0)
    compactor.kernel.assign(rng.normal(size=compactor.kernel.shape))
    compactor.mask.assign([1, 0, 1, 0, 1])
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    reloaded = copy.get_layer("compactor")
    assert type(reloaded) is KINDS[kind]
    assert type(copy.get_layer("activation")) is SplitActivation
    assert reloaded.get_config() == compactor.get_config()
    np.testing.assert_array_equal(reloaded.kernel, compactor.kernel)
    np.testing.assert_array_equal(reloaded.mask, compactor.mask)
    x = rng.normal(size=(2, 4, 4, 5))
    np.testing.assert_array_equal(copy(x), model(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "policy, stored, computed",
    [
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("mixed_float16", "float32", "float16"),
        ("mixed_bfloat16", "float32", "bfloat16"),
    ],
)
def test_precision(policy, stored, computed, kind):
    inputs = keras.ops.cast(inputs_of(4), computed)
    compactor = KINDS[kind](kind=kind, dtype=policy)
    outputs = compactor(inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == computed
    assert compactor.kernel.dtype == stored and compactor.mask.dtype == stored
    assert keras.backend.standardize_dtype(compactor.row_norms().dtype) == stored
    np.testing.assert_array_equal(
        keras.ops.cast(outputs, "float64"), keras.ops.cast(inputs, "float64")
    )


def test_time_steps_stay_masked():
    """A map over channels has no say in which time steps count."""
    inputs = keras.Input((5, 3))
    x = L.Dense(4, activation="relu", name="hidden")(L.Masking()(inputs))
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(x)))
    model.get_layer("hidden").bias.assign(np.ones(4))
    pruner = resrep_tf.wrap(model)
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    x[:, 3:] = 0
    np.testing.assert_allclose(pruner(x), model(x), rtol=1e-6)
    compactor = pruner.compactors[0]
    assert compactor.supports_masking


# === Errors ===


def test_unknown_kind():
    with pytest.raises(
        ValueError, match=r"'vector', 'filters'\)\. Received: kind='row'"
    ):
        Compactor(kind="row")
    with pytest.raises(ValueError, match=r"`kind` must be .* Received: kind='filters'"):
        Compactor(kind="filters")


@pytest.mark.parametrize("axis, shape", [(-1, (None, 4, None)), (1, (2, None, 8))])
def test_unknown_channel_extent(axis, shape):
    with pytest.raises(ValueError) as error:
        Compactor(axis=axis).build(shape)
    assert f"channel axis {axis} " in str(error.value)
    assert f"Received: input_shape={shape}" in str(error.value)


def test_a_wrapped_model_computes_what_the_model_did_in_float64():
    with precision("float64"):
        inputs = keras.Input((6, 6, 3))
        x = L.Conv2D(4, 3, activation="tanh")(inputs)
        x = L.BatchNormalization()(L.Conv2D(5, 3, use_bias=False)(x))
        model = keras.Model(inputs, L.Dense(2)(L.GlobalMaxPooling2D()(x)))
        pruner = resrep_tf.wrap(model)
    assert len(pruner.compactors) == 2
    x = np.random.default_rng(0).normal(size=(2, 6, 6, 3))
    np.testing.assert_array_equal(pruner(x), model(x))
