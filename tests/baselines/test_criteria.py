"""Criteria: the published scores, one budget, models that are really narrower."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from resrep_tf import models
from resrep_tf.baselines import criteria
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.surgery.slicing import reinitialise
from resrep_tf.surgery.verify import compare
from support.checks import assert_plain, outputs, randomise
from support.models.small import small_model

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batchnorm_model(width=6):
    """Two internal layers and a residual stream, a BatchNorm behind each of them."""
    inputs = keras.Input((8, 8, 3))

    def conv(x, filters, name, activation="relu"):
        x = L.Conv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
        x = L.BatchNormalization(name=f"{name}_bn")(x)
        return L.Activation(activation)(x)

    stream = conv(inputs, width, "stem")
    x = conv(stream, width + 3, "inner1")
    x = conv(x, width - 1, "inner2")
    x = conv(x, width, "outer", "linear")
    x = L.GlobalAveragePooling2D()(L.ReLU()(L.Add()([stream, x])))
    return randomise(keras.Model(inputs, L.Dense(3, name="logits")(x), name="bns"))


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(3)
    sizes = (5, 5, 2)
    return [
        (rng.normal(size=(n, 8, 8, 3)).astype("float32"), rng.integers(0, 3, n))
        for n in sizes
    ]


def filters_of(model, name):
    kernel = np.asarray(model.get_layer(name).kernel, np.float64)
    return kernel.reshape(-1, kernel.shape[-1]).T


# === Scores ===


def test_norms_of_filters():
    model = batchnorm_model()
    filters = filters_of(model, "inner1")
    l1, l2 = criteria.score(model, "l1"), criteria.score(model, "l2")
    assert list(l1) == list(l2) == ["inner1", "inner2"]
    np.testing.assert_allclose(l1["inner1"], [sum(abs(f)) for f in filters])
    np.testing.assert_allclose(l2["inner1"], [sum(f * f) ** 0.5 for f in filters])


def test_a_shared_space_has_the_sum_of_its_layers_scores():
    model = batchnorm_model()
    scores = criteria.score(model, "l1", "all")
    expected = [
        abs(stem).sum() + abs(outer).sum()
        for stem, outer in zip(
            filters_of(model, "stem"), filters_of(model, "outer"), strict=True
        )
    ]
    np.testing.assert_allclose(scores["stem"], expected)
    assert "outer" not in scores


def test_fpgm_is_the_distance_to_all_other_filters():
    model = batchnorm_model()
    filters = filters_of(model, "inner2")
    expected = np.zeros(len(filters))
    for i, one in enumerate(filters):
        for j, other in enumerate(filters):
            if i != j:
                expected[i] += np.sqrt(((one - other) ** 2).sum())
    scores = criteria.score(model, "fpgm")["inner2"]
    np.testing.assert_allclose(scores, expected / expected.mean())


def test_bn_gamma_is_the_absolute_scale():
    model = batchnorm_model()
    gamma = np.asarray(model.get_layer("inner1_bn").gamma)
    assert (gamma < 0).any()
    scores = criteria.score(model, "bn_gamma")
    np.testing.assert_allclose(scores["inner1"], np.abs(gamma))


def test_taylor_is_the_numerical_derivative_squared(batches):
    model = batchnorm_model()
    scores = criteria.score(model, "taylor", "all", data=batches, loss=LOSS)
    expected = np.zeros(6)
    for name in ("stem", "outer"):
        gamma = model.get_layer(f"{name}_bn").gamma
        value, step = np.asarray(gamma), 1e-2
        for x, y in batches:
            for channel in range(6):
                losses = []
                for sign in (1, -1):
                    moved = value.copy()
                    moved[channel] += sign * step
                    gamma.assign(moved)
                    losses.append(float(LOSS(y, model(x, training=False))))
                derivative = (losses[0] - losses[1]) / (2 * step)
                expected[channel] += (value[channel] * derivative) ** 2 / len(batches)
        gamma.assign(value)
    assert expected.max() > 1e-4
    np.testing.assert_allclose(scores["stem"], expected, rtol=0.05, atol=1e-6)


def test_taylor_takes_the_compiled_loss(batches):
    model = batchnorm_model()
    with pytest.raises(ValueError, match=r"`loss`.*Received: loss=None"):
        criteria.score(model, "taylor", data=batches)
    given = criteria.score(model, "taylor", data=batches, loss=LOSS)
    model.compile("sgd", LOSS)
    compiled = criteria.score(model, "taylor", data=batches)
    for name, scores in given.items():
        np.testing.assert_array_equal(scores, compiled[name])


def test_random_follows_its_seed():
    model = batchnorm_model()
    first, again, other = (
        criteria.score(model, "random", seed=seed)["inner1"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (L.Conv2DTranspose(4, 3, padding="same", name="target"), (3, 3, 4, 5)),
        (L.SeparableConv2D(4, 3, padding="same", name="target"), (1, 1, 5, 4)),
    ],
    ids=["transposed", "separable"],
)
def test_filters_lie_along_the_axis_of_the_outputs(layer, shape):
    inputs = keras.Input((6, 6, 5))
    x = L.GlobalAveragePooling2D()(L.ReLU()(layer(inputs)))
    model = randomise(keras.Model(inputs, L.Dense(2)(x)))
    (kernel,) = (np.asarray(w) for w in layer.weights if tuple(w.shape) == shape)
    axis = shape.index(4)
    expected = np.abs(np.moveaxis(kernel, axis, 0)).reshape(4, -1).sum(axis=1)
    scores = criteria.score(model, "l1", ["target"])
    np.testing.assert_allclose(scores["target"], expected, rtol=1e-6)


# === Pruning ===


def channel_worth(model, targets):
    """The most that a single channel of the full model costs."""
    graph = resrep_tf.ChannelGraph(model)
    return max(
        FlopsMeter.of(graph).cost(channel)
        for space in graph.spaces
        if space.prunable and (space.internal or targets == "all")
        for channel in space.channels.tolist()
    )


@pytest.mark.parametrize(
    ("criterion", "targets"),
    [(name, None) for name in sorted(criteria.CRITERIA)] + [("l2", "all")],
)
def test_every_criterion_meets_the_same_budget(criterion, targets, batches):
    model = batchnorm_model(width=12)
    before, total = model.get_weights(), resrep_tf.count_flops(model)
    slim = criteria.prune_by_scores(
        model, criterion, 0.4, targets, data=batches, loss=LOSS
    )
    left = resrep_tf.count_flops(slim)
    assert 0.6 * total - channel_worth(model, targets) < left <= 0.6 * total
    assert_plain(slim)
    assert [layer.name for layer in slim.layers] == [x.name for x in model.layers]
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_the_smallest_scores_go_first():
    model = batchnorm_model()
    scores = criteria.score(model, "l2")
    slim = criteria.prune_by_scores(model, scores, 0.3)
    everything = np.concatenate(list(scores.values()))
    dropped = 14 - sum(slim.get_layer(name).filters for name in scores)
    limit = np.sort(everything)[dropped]
    for name, values in scores.items():
        assert slim.get_layer(name).filters == (values >= limit).sum()
    kept = scores["inner1"] >= limit
    np.testing.assert_array_equal(
        slim.get_layer("inner1_bn").gamma,
        np.asarray(model.get_layer("inner1_bn").gamma)[kept],
    )


def test_widths_are_rounded():
    slim = criteria.prune_by_scores(
        batchnorm_model(12), "uniform", 0.4, min_width=4, round_to=4
    )
    assert [slim.get_layer(f"inner{i}").filters for i in (1, 2)] == [8, 8]


def test_a_criterion_of_ones_own():
    def last_first(spaces, evidence):
        assert evidence.model.name == "bns"
        return [-np.arange(space.width) for space in spaces]

    model = batchnorm_model()
    slim = criteria.prune_by_scores(model, last_first, 0.2)
    kept = np.asarray(slim.get_layer("inner1_bn").gamma)
    full = np.asarray(model.get_layer("inner1_bn").gamma)
    assert len(kept) < len(full)
    np.testing.assert_array_equal(kept, full[: len(kept)])


# === Uniform ===


def test_shrinking_is_uniform_and_fresh():
    model = batchnorm_model(width=24)
    total = resrep_tf.count_flops(model)
    slim = criteria.shrink(model, 0.5, "all")
    left = resrep_tf.count_flops(slim)
    assert 0.5 * total - channel_worth(model, "all") < left <= 0.5 * total
    shares = [
        slim.get_layer(name).filters / model.get_layer(name).filters
        for name in ("stem", "inner1", "inner2", "outer")
    ]
    assert max(shares) - min(shares) <= 1 / 23
    for name in ("stem", "inner1"):
        layer = slim.get_layer(f"{name}_bn")
        np.testing.assert_array_equal(layer.gamma, np.ones(layer.gamma.shape))
        np.testing.assert_array_equal(layer.moving_mean, np.zeros(layer.gamma.shape))
    assert compare(outputs(slim), outputs(criteria.shrink(model, 0.5, "all"))) > 0.01


@pytest.mark.slow
def test_the_papers_uniformly_shrunk_resnet50():
    """Table 3: half the width of all target layers is 55.4% fewer FLOPs."""
    model = models.build("resnet50", (224, 224, 3), 1000)
    slim = criteria.shrink(model, 0.5535, models.targets("resnet50"))
    removed = 1 - resrep_tf.count_flops(slim) / resrep_tf.count_flops(model)
    assert removed == pytest.approx(0.554, abs=1e-3)
    pairs = [
        (layer.filters, slim.get_layer(layer.name).filters)
        for layer in model.layers
        if hasattr(layer, "filters")
    ]
    narrower = [(before, after) for before, after in pairs if after < before]
    assert len(narrower) == 32
    assert all(abs(after - before / 2) <= 1 for before, after in narrower)


def test_shrinking_adds_no_bias():
    """A trained BatchNorm would leave a constant to be folded into one."""
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(8, 1, use_bias=False, name="target")(inputs)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.Conv2D(4, 1, use_bias=False, name="next")(x)
    x = L.GlobalAveragePooling2D()(L.BatchNormalization()(x))
    model = randomise(keras.Model(inputs, L.Dense(2)(x)))
    assert criteria.prune_by_scores(model, "l2", 0.3).get_layer("next").use_bias
    assert not criteria.shrink(model, 0.3).get_layer("next").use_bias


def test_fresh_weights_follow_the_initializers_and_the_seed():
    model = batchnorm_model()
    copies = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        copies.append(reinitialise(model))
    kernels = [np.asarray(copy.get_layer("inner1").kernel) for copy in copies]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])
    limit = np.sqrt(6 / (9 * 6 + 9 * 9))  # Glorot's.
    assert 0.9 * limit < np.abs(kernels[0]).max() <= limit


def test_layers_that_do_not_learn_keep_their_state():
    inputs = keras.Input((3,))
    normalisation = L.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 4.0, 4.0])
    frozen = L.Dense(4, trainable=False, name="frozen")
    x = frozen(normalisation(inputs))
    model = keras.Model(inputs, L.Dense(2, name="learns")(x))
    fresh = reinitialise(model)
    np.testing.assert_array_equal(fresh.get_layer("frozen").kernel, frozen.kernel)
    assert not np.array_equal(
        fresh.get_layer("learns").kernel, model.get_layer("learns").kernel
    )


# === Errors ===


@pytest.mark.parametrize("criterion", ["bn_gamma", "taylor"])
def test_a_layer_without_batchnorm_is_named(criterion, batches):
    with pytest.raises(ValueError, match=rf"`hidden` has none.*'{criterion}'"):
        criteria.score(small_model(), criterion, data=batches, loss=LOSS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": "l3"}, r"`criterion` must be one of.*Received: criterion='l3'"),
        ({"scores": {"inner1": np.ones(9)}}, r"`scores` must.*\['inner1'\]"),
        ({"scores": "taylor"}, "Received: data=None"),
        ({"scores": "taylor", "data": [], "loss": LOSS}, r"Received: data=\[\]"),
        ({"scores": "l2", "flops_target": 1.5}, "Received: flops_target=1.5"),
        ({"scores": "l2", "flops_target": 0.999}, "At most .* can be removed"),
        ({"scores": "l2", "targets": ["inner"]}, "Did you mean"),
    ],
)
def test_errors_name_what_was_received(arguments, message):
    with pytest.raises(ValueError, match=message):
        criteria.prune_by_scores(
            batchnorm_model(), **{"flops_target": 0.5, **arguments}
        )


@pytest.mark.parametrize(
    "prune", [lambda m, **t: criteria.prune_by_scores(m, "l2", **t), criteria.shrink]
)
def test_parameters_are_a_budget_too(prune):
    model = batchnorm_model(12)
    before = model.count_params()
    # Just enough goes: a channel more would be possible, one less would not do.
    slim = prune(model, params_target=0.3)
    assert 0.5 * before < slim.count_params() <= 0.7 * before
    both = prune(model, flops_target=0.1, params_target=0.3)
    assert both.count_params() <= 0.7 * before
    assert resrep_tf.count_flops(both) <= 0.9 * resrep_tf.count_flops(model)
    with pytest.raises(ValueError, match=r"At most .* parameters.*params_target=0.99"):
        prune(model, params_target=0.99)
    with pytest.raises(ValueError, match="Received: none of them"):
        prune(model)
