"""Every format: written whole, verified, and loaded back with the same outputs."""

import dataclasses
import json
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L

from resrep_tf.export import FORMATS, export, load
from resrep_tf.export import exporting as exporting_module
from support.models.small import small_model

NAMES = {name: f"model{suffix}" for name, suffix in FORMATS.items()}
BY_TENSORFLOW = [name for name in FORMATS if name != "onnx"]
TFLITE = ["tflite", "tflite_float16", "int8"]
LIMITS = {
    "keras": 1e-6,
    "saved_model": 1e-6,
    "tflite": 1e-5,
    "onnx": 1e-5,
    "tflite_float16": 5e-3,
    "int8": 0.1,
}


def images(count=24, shape=(8, 8, 3), seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, *shape)).astype("float32")


def tiny(*layers, shape=(8, 8, 3), last=None):
    inputs = keras.Input(shape)
    x = L.Conv2D(4, 3, padding="same")(inputs)
    for layer in layers:
        x = layer(x)
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(3, last)(x))


@pytest.fixture(scope="module")
def model():
    return small_model()


def needs(name):
    if name == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("tf2onnx")


# === Formats ===


@pytest.mark.parametrize("name", FORMATS)
def test_written_verified_and_loaded(model, name, tmp_path, capfd):
    needs(name)
    path = tmp_path / NAMES[name]
    before = model.get_weights()
    report = export(model, path, name, images())
    assert capfd.readouterr() == ("", "")
    assert report.path == path
    assert report.format == name
    assert report.bytes > 1000
    assert report.examples == 24
    assert report.verified_on == "24 calibration inputs"
    assert report.mean_difference <= report.difference <= LIMITS[name]
    assert report.class_agreement >= 0.9
    assert os.listdir(tmp_path) == [path.name]
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)

    predictor = load(path)
    assert capfd.readouterr() == ("", "")
    batch = 1 if name == "int8" else None
    assert predictor.input_shape == (batch, 8, 8, 3)
    assert predictor.output_shape == (batch, 3)
    assert predictor.dtype == ("int8" if name == "int8" else "float32")
    for count in (5, 1, 7):
        given = images(count, seed=1)
        expected = np.asarray(model(given))
        outputs = predictor(tf.constant(given))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(outputs, expected, atol=LIMITS[name] * scale)
        assert outputs.dtype == np.float32


@pytest.mark.parametrize("name", ["keras", "saved_model", "tflite"])
def test_verified_on_random_inputs(model, name, tmp_path):
    report = export(model, tmp_path / NAMES[name], name)
    assert report.verified_on == "8 random inputs"
    assert report.difference <= LIMITS[name]


def test_saved_model_has_both_signatures(model, tmp_path):
    export(model, tmp_path / "saved", "saved_model", verify=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    expected = model(images(3))
    np.testing.assert_array_equal(loaded.serve(images(3)), expected)
    serve = loaded.signatures["serving_default"]
    (outputs,) = serve(image=tf.constant(images(3))).values()
    np.testing.assert_array_equal(outputs, expected)


def test_sizes(tmp_path):
    model = tiny(L.Conv2D(64, 3), L.Conv2D(64, 3))
    sizes = {
        name: export(model, tmp_path / f"{name}.tflite", name, images()).bytes
        for name in TFLITE
    }
    assert sizes["tflite_float16"] < 0.6 * sizes["tflite"]
    assert sizes["int8"] < 0.4 * sizes["tflite"]


def test_report(model, tmp_path):
    report = export(model, tmp_path / "a.keras", "keras")
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.bytes = 0
    assert json.loads(json.dumps(report.to_dict()))["path"] == str(report.path)
    assert "a.keras: keras, " in str(report)
    assert "outputs differ by 0 at most" in str(report)
    unverified = export(model, tmp_path / "a.keras", "keras", verify=False)
    assert unverified.difference is None
    assert str(unverified).endswith("not verified")


def test_the_function_is_found_with_its_loader():
    assert export.load is load


# === Integers ===


@pytest.mark.parametrize("integer", ["int8", "uint8"])
def test_all_in_integers(model, integer, tmp_path):
    path = tmp_path / "a.tflite"
    export(model, path, "int8", images(), integer=integer)
    interpreter = tf.lite.Interpreter(str(path))
    kinds = {tensor["dtype"] for tensor in interpreter.get_tensor_details()}
    assert kinds <= {np.int8, np.uint8, np.int32}
    for tensor in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        assert tensor["dtype"] == np.dtype(integer)
    assert load(path).dtype == integer


def test_float_only_when_asked(tmp_path):
    model, path = tiny(keras.ops.sin), tmp_path / "a.tflite"
    with pytest.raises(ValueError, match=r"no integer form, .*`allow_float=True`"):
        export(model, path, "int8", images())
    assert not os.listdir(tmp_path)
    report = export(model, path, "int8", images(), allow_float=True)
    assert report.class_agreement > 0.8


def test_calibration_decides_the_range(model, tmp_path):
    export(model, tmp_path / "a.tflite", "int8", 100 * images())
    interpreter = tf.lite.Interpreter(str(tmp_path / "a.tflite"))
    scale, _ = interpreter.get_input_details()[0]["quantization"]
    extent = np.ptp(100 * images())
    assert scale == pytest.approx(extent / 255, rel=0.05)


@pytest.mark.parametrize(
    "given",
    [
        images(),
        tf.constant(images()),
        (images(), np.zeros(24)),
        [images(12), images(12)],
        [(images(12), np.zeros(12)), (images(12), np.zeros(12))],
        tf.data.Dataset.from_tensor_slices((images(), np.zeros(24))).batch(7).repeat(),
        tf.data.Dataset.from_tensor_slices(images()).batch(24),
    ],
    ids=["array", "tensor", "pair", "list", "pairs", "endless", "dataset"],
)
def test_kinds_of_calibration(given, tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 3)), L.Flatten(), L.Dense(2)])
    report = export(model, tmp_path / "a.keras", "keras", given)
    assert report.examples in (24, 64)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (None, ValueError, "`calibration` is needed with `format='int8'`"),
        ([], ValueError, "at least one input. Received: calibration=list"),
        ("train", TypeError, "Received: calibration=str"),
        (np.full((4, 8, 8, 3), np.nan), ValueError, "a batch with NaN or infinity"),
        (images(shape=(4, 4, 3)), ValueError, r"Received: a batch of \(24, 4, 4, 3\)"),
        ([{"image": 1}], TypeError, "Received: a batch of dict"),
    ],
    ids=["none", "empty", "text", "NaN", "size", "dict"],
)
def test_wrong_calibration(model, given, error, match, tmp_path):
    with pytest.raises(error, match=match):
        export(model, tmp_path / "a.tflite", "int8", given)
    assert not os.listdir(tmp_path)


def test_a_broken_int8_file_is_refused(model, tmp_path, monkeypatch):
    def wrong(path, named):
        return lambda inputs: -3 * np.asarray(model(inputs))

    monkeypatch.setattr(exporting_module, "load_written", wrong)
    with pytest.raises(ValueError, match="int8 file does not compute what the model"):
        export(model, tmp_path / "a.tflite", "int8", images())
    assert not os.listdir(tmp_path)


# === Shapes and models ===


@pytest.mark.parametrize("name", BY_TENSORFLOW)
def test_open_size(name, tmp_path):
    model = tiny(L.ReLU(), shape=(None, None, 3), last="softmax")
    path = tmp_path / NAMES[name]
    given = images(shape=(12, 10, 3))
    export(model, path, name, given)
    predictor = load(path)
    np.testing.assert_allclose(predictor(given), model(given), atol=0.02)
    if name == "int8":
        # As the calibration was.
        assert predictor.input_shape == (1, 12, 10, 3)
    else:
        assert predictor.input_shape == (None, None, None, 3)
        larger = images(2, shape=(20, 16, 3))
        np.testing.assert_allclose(predictor(larger), model(larger), atol=0.02)


@pytest.mark.parametrize("name", ["saved_model", "tflite", "int8", "onnx"])
def test_fixed_batch(name, tmp_path):
    needs(name)
    model = keras.Sequential(
        [keras.Input((6, 6, 1)), L.Conv2D(2, 3), L.Flatten(), L.Dense(1)]
    )
    path, given = tmp_path / NAMES[name], images(7, (6, 6, 1))
    export(model, path, name, given, input_shape=(4, 6, 6, 1))
    predictor = load(path)
    assert predictor.input_shape == (4, 6, 6, 1)
    outputs = predictor(given)
    assert outputs.shape == (7, 1)
    np.testing.assert_allclose(outputs, model(given), atol=0.05)


@pytest.mark.parametrize("name", BY_TENSORFLOW)
def test_mixed_precision(name, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = tiny(L.BatchNormalization(), L.ReLU())
    keras.config.set_dtype_policy("float32")
    export(model, tmp_path / NAMES[name], name, images())
    outputs = load(tmp_path / NAMES[name])(images())
    np.testing.assert_allclose(outputs, model(images()), atol=0.02)


def test_subclassed(tmp_path):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = tiny()

        def call(self, x):
            return self.inner(x) + 1

    model = Own()
    model(images())
    shape = (None, 8, 8, 3)
    report = export(model, tmp_path / "a.tflite", "tflite", input_shape=shape)
    assert report.difference < 1e-5
    with pytest.raises(ValueError, match="`input_shape` is needed"):
        export(model, tmp_path / "b.tflite", "tflite")
    with pytest.raises(ValueError, match=r"`model\.save` writes others"):
        export(model, tmp_path / "b.keras", "keras")


@pytest.mark.slow
def test_operations_of_tensorflow(tmp_path):
    model, path = tiny(keras.ops.erf), tmp_path / "a.tflite"
    with pytest.raises(ValueError, match=r"no tf\.Erf\. `allow_tensorflow=True`"):
        export(model, path, "tflite")
    report = export(model, path, "tflite", allow_tensorflow=True, verify=False)
    assert report.bytes > 1000
    # TensorFlow's own interpreter can run them in some versions only.
    try:
        outputs = load(path)(images())
    except ValueError as error:
        assert "has no Flex delegate" in str(error)
    else:
        np.testing.assert_allclose(outputs, model(images()), atol=1e-5)


def test_without_onnx(model, tmp_path, monkeypatch):
    for package in ("tf2onnx", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    advice = r' needs onnx{}: pip install "resrep_tf\[onnx\]"'
    with pytest.raises(
        ImportError, match="Writing ONNX" + advice.format(" and tf2onnx")
    ):
        export(model, tmp_path / "a.onnx", "onnx")
    assert not os.listdir(tmp_path)
    path = tmp_path / "b.onnx"
    path.write_bytes(b"anything")
    with pytest.raises(ImportError, match="Reading ONNX" + advice.format("")) as error:
        load(path)
    assert str(path) in str(error.value)


# === Arguments ===


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("a.pb", {"format": "frozen"}, "Received: format='frozen'"),
        ("a.tflite", {"format": "keras"}, r"must end with \.keras"),
        ("a.keras", {"format": "saved_model"}, "must be the name of a folder"),
        ("a.keras", {"format": "keras", "integer": "int4"}, "Received: integer='int4'"),
        (
            "a.tflite",
            {"format": "tflite", "input_shape": (None, 9, 8, 3)},
            r"Received: input_shape=\(None, 9, 8, 3\)",
        ),
        (
            "a.keras",
            {"format": "keras", "input_shape": (1, 8, 8, 3)},
            "must be None with `format='keras'`",
        ),
    ],
)
def test_wrong_arguments(model, name, arguments, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        export(model, tmp_path / name, **arguments)
    assert not os.listdir(tmp_path)


def test_several_outputs(tmp_path):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [L.Dense(2)(inputs), L.Dense(3)(inputs)])
    with pytest.raises(ValueError, match="with 1 inputs and 2 outputs"):
        export(model, tmp_path / "a.keras", "keras")


def test_not_a_model(tmp_path):
    with pytest.raises(TypeError, match=r"must be a `keras\.Model`"):
        export("model.keras", tmp_path / "a.keras", "keras")


# === Whole or not at all ===


@pytest.mark.parametrize("name", ["keras", "saved_model"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("full")])
def test_nothing_half_written(model, name, error, tmp_path, monkeypatch):
    path = tmp_path / NAMES[name]
    export(model, path, name, verify=False)
    before = load(path)(images())

    def fails(job, temporary):
        if name == "saved_model":
            temporary.mkdir()
            temporary = temporary / "saved_model.pb"
        temporary.write_bytes(b"half")
        raise error

    monkeypatch.setitem(exporting_module.WRITERS, name, fails)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else OSError):
        export(model, path, name)
    assert os.listdir(tmp_path) == [path.name]
    np.testing.assert_array_equal(load(path)(images()), before)


def test_a_wrong_file_does_not_appear(model, tmp_path, monkeypatch):
    other = tiny()

    def writes_another(job, temporary):
        other.save(temporary)

    monkeypatch.setitem(exporting_module.WRITERS, "keras", writes_another)
    with pytest.raises(ValueError, match="keras file does not compute what the model"):
        export(model, tmp_path / "a.keras", "keras")
    assert not os.listdir(tmp_path)


def test_replaces_a_saved_model_but_no_other_folder(model, tmp_path):
    path = tmp_path / "saved"
    export(model, path, "saved_model", verify=False)
    export(model, path, "saved_model", verify=False)
    assert os.listdir(tmp_path) == ["saved"]
    mine = tmp_path / "photos"
    mine.mkdir()
    (mine / "cat.jpg").write_text("miaow")
    with pytest.raises(ValueError, match="must be a new or empty folder"):
        export(model, mine, "saved_model")
    assert os.listdir(mine) == ["cat.jpg"]
