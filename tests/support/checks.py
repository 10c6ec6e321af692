"""Shared checks: randomise a model, prune it at random, and compare exactly."""

import contextlib

import keras
import numpy as np

import resrep_tf
from resrep_tf.graph import terms
from resrep_tf.graph.keras_calls import all_layers
from resrep_tf.graph.tracing import lifted
from resrep_tf.surgery.rounding import rounding
from resrep_tf.surgery.verify import compare, random_inputs

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


@contextlib.contextmanager
def precision(name):
    """Builds models that compute in `name` throughout."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


def convnext_layer(name):
    """Returns a layer class of keras.applications that Keras does not export."""
    return keras.applications.ConvNeXtTiny.__globals__[name]


def randomise(model, seed=0):
    """Gives every weight a random value: fresh BatchNorms hide mistakes."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        shape, name = variable.shape, variable.path.rsplit("/", 1)[-1]
        if name == "gamma":
            value = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
        elif name in ("moving_variance", "variance"):
            value = rng.uniform(0.5, 2.0, shape)
        elif name in ("count", "mask"):
            continue
        elif len(shape) >= 2:
            value = rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))
        else:
            value = rng.normal(size=shape) * 0.5
        variable.assign(value)
    return calibrate(model, rng)


def calibrate(model, rng):
    """Sets moving statistics near those of random data, but not equal to them.

    Those of a subclassed model are not changed, since its inputs are unknown.
    """
    norms = [layer for layer in all_layers(model) if hasattr(layer, "moving_variance")]
    if not norms or not hasattr(model, "inputs"):
        return model
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    model(example(model), training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        shape = norm.moving_variance.shape
        variance = np.asarray(norm.moving_variance)
        # A channel that hardly varies would make a BatchNorm amplify rounding.
        variance = variance + 0.1 * np.mean(variance) + 1e-3
        offset = 0.3 * np.sqrt(variance) * rng.normal(size=shape)
        norm.moving_mean.assign(np.asarray(norm.moving_mean) + offset)
        norm.moving_variance.assign(variance * rng.uniform(0.5, 2.0, shape))
    return model


def leaves(model):
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from leaves(layer)
        else:
            yield layer


def example(model, seed=1):
    shapes = [
        (None, *(8 if n is None else n for n in t.shape[1:])) for t in model.inputs
    ]
    return random_inputs(model, shapes, seed=seed, batch=8)


def perturb(pruner, rng):
    """Moves compactors away from the identity, as training does."""
    for compactor in pruner.compactors:
        noise = rng.normal(size=compactor.kernel.shape) * 0.5 / compactor.width**0.5
        compactor.kernel.assign(np.asarray(compactor.kernel) + noise)


def random_keep(pruner, rng, share=0.5):
    """Returns random rows to keep; in small models, some compactors keep only one.

    In a deep chain, a single channel that is always zero would make all outputs
    constant.
    """
    single = 0.2 if len(pruner.compactors) <= 8 else 0.0
    keep = {}
    drawn: dict[int, bool] = {}
    for compactor, channels in zip(
        pruner.compactors, pruner.compactor_channels(), strict=True
    ):
        kept = rng.random(compactor.width) < share
        # The rows of one channel are kept together, except the single rows below.
        pairs = zip(channels.tolist(), kept.tolist(), strict=True)
        kept = np.array([drawn.setdefault(channel, one) for channel, one in pairs])
        if rng.random() < single:
            kept[:] = False
        kept[rng.integers(compactor.width)] = True
        keep[compactor.name] = kept
    return keep


def by_channel(pruner, keep):
    """Returns the same rows, and all other rows of their channels."""
    rows = pruner.compactor_channels()
    masks = [keep[compactor.name] for compactor in pruner.compactors]
    gone = rows.masked(masks)
    return {
        compactor.name: ~np.isin(channels, gone)
        for compactor, channels in zip(pruner.compactors, rows, strict=True)
    }


def every_second(pruner, rng):
    """Returns half of all channels that can be pruned, evenly over the layers."""
    known: dict[int, bool] = {}
    for channels in pruner.compactor_channels():
        new = [c for c in dict.fromkeys(channels.tolist()) if c not in known]
        known.update({channel: i % 2 == 0 for i, channel in enumerate(new)})
    rows = zip(pruner.compactors, pruner.compactor_channels(), strict=True)
    return {c.name: np.array([known[i] for i in ids.tolist()]) for c, ids in rows}


def forget_at_random(pruner, rng, choose=random_keep):
    """Moves compactors and zeroes about half of their rows; returns which stay."""
    perturb(pruner, rng)
    keep = choose(pruner, rng)
    for compactor in pruner.compactors:
        kernel = np.asarray(compactor.kernel) * keep[compactor.name]
        compactor.kernel.assign(kernel)
    # Pruning changed the inputs of BatchNorms. Without new statistics, the outputs of a
    # deep network would become constant.
    calibrate(pruner, rng)
    return keep


def outputs(model, seed=1):
    return model(example(model, seed), training=False)


def assert_prunes_exactly(
    model,
    targets="all",
    kind="matrix",
    seed=0,
    fuse_bn=True,
    dtype="float32",
    must_live=True,
    choose=random_keep,
):
    """Wraps, moves and zeroes rows, converts, and compares.

    Returns:
        The pruner, the converted model and the report, for further checks.
    """
    rng = np.random.default_rng(seed)
    randomise(model, seed)
    before = [np.array(w) for w in model.get_weights()]
    pruner = resrep_tf.wrap(model, targets, kind)
    assert compare(outputs(model), outputs(pruner)) <= TOLERANCE[dtype]
    keep = forget_at_random(pruner, rng, choose)
    expected = outputs(pruner)
    assert alive(expected) or not must_live
    slim, report = resrep_tf.convert(
        pruner, fuse_bn=fuse_bn, return_report=True, verify=False
    )
    assert difference(pruner, expected, slim, dtype) <= TOLERANCE[dtype]
    assert_plain(slim)
    assert report.new_flops == resrep_tf.count_flops(slim)
    assert report.new_flops == sum(layer.new_flops for layer in report.layers)
    assert report.flops == resrep_tf.count_flops(model)
    # All channels that `wrap` calls prunable can be dropped, with one exception: if all
    # channels of one part of a split were to go, one of them stays.
    assert all("would have no channel left" in why for why in report.kept)
    assert report.kept or report.new_flops == predicted_flops(pruner, keep)
    # A traced layer of several outputs has one name for all of them.
    names = getattr(model, "output_names", ())
    if names and len(set(names)) == len(names):
        assert slim.output_names == model.output_names
    assert [t.name for t in slim.inputs] == [t.name for t in model.inputs]
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    return pruner, slim, report


def difference(model, expected, slim, dtype):
    """Returns the difference between a model's outputs and the expected ones.

    If it is too large, differences that rounding explains are left out: in tiny random
    networks, the terms of outputs may cancel.
    """
    found = outputs(slim)
    worst = compare(expected, found)
    if worst <= TOLERANCE[dtype]:
        return worst
    allowed = rounding(model, lambda: keras.tree.flatten(outputs(model)), dtype)
    return compare(expected, found, allowed)


def alive(values):
    """Returns whether outputs depend on the input; constant ones would always agree."""
    spread = [np.ptp(np.asarray(v), axis=0).max() for v in keras.tree.flatten(values)]
    return max(spread) > 1e-3


def predicted_flops(pruner, keep):
    """Returns the FLOPs that are predicted for the model without dropped channels."""
    kept = np.ones(pruner.graph.num_channels, bool)
    masks = [keep[compactor.name] for compactor in pruner.compactors]
    kept[pruner.compactor_channels().masked(masks)] = False
    return terms.count(pruner.graph.terms, kept)


def assert_plain(model):
    """Asserts that no layer is this library's, except for weights of the user's."""
    for layer in model.layers:
        own = type(layer).__module__.startswith("resrep_tf")
        assert not own or isinstance(layer, lifted.Owner), layer
        if isinstance(layer, keras.Model):
            assert_plain(layer)
