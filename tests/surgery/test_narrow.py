"""The seams of `Narrower`: what a subclass can decide."""

import keras
import numpy as np
from keras import layers as L

import resrep_tf
from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.pruning.rows import removed_by
from resrep_tf.rules import Fusion
from resrep_tf.rules.fusion import AFFINE, MATRIX
from resrep_tf.surgery.decide import decide
from resrep_tf.surgery.narrow import Narrower
from resrep_tf.surgery.rebuild import Rebuilder
from resrep_tf.surgery.verify import compare
from support.checks import forget_at_random, outputs, randomise


class Renormed(Narrower):
    """Puts a fresh BatchNorm in the place of each that is merged with a compactor.

    It holds the merged bias, and the filters of the layer before it have norm 1.
    """

    def __init__(self, graph, dropping):
        super().__init__(graph, dropping, fuse_bn=False)
        self.fresh = {}

    def instead(self, call, values, trainable):
        if call.rule.role == AFFINE:
            return Rebuilder.call(self, call, values, trainable)
        return super().instead(call, values, trainable)

    def make(self, call):
        if id(call.op) in self.fresh:
            scale, bias = self.fresh[id(call.op)]
            weights = [scale, bias, np.zeros_like(scale), np.ones_like(scale)]
            return L.BatchNormalization(epsilon=0.0, name=call.name), weights
        found = self.graph.absorbable([call])
        if MATRIX not in found or AFFINE not in found:
            return super().make(call)
        merged = call.rule.merge(call, self.keeps(call), self.fusion(call))
        norms = np.sqrt(np.square(merged.kernel).sum(axis=(0, 1, 2)))
        self.fresh[id(found[AFFINE][0].op)] = (norms, merged.bias)
        unit = merged.scaled(1 / norms)
        return call.rule.rebuild(call, type(unit)(unit.kernel, None))


def model():
    inputs = keras.Input((8, 8, 3))
    x = inputs
    for name in "abc":
        x = L.Conv2D(6, 3, padding="same", use_bias=False, name=name)(x)
        x = L.ReLU()(L.BatchNormalization(name=f"bn_{name}")(x))
    x = L.GlobalAveragePooling2D()(x)
    return randomise(keras.Model(inputs, L.Dense(3)(x)))


def test_a_fresh_batchnorm_behind_each_merged_kernel():
    pruner = resrep_tf.wrap(model())
    keep = forget_at_random(pruner, np.random.default_rng(0))
    rows = {c: keep[c.name] for c in pruner.compactors}
    graph = ChannelGraph(pruner)
    dropping = decide(graph, removed_by(graph, rows))
    slim = Renormed(graph, dropping).build()
    assert compare(outputs(pruner), outputs(slim)) < 1e-5
    for compactor, name in zip(pruner.compactors, "abc", strict=True):
        conv, norm = slim.get_layer(name), slim.get_layer(f"bn_{name}")
        assert conv.filters == norm.gamma.shape[0] == keep[compactor.name].sum()
        assert conv.bias is None
        norms = np.sqrt(np.square(np.asarray(conv.kernel)).sum(axis=(0, 1, 2)))
        np.testing.assert_allclose(norms, 1.0, rtol=1e-5)


def test_a_matrix_that_several_layers_share_is_made_once():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(5, 1, name="stem")(inputs)
    for name in ("one", "two"):
        x = L.Add()([x, L.Conv2D(5, 3, padding="same", name=name)(x)])
    plain = keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    pruner = resrep_tf.wrap(randomise(plain), "all")
    (compactor,) = pruner.compactors
    made = []
    compactor.matrix = lambda keep: (
        made.append(1) or type(compactor).matrix(compactor, keep)
    )
    graph = ChannelGraph(pruner)
    rows = {compactor: np.array([True, False, True, True, False])}
    narrower = Narrower(graph, decide(graph, removed_by(graph, rows)), fuse_bn=True)
    slim = narrower.build()
    assert [slim.get_layer(n).filters for n in ("stem", "one", "two")] == [3, 3, 3]
    assert made == [1] and not narrower._parts


def test_without_anything_merged_a_layer_keeps_its_weights():
    plain = model()
    graph = ChannelGraph(plain)
    narrower = Narrower(graph, decide(graph, {}), fuse_bn=False)
    for call in graph.calls.values():
        assert narrower.fusion(call) == Fusion()
        assert not narrower.merges(call)
    for old, new in zip(
        plain.get_weights(), narrower.build().get_weights(), strict=True
    ):
        np.testing.assert_array_equal(old, new)
