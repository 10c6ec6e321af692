"""Channel spaces of whole graphs: nested, shared, residual, gated."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from support.checks import assert_prunes_exactly, precision


def space_of(graph, name):
    for space in graph.spaces:
        if any(p.name == name for p in space.producers + space.followers):
            return space
    raise KeyError(name)


def names(producers):
    return [producer.name for producer in producers]


def folded(report, name):
    return next(layer.folded for layer in report.layers if layer.name == name)


# === Wiring ===


def residual_model():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, padding="same", name="stem")(inputs)
    for block in range(2):
        y = L.Conv2D(4, 3, padding="same", use_bias=False, name=f"inner{block}")(x)
        y = L.BatchNormalization(name=f"bn{block}")(y)
        y = L.ReLU()(y)
        y = L.Conv2D(6, 3, padding="same", name=f"outer{block}")(y)
        x = L.ReLU()(x + y if block else L.Add()([x, y]))
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(3, name="logits")(x))


def test_residual_stream_is_one_space():
    graph = ChannelGraph(residual_model())
    stream = space_of(graph, "stem")
    assert names(stream.producers) == ["stem", "outer0", "outer1"]
    assert stream.prunable and not stream.internal
    inner = space_of(graph, "inner0")
    assert inner.internal and inner.producers[0].batchnorm.name == "bn0"
    assert space_of(graph, "logits").reason == "it is an output of the model"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shared_compactor_prunes_a_stream_everywhere_at_once(dtype):
    with precision(dtype):
        pruner, slim, _ = assert_prunes_exactly(residual_model(), "all", dtype=dtype)
    assert [c.targets for c in pruner.compactors] == [
        ("stem", "outer0", "outer1"),
        ("inner0",),
        ("inner1",),
    ]
    stream = {slim.get_layer(name).filters for name in ("stem", "outer0", "outer1")}
    assert len(stream) == 1 and stream.pop() < 6


def squeeze_excite_model():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, name="main")(inputs)
    gate = L.GlobalAveragePooling2D()(x)
    gate = L.Dense(4, activation="relu", name="squeeze")(gate)
    gate = L.Dense(6, activation="sigmoid", name="excite")(gate)
    x = L.Multiply()([x, L.Reshape((1, 1, 6))(gate)])
    return keras.Model(inputs, L.Dense(2)(L.GlobalMaxPooling2D()(x)))


def test_squeeze_excite_gate_follows():
    with precision("float64"):  # Rounding is relative to a sigmoid's large argument.
        model = squeeze_excite_model()
        pruner, slim, _ = assert_prunes_exactly(model, None, dtype="float64")
    space = space_of(ChannelGraph(model), "main")
    assert names(space.producers) == ["main"]
    assert names(space.followers) == ["excite"]
    assert space.internal
    assert [c.targets for c in pruner.compactors] == [("main",), ("squeeze",)]
    assert slim.get_layer("excite").units == slim.get_layer("main").filters < 6


def gated_model(residual):
    """As in EfficientNet: a pruned channel is a constant when it meets its gate."""
    inputs = keras.Input((8, 8, 6))
    x = L.Conv2D(6, 1, name="expand")(inputs)
    x = L.BatchNormalization()(x)
    x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = L.Activation("swish")(L.BatchNormalization()(x))
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(6, 1, activation="sigmoid", name="gate")(gate)
    x = L.Multiply()([x, gate])
    if residual:
        x = L.Add()([x, L.Conv2D(6, 1, name="shortcut")(inputs)])
    x = L.Conv2D(4, 1, name="project")(x)
    return keras.Model(inputs, L.GlobalAveragePooling2D()(x))


def test_a_gate_behind_a_constant_gets_a_compactor_too():
    model = gated_model(residual=False)
    space = space_of(ChannelGraph(model), "expand")
    assert names(space.producers) == ["expand", "gate"]
    assert space.internal
    pruner, _, report = assert_prunes_exactly(model, None)
    assert [c.targets for c in pruner.compactors] == [("expand", "gate")]
    assert folded(report, "project") > 0
    layers = {layer.name: layer for layer in resrep_tf.explain(model).layers}
    assert layers["expand"].status == layers["gate"].status == "internal"
    assert layers["expand"].reason == "yes, together with `gate`"


def test_a_gated_space_that_is_summed_up_is_a_stream():
    model = gated_model(residual=True)
    space = space_of(ChannelGraph(model), "expand")
    assert names(space.producers) == ["expand", "gate", "shortcut"]
    assert space.prunable and not space.internal
    assert_prunes_exactly(model, "all")


def test_mobilenet_like_constants_are_folded():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, padding="same", use_bias=False, name="point")(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.DepthwiseConv2D(3, padding="same", strides=2, use_bias=False)(x)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Conv2D(5, 1, use_bias=False, name="reader")(x)
    x = L.BatchNormalization()(x)
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    _, slim, report = assert_prunes_exactly(model)
    assert folded(report, "reader") > 0
    assert slim.get_layer("reader").use_bias


def test_constant_in_front_of_padding_is_refused():
    """conv-sigmoid-conv(same): dropping a channel would change the rim."""
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, activation="relu", name="target")(inputs)
    x = L.Activation("sigmoid")(x)
    x = L.Conv2D(4, 3, padding="same", name="reader")(x)
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    space = space_of(ChannelGraph(model), "target")
    assert "`reader` (Conv2D) pads its input" in space.reason
    with pytest.raises(ValueError, match="Layer `target` cannot be pruned: its pruned"):
        resrep_tf.wrap(model, ["target"])


def test_densenet_like_concatenation():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same", name="stem")(inputs)
    for layer in range(3):
        y = L.ReLU()(L.BatchNormalization()(x))
        y = L.Conv2D(6, 1, use_bias=False, name=f"bottleneck{layer}")(y)
        y = L.ReLU()(L.BatchNormalization()(y))
        y = L.Conv2D(3, 3, padding="same", use_bias=False, name=f"grow{layer}")(y)
        x = L.Concatenate()([x, y])
    x = L.ReLU()(L.BatchNormalization()(x))
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    pruner, _, report = assert_prunes_exactly(model, None)
    assert len(pruner.compactors) == 7
    assert not report.kept


def test_flatten_repeats_channels():
    inputs = keras.Input((4, 4, 3))
    x = L.Conv2D(5, 3, padding="same", name="target")(inputs)
    x = L.Dense(6, activation="relu", name="hidden")(L.Flatten()(x))
    model = keras.Model(inputs, L.Dense(2)(x))
    _, slim, _ = assert_prunes_exactly(model)
    target, hidden = slim.get_layer("target"), slim.get_layer("hidden")
    assert hidden.kernel.shape[0] == 16 * target.filters


def test_two_inputs_and_two_named_outputs():
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 1), name="r")
    x = L.Add()([L.Conv2D(6, 3)(left), L.Conv2D(6, 3)(right)])
    x = L.Conv2D(5, 3, name="shared")(x)
    pooled = L.GlobalAveragePooling2D()(x)
    outputs = {"a": L.Dense(2, name="a")(pooled), "b": L.Dense(3, name="b")(pooled)}
    model = keras.Model({"left": left, "r": right}, outputs)
    _, slim, _ = assert_prunes_exactly(model)
    assert set(slim.output) == {"a", "b"}
    assert set(slim.input) == {"left", "r"}


def test_siamese_layers_are_pruned_once():
    conv, norm = L.Conv2D(6, 3, name="conv"), L.BatchNormalization(name="bn")
    left, right = keras.Input((8, 8, 3), name="l"), keras.Input((8, 8, 3), name="r")
    a, b = (L.ReLU()(norm(conv(x))) for x in (left, right))
    x = L.Concatenate()([L.GlobalAveragePooling2D()(a), L.GlobalMaxPooling2D()(b)])
    model = keras.Model([left, right], L.Dense(2)(x))
    graph = ChannelGraph(model)
    assert space_of(graph, "conv").producers[0].batchnorm is norm
    pruner, slim, _ = assert_prunes_exactly(model)
    assert len(pruner.compactors) == 1
    assert "bn" not in {layer.name for layer in slim.layers}


def test_shared_conv_with_two_batchnorms_is_not_merged_with_either():
    conv = L.Conv2D(6, 3, padding="same", name="conv")
    inputs = keras.Input((8, 8, 3))
    a, b = L.BatchNormalization()(conv(inputs)), L.BatchNormalization()(conv(inputs))
    x = L.Conv2D(3, 1)(L.ReLU()(L.Add()([a, b])))
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    assert space_of(ChannelGraph(model), "conv").producers[0].batchnorm is None
    assert_prunes_exactly(model)


def test_layers_that_share_a_part_of_their_channels_are_one_space():
    inputs = keras.Input((8, 8, 3))
    a, b = L.Conv2D(2, 1, name="a")(inputs), L.Conv2D(4, 1, name="b")(inputs)
    x = L.Add()([L.Concatenate()([a, b]), L.Conv2D(6, 1, name="c")(inputs)])
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    space = space_of(ChannelGraph(model), "a")
    assert space.prunable and space.width == 6
    assert [[p.name for p in layout] for layout in space.layouts] == [
        *(["a"], ["b"], ["c"])
    ]


def test_unet_like_skips():
    inputs = keras.Input((8, 8, 3))
    skip = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = L.Conv2D(6, 3, padding="same", activation="relu")(L.MaxPooling2D()(skip))
    x = L.Conv2DTranspose(4, 2, strides=2)(x)
    x = L.Concatenate()([skip, x])
    x = L.Conv2D(5, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, L.Conv2D(1, 1)(x))
    pruner, _, _ = assert_prunes_exactly(model, None)
    assert len(pruner.compactors) == 4


def test_feature_pyramid_with_one_head_on_every_level():
    inputs = keras.Input((16, 16, 3))
    fine = L.Conv2D(4, 3, padding="same", activation="relu", name="c1")(inputs)
    coarse = L.Conv2D(6, 3, 2, padding="same", activation="relu", name="c2")(fine)
    top = L.Conv2D(5, 1, name="lateral2")(coarse)
    up = L.UpSampling2D(interpolation="bilinear")(top)
    merged = L.Add()([L.Conv2D(5, 1, name="lateral1")(fine), up])
    tower = L.Conv2D(4, 3, padding="same", activation="swish", name="tower")
    boxes = L.Conv2D(3, 3, padding="same", name="boxes")
    model = keras.Model(inputs, [boxes(tower(level)) for level in (merged, top)])
    pruner, slim, _ = assert_prunes_exactly(model)
    assert {c.targets for c in pruner.compactors} == {
        ("c1",),
        ("c2",),
        ("lateral2", "lateral1"),
        ("tower",),
    }
    assert [t.shape for t in slim.outputs] == [(None, 16, 16, 3), (None, 8, 8, 3)]


def test_preambles_stay_as_they_are():
    normalise = L.Normalization()
    normalise.adapt(np.random.default_rng(0).normal(1.0, 2.0, (64, 3)))
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(6, 3, padding="same", name="target")(
        normalise(L.Rescaling(1 / 255, offset=-0.5)(inputs))
    )
    model = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(L.ReLU()(x))))
    _, slim, _ = assert_prunes_exactly(model)
    assert slim.get_layer("target").filters < 6
    kept = next(y for y in slim.layers if isinstance(y, L.Normalization))
    np.testing.assert_array_equal(np.ravel(kept.mean), np.ravel(normalise.mean))


def test_sequential_models():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(6, 3, activation="relu", name="first"),
            L.BatchNormalization(),
            L.Conv2D(5, 3, name="second"),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    _, slim, _ = assert_prunes_exactly(model)
    assert slim.get_layer("first").activation is keras.activations.relu


def test_graph_prints_what_it_found():
    text = repr(ChannelGraph(residual_model()))
    assert "6 layers with kernels, 4 spaces, 3 prunable" in text


def test_ids_of_all_tensors_are_consistent():
    graph = ChannelGraph(residual_model())
    seen = set()
    for call in graph.calls.values():
        for tensor in call.inputs + call.outputs:
            assert tensor.width == tensor.shape[tensor.axis]
            seen.update(tensor.channels.tolist())
    assert seen == set(range(graph.num_channels))
