"""A subclassed network goes all the way, as its Functional twin does."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import resrep_tf
from resrep_tf.baselines import criteria
from resrep_tf.cli.models import architectures
from resrep_tf.export import export, load
from support.checks import randomise
from support.traced import images

SHAPE = (8, 8, 3)


class Block(layers.Layer):
    """A residual block with an expansion."""

    def __init__(self, width, filters, **kwargs):
        super().__init__(**kwargs)
        self.expand = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self.norm = layers.BatchNormalization()
        self.project = layers.Conv2D(width, 1)

    def call(self, x, training=None):
        y = ops.relu(self.norm(self.expand(x), training=training))
        return x + self.project(y)


@keras.saving.register_keras_serializable("test_tracing_pipeline")
class Net(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.stem = layers.Conv2D(4, 3, name="stem")
        self.blocks = [Block(4, 8), Block(4, 6)]
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(3, name="head")

    def call(self, x, training=None):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, training=training)
        return ops.softmax(self.head(self.pool(x)))


def functional(model):
    """The same network by hand, with copies of the weights."""

    def block(x, width, filters, name):
        y = layers.Conv2D(
            filters, 3, padding="same", use_bias=False, name=f"{name}_expand"
        )(x)
        y = ops.relu(layers.BatchNormalization(name=f"{name}_norm")(y))
        return x + layers.Conv2D(width, 1, name=f"{name}_project")(y)

    inputs = keras.Input(SHAPE)
    x = layers.Conv2D(4, 3, name="stem")(inputs)
    x = block(block(x, 4, 8, "blocks_0"), 4, 6, "blocks_1")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    x = ops.softmax(layers.Dense(3, name="head")(x))
    twin = keras.Model(inputs, x, name=model.name)
    traced = resrep_tf.trace(model)
    for layer in twin.layers:
        if layer.weights:
            layer.set_weights(traced.get_layer(layer.name).get_weights())
    return twin


@pytest.fixture
def model():
    net = Net()
    net(images(*SHAPE))
    return randomise(net)


def pruned(model, **wrapping):
    pruner = resrep_tf.wrap(model, **wrapping)
    pruner.compile(
        keras.optimizers.SGD(0.05, 0.9),
        "sparse_categorical_crossentropy",
        run_eagerly=False,
        jit_compile=False,
    )
    y = np.random.default_rng(0).integers(0, 3, 8)
    selection = resrep_tf.ChannelSelection(0.4, warmup_steps=2, interval=2)
    pruner.fit(
        *(images(*SHAPE, batch=8), y),
        batch_size=4,
        epochs=20,
        shuffle=False,
        verbose=0,
        callbacks=[selection],
    )
    return pruner, resrep_tf.convert(pruner)


@pytest.mark.parametrize("targets", [None, pytest.param("all", marks=pytest.mark.slow)])
def test_it_trains_converts_and_exports_as_its_functional_twin(
    model, targets, tmp_path
):
    before = model.get_weights()
    one, slim = pruned(model, targets=targets)
    two, other = pruned(functional(model), targets=targets)
    names = [compactor.name for compactor in one.compactors]
    assert names == [compactor.name for compactor in two.compactors]
    for left, right in [(one, two), (slim, other)]:
        for a, b in zip(left.weights, right.weights, strict=True):
            assert a.path == b.path
            np.testing.assert_array_equal(a, b)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    flops = resrep_tf.count_flops(model)
    assert flops == resrep_tf.count_flops(functional(model))
    assert resrep_tf.count_flops(slim) <= 0.6 * flops
    if targets is None:
        export(slim, tmp_path / "slim.tflite", "tflite", images(*SHAPE))
        outputs = load(tmp_path / "slim.tflite")(images(*SHAPE))
        np.testing.assert_allclose(outputs, other(images(*SHAPE)), atol=1e-5)


def test_criteria_and_slicing_take_it(model):
    twin = functional(model)
    for function in (
        lambda m: criteria.prune_by_scores(m, "l2", 0.4),
        lambda m: resrep_tf.slicing.slice_channels(
            m, {"blocks_0_expand": [True] * 3 + [False] * 5}
        ),
    ):
        one, two = function(model), function(twin)
        assert resrep_tf.count_flops(one) < resrep_tf.count_flops(model)
        for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    scores = [criteria.score(m, "fpgm") for m in (model, twin)]
    assert scores[0].keys() == scores[1].keys()
    shrunk = criteria.shrink(model, 0.4)
    assert resrep_tf.count_flops(shrunk) <= 0.6 * resrep_tf.count_flops(model)


def test_the_loss_is_that_of_the_compiled_model(model):
    x, y = images(*SHAPE), np.arange(4) % 3
    model.compile("sgd", "sparse_categorical_crossentropy")
    scores = criteria.score(model, "taylor", ["blocks_0_expand"], data=[(x, y)])
    assert (scores["blocks_0_expand"] > 0).any()


def test_a_file_is_an_architecture(model, tmp_path):
    model.save(tmp_path / "net.keras")
    loaded = architectures.load_file(str(tmp_path / "net.keras"))
    assert isinstance(loaded, keras.Function)
    architectures.check_fits(loaded, SHAPE, 3, "arch")
    x = images(*SHAPE)
    np.testing.assert_array_equal(loaded(x), model(x))
    assert len(resrep_tf.wrap(loaded).compactors) == 2


def test_a_traced_layer_at_the_end_leaves_its_name_to_the_output():
    inputs = keras.Input(SHAPE)
    x = layers.Conv2D(4, 3)(inputs)
    model = keras.Model(
        inputs, [Block(4, 8, name="one")(x), Block(4, 6, name="two")(x)]
    )
    pruner = resrep_tf.wrap(model)
    assert len(pruner.compactors) == 2
    assert pruner.output_names == model.output_names == ["one", "two"]
    keep = {c.name: np.arange(c.width) < 2 for c in pruner.compactors}
    slim = resrep_tf.convert(pruner, keep=keep, verify=False)
    assert slim.output_names == model.output_names
