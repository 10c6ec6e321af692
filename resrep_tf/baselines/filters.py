"""Res without Rep (Sect. 4.3 of the paper): layers forget filters of their own.

Nothing is re-parameterised. `resrep_tf.wrap(model, compactor="filters")` puts a
stand-in behind each target layer: it has the masks, computes nothing, and hands the
layer's filters over to be forgotten in its place.
"""

from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from resrep_tf.baselines.names import FILTERS
from resrep_tf.graph.channel_graph import ChannelGraph, Space
from resrep_tf.pruning.compactor import Compactor, CompactorRule, register_kind
from resrep_tf.rules import register


@register_kind(FILTERS)
@keras.saving.register_keras_serializable(package="resrep_tf")
class FilterStandIn(Compactor):
    """Stands in for the filters of the layer before it; its kernel stays all ones.

    The rows of an identity all have norm 1; filters start with arbitrary norms. A
    weight keeps them, because plans need them in the middle of training too.

    Args:
        targets: Name of the layer whose filters are to be forgotten.
        kind: `"filters"`.
        axis: The channel axis.
    """

    # A filter of zeros still leaves the constant of its BatchNorm behind.
    exact_when_zero = False
    trains_kernel = False

    def __init__(
        self,
        targets: Sequence[str] = (),
        kind: str = FILTERS,
        axis: int = -1,
        **kwargs,
    ):
        super().__init__(targets, kind, axis, **kwargs)
        self._filters: Callable[[], keras.Variable] | None = None

    def build(self, input_shape):
        super().build(input_shape)
        self._start = self.add_row_state("norms_at_start", self.width)

    @property
    def rows(self) -> keras.Variable:
        return self.kernel if self._filters is None else self._filters()

    def norms_at_start(self) -> np.ndarray:
        return ops.convert_to_numpy(self._start)

    @classmethod
    def check(cls, spaces: Sequence[Space]) -> None:
        for space in spaces:
            producer = space.producers[0]
            _, axis = producer.calls[0].rule.filters(producer.layer)
            why = None
            if space.scaled:
                why = f"needs `{space.scaled[0].name}` to forget its channels too"
            elif len(space.producers) > 1:
                why = "shares its channels with other layers"
            elif axis != -1:
                why = "has its output channels on another axis than the last"
            elif not producer.layer.trainable:
                why = "is frozen"
            if why is not None:
                raise ValueError(
                    f"The filters of `{producer.name}` cannot be trained to be "
                    f"forgotten: the layer {why}. Leave it out of `targets`. "
                    "Received: compactor='filters'"
                )

    @classmethod
    def attach(cls, model: keras.Model) -> None:
        """Finds the filters of all stand-ins, and notes the norms they have."""
        graph = ChannelGraph(model)
        producers = {
            space.producers[0].channels.tobytes(): space.producers[0]
            for space in graph.spaces
        }
        for call in graph.calls.values():
            if isinstance(call.op, cls):
                producer = producers[call.outputs[0].channels.tobytes()]
                filters, _ = producer.calls[0].rule.filters(producer.layer)
                call.op._stand_in_for(filters)

    def _stand_in_for(self, filters: keras.Variable) -> None:
        # Hidden in a function: Keras would take an attribute for this layer's weight,
        # and save it twice.
        self._filters = lambda: filters
        self._start.assign(self.row_norms())

    @staticmethod
    def usual_momentum(optimizer: keras.Optimizer) -> float:
        """Returns the main optimizer's momentum, so that all filters train alike."""
        if not isinstance(optimizer, keras.optimizers.SGD):
            raise ValueError(
                "Without SGD it is not clear how to train filters: give "
                f"`compactor_optimizer`. Received: optimizer={optimizer!r}"
            )
        return optimizer.momentum


register(FilterStandIn)(CompactorRule)
# Keras finds a layer's weights in a file by the name of its class, and all kinds were
# of one class in version 0.1.0.
FilterStandIn.__name__ = Compactor.__name__
