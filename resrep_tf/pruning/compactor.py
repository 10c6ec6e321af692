"""The compactor: the layer whose rows are trained to be forgotten."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from resrep_tf.pruning import gradient_reset
from resrep_tf.rules import Channelwise, Fusion, fusion, register
from resrep_tf.rules.base import VARYING, ZERO
from resrep_tf.rules.channelwise import Activation
from resrep_tf.selection.schedule import Schedule

MATRIX, VECTOR = "matrix", "vector"
# The classes of compactors by the names of their kinds.
KINDS: dict[str, type["Compactor"]] = {}


def register_kind(*names: str) -> Callable[[type], type]:
    """Makes a class of compactors known to `resrep_tf.wrap` by the names of its kinds.

    The class decorator is for `Compactor` and its subclasses.
    """

    def add(kind: type) -> type:
        KINDS.update(dict.fromkeys(names, kind))
        return kind

    return add


@register_kind(MATRIX, VECTOR)
@keras.saving.register_keras_serializable(package="resrep_tf")
class Compactor(keras.layers.Layer):
    """A linear map over channels, identity at the start (Sect. 3.2 of the paper).

    It stands behind the layers that make a space of channels. Training drives some
    of its rows to zero; `resrep_tf.convert` drops those and merges the others into
    the layers before it.

    Args:
        targets: Names of the layers whose channels it prunes.
        kind: `"matrix"`, a 1x1 convolution without bias, or `"vector"`, one scale per
            channel (a variant in the paper's Table 3).
        axis: The channel axis.
        groups: The number of groups of channels; each group is mapped to itself.
            Behind a convolution with groups, only such a map can be merged into it.

    The kernel of a matrix compactor is laid out (in, out) as in `keras.layers.Dense`,
    (in of a group, out) as in `keras.layers.Conv2D` if there are several, so the
    paper's row j is `kernel[:, j]`. `mask` has a 1 for every row to keep
    and a 0 for every row that is to be forgotten.

    Subclasses may train other variables to be forgotten: see `rows`.

    Reference:
        [ResRep: Lossless CNN Pruning via Decoupling Remembering and Forgetting](
        https://arxiv.org/abs/2007.03260)
    """

    # Whether dropping a row of zeros leaves the model's outputs as they are.
    exact_when_zero = True
    trains_kernel = True

    def __init__(
        self,
        targets: Sequence[str] = (),
        kind: str = MATRIX,
        axis: int = -1,
        groups: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(self, KINDS.get(kind, ())):
            raise ValueError(
                f"`kind` must be one of {tuple(KINDS)}. Received: kind={kind!r}"
            )
        self.targets = tuple(targets)
        self.kind = kind
        self.axis = axis
        self.groups = groups
        self.supports_masking = True

    def build(self, input_shape):
        width = input_shape[self.axis]
        if width is None:
            raise ValueError(
                f"The channel axis {self.axis} of a Compactor's input must be known. "
                f"Received: input_shape={input_shape}"
            )
        matrix = self.kind == MATRIX
        self.kernel = self.add_weight(
            name="kernel",
            shape=(width // self.groups, width) if matrix else (width,),
            initializer=_identities if matrix else "ones",
            trainable=self.trains_kernel,
        )
        self.mask = self.add_row_state("mask", width)

    def add_row_state(self, name: str, width: int) -> keras.Variable:
        """Adds a weight with a number for each row, which is not trained."""
        return self.add_weight(
            name=name,
            shape=(width,),
            initializer="ones",
            trainable=False,
            autocast=False,
        )

    def call(self, inputs):
        axis = self.axis % len(inputs.shape)
        last = len(inputs.shape) - 1
        if self.kind != MATRIX:
            shape = [1] * len(inputs.shape)
            shape[axis] = -1
            return inputs * ops.reshape(self.kernel, shape)
        kernel = _block_diagonal(self.kernel, self.groups)
        outputs = ops.tensordot(inputs, kernel, axes=[[axis], [0]])
        return outputs if axis == last else ops.moveaxis(outputs, last, axis)

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def width(self) -> int:
        """The number of rows."""
        return self.kernel.shape[-1]

    # === Rows ===

    @property
    def rows(self) -> keras.Variable:
        """The variable whose rows (its last axis) are trained to be forgotten."""
        return self.kernel

    def row_norms(self) -> Any:
        """Returns the paper's metric t: the norm of every row."""
        return gradient_reset.row_norms(self.rows)

    def norms_at_start(self) -> np.ndarray:
        """Returns the norms that the rows had when the model was wrapped.

        Plans use them, so that a plan is the same after a restart as before.
        """
        return np.ones(self.width)

    @classmethod
    def check(cls, spaces: Sequence[Any]) -> None:
        """Raises if this class cannot prune one of the spaces."""

    @classmethod
    def attach(cls, model: keras.Model) -> None:
        """Prepares all compactors of this class, once, after their model is made."""

    @staticmethod
    def usual_momentum(optimizer: keras.Optimizer) -> float:
        """Returns the default momentum with which rows are trained.

        Args:
            optimizer: The optimizer of all other weights.
        """
        return Schedule.momentum

    def matrix(self, keep: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Returns the kernel as a matrix in float64, whatever the kind.

        Args:
            keep: Which columns (the paper's rows) to return.
        """
        kernel = ops.convert_to_numpy(self.kernel)
        if self.kind == MATRIX:
            matrix = ops.convert_to_numpy(_block_diagonal(kernel, self.groups))
        else:
            matrix = np.diag(kernel)
        return matrix[:, keep].astype(np.float64)

    # === Saving ===

    def get_config(self):
        config = super().get_config()
        config.update(targets=list(self.targets), kind=self.kind, axis=self.axis)
        if self.groups > 1:
            config["groups"] = self.groups
        return config

    @classmethod
    def from_config(cls, config):
        # Files of version 0.1 have this class for all kinds.
        kind = KINDS.get(config.get("kind"), cls)
        if kind is not cls and issubclass(kind, cls):
            return kind.from_config(config)
        return super().from_config(config)


def _identities(shape: Sequence[int], dtype: Any = None) -> Any:
    """Returns the kernel that maps every group of channels to itself."""
    return ops.tile(ops.eye(shape[0], dtype=dtype), (1, shape[1] // shape[0]))


def _block_diagonal(kernel: Any, groups: int) -> Any:
    """Returns a grouped kernel as one matrix from all channels to all."""
    if groups == 1:
        return kernel
    size, width = kernel.shape
    blocks = ops.reshape(kernel, (1, size, groups, size))
    own = ops.reshape(ops.eye(groups, dtype=kernel.dtype), (groups, 1, groups, 1))
    return ops.reshape(own * blocks, (width, width))


@keras.saving.register_keras_serializable(package="resrep_tf")
class SplitActivation(keras.layers.Activation):
    """A target layer's built-in activation, moved behind its compactor.

    `resrep_tf.convert` moves it back into the layer.
    """


@register(Compactor)
class CompactorRule(Channelwise):
    """The rule of a compactor: it costs nothing, since conversion merges it.

    Its row j and channel j of the layer before it are the same channel.
    """

    role = fusion.MATRIX
    shareable = True

    def relate(self, call, channels):
        channels.of_weights(call.op, "in", call.inputs[0].channels)
        return super().relate(call, channels)

    def status(self, call, inputs):
        return [np.where(inputs[0] == ZERO, ZERO, VARYING).astype(np.uint8)]

    def constants(self, call, inputs):
        return [np.full(call.outputs[0].width, np.nan)]

    def contribution(self, call, keeps):
        (keep,) = keeps.outputs
        matrix = call.op.matrix(keep)
        if keeps.replaced is not None:
            # A dropped row whose channel has to stay is zero.
            matrix[:, ~np.isnan(keeps.replaced[keep])] = 0.0
        return Fusion(matrix=matrix)


@register(SplitActivation)
class SplitActivationRule(Activation):
    """The rule of an activation that goes back into the layer before it."""

    role = fusion.ACTIVATION

    def contribution(self, call, keeps):
        return Fusion(activation=call.op.activation)
