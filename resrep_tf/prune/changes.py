"""Reports the change of each layer, from a model before and after pruning."""

import keras

from resrep_tf.convert.report import ConversionReport, LayerChange
from resrep_tf.explain import explain


def difference(before: keras.Model, after: keras.Model) -> ConversionReport:
    """Returns the change of each layer, from two plain models."""
    old, new = explain(before), explain(after)
    found = {layer.name: layer for layer in new.layers}
    layers = tuple(
        LayerChange(
            layer.name,
            layer.kind,
            layer.width,
            found[layer.name].width,
            layer.flops,
            found[layer.name].flops,
            folded=0,
        )
        for layer in old.layers
    )
    return ConversionReport(
        layers,
        old.flops,
        new.flops,
        before.count_params(),
        after.count_params(),
        rows_dropped=0,
        largest_norm_dropped=0.0,
        kept={},
    )
