"""The networks that Keras users have: each prunes exactly, saves and reloads."""

import keras
import pytest
import tensorflow as tf

import resrep_tf
from resrep_tf import models
from resrep_tf.surgery.verify import compare
from support.checks import assert_prunes_exactly, example, leaves, outputs, precision
from support.models.hub_presets import PRESETS, TRANSFORMERS
from support.models.networks import HUB, NETWORKS, SMALL

# These amplify float32's rounding beyond 1e-5; float64's 1e-10 says more then.
AMPLIFYING = ("ResNet", "ResNetV2")
# Unless it is told otherwise, as `export` does not, it trains one of its BatchNorms: a
# Resizing in front of that takes itself to be in training, and so does all behind it.
NEEDS_TO_BE_TOLD = "SpatialPyramidPooling"
# Networks at their published size that take long, and variants of others of their
# family. The keras-hub ones, which are made smaller, are quick.
SLOW = (
    *("InceptionResNetV2", "InceptionV3", "NASNetMobile", "Xception", "ConvNeXtTiny"),
    *("ResNet50", "ResNet50V2", "DenseNet121", "EfficientNetV2B0", "VGG16"),
    *("EfficientNetB0", "keras_hub.BASNet", "keras_hub.RetinaNet"),
    *("keras_hub.CSPResNeXt", "keras_hub.CSPNet", "keras_hub.HGNetV2"),
    *("keras_hub.EfficientNetV1", "keras_hub.EfficientNetEdge"),
    *("keras_hub.ResNetV1", "keras_hub.ResNetVd"),
)
QUICK = [name for name in SMALL if name not in SLOW]
# Exporting the others is left to the slow tests.
QUICKEST = [
    "MobileNet",
    "keras_hub.ResNet",
    "keras_hub.DenseNet",
    "keras_hub.DeepLabV3",
]


def prunable(quick):
    """A network of each family; those that are not `quick` are slow.

    `benchmarks/zoo.py` does the same with the others, which have more of their blocks.
    """
    for name in SMALL:
        marks = [] if name in quick else [pytest.mark.slow]
        yield pytest.param(name, marks=marks)


@pytest.fixture(autouse=True)
def tuples_from_files(monkeypatch):
    """Hands `build` a tuple, as it is called with before a model is saved.

    Two layers of keras-hub refuse the list that a `.keras` file has instead.
    """
    original = keras.layers.Layer.build_from_config

    def build_from_config(layer, config):
        shape = config.get("input_shape") if config else None
        concerned = type(layer).__module__.startswith("keras_hub.")
        if concerned and isinstance(shape, list):
            config = {**config, "input_shape": tuple(shape)}
        original(layer, config)

    monkeypatch.setattr(keras.layers.Layer, "build_from_config", build_from_config)


def build(name):
    if NETWORKS[name] in HUB:
        pytest.importorskip("keras_hub")
    return NETWORKS[name].build()


def prune(name, targets):
    dtype = "float64" if NETWORKS[name].family in AMPLIFYING else "float32"
    with precision(dtype):
        _, slim, report = assert_prunes_exactly(build(name), targets, dtype=dtype)
    assert report.new_flops < 0.95 * report.flops
    return slim


def assert_reloads(slim, folder):
    slim.save(folder / "slim.keras")
    reloaded = keras.models.load_model(folder / "slim.keras")
    assert compare(outputs(slim), outputs(reloaded)) == 0.0


def assert_serves(slim, folder):
    export(slim, folder / "saved_model")
    served = tf.saved_model.load(folder / "saved_model")
    assert compare(outputs(slim), served.serve(example(slim))) <= 1e-5


def export(model, folder):
    if NEEDS_TO_BE_TOLD not in {type(layer).__name__ for layer in leaves(model)}:
        model.export(folder, verbose=False)
        return
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = [keras.InputSpec(t.dtype, t.shape) for t in model.inputs]
    archive.add_endpoint("serve", lambda x: model(x, training=False), signature)
    archive.write_out(folder, verbose=False)


@pytest.mark.parametrize("name", list(prunable(QUICK)))
def test_prunes_exactly_and_reloads(name, tmp_path):
    slim = prune(name, "all")
    assert_reloads(slim, tmp_path)
    if name in QUICKEST:
        assert_serves(slim, tmp_path)


@pytest.mark.parametrize("name", list(prunable(QUICKEST)))
def test_prunes_internal_layers_exactly_and_reloads(name, tmp_path):
    slim = prune(name, None)
    assert_reloads(slim, tmp_path)
    if name not in QUICKEST:
        assert_serves(slim, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            network.name, marks=[] if network.name in QUICKEST else [pytest.mark.slow]
        )
        for network in HUB
    ],
)
def test_prunes_a_backbone_without_its_head(name):
    # The channels that seed 0 leaves MobileNetV5 make outputs that are constant.
    seed = int(name == "keras_hub.MobileNetV5")
    assert_prunes_exactly(build(name).backbone, seed=seed)


def test_no_network_of_keras_hub_is_forgotten():
    models = pytest.importorskip("keras_hub").models
    tasks = (
        *(models.ImageClassifier, models.ImageSegmenter),
        *(models.ObjectDetector, models.DepthEstimator),
    )
    kinds = {
        task.backbone_cls.__name__.removesuffix("Backbone")
        for task in vars(models).values()
        if isinstance(task, type) and issubclass(task, tasks) and task.backbone_cls
    }
    covered = {kind for kind, _, _ in PRESETS.values()}
    assert kinds == covered | set(TRANSFORMERS)


# === The paper's targets ===


def keras_network(name):
    return getattr(keras.applications, name)(weights=None)


@pytest.mark.parametrize(
    "make, name, highest",
    [
        (models.build, "resnet50", 0.621),
        pytest.param(models.build, "mobilenet", 0.739, marks=pytest.mark.slow),
        pytest.param(keras_network, "ResNet50", 0.621, marks=pytest.mark.slow),
        (keras_network, "MobileNet", 0.739),
    ],
)
def test_internal_targets_reach_the_papers_reductions(make, name, highest):
    explanation = resrep_tf.explain(make(name))
    assert 1 - explanation.smallest_flops / explanation.flops > highest
