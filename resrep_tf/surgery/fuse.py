"""Merges the BatchNorms of a plain model into the layers before them."""

import keras

from resrep_tf.graph.channel_graph import ChannelGraph
from resrep_tf.surgery.decide import decide
from resrep_tf.surgery.narrow import Narrower
from resrep_tf.surgery.verify import (
    TOLERANCES,
    difference,
    lowest_precision,
    random_inputs,
)


def fused(model: keras.Model) -> tuple[keras.Model, float]:
    """Copies a model with its BatchNorms merged, as for deployment.

    Returns:
        The copy, and by how much its outputs differ on random inputs, relative to
        their scale.
    """
    graph = ChannelGraph(model)
    copy = Narrower(graph, decide(graph, {}), fuse_bn=True).build()
    inputs = random_inputs(model, graph.input_shapes)
    precision = lowest_precision(model)
    limit = TOLERANCES[precision]
    found = difference(model, copy, inputs, limit, precision)
    if not found <= limit:
        raise ValueError(
            "The model with merged BatchNorms does not compute what it should: outputs "
            f"differ by {found:.3g} of their scale. Received: model={model!r}"
        )
    return copy, found
