"""The roles in which operations are merged into the kernel directly before them.

The `role` of a rule is the role in which its operation can be merged. For a layer with
a kernel, `absorbs` has the roles that can be merged into it, in their order. All code
that merges layers uses these two.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# A scale and a shift for each channel (BatchNorm), a map over the channels (compactor)
# and a function of each element (an activation).
AFFINE, MATRIX, ACTIVATION = ROLES = ("affine", "matrix", "activation")


@dataclass(frozen=True)
class Fusion:
    """The operations that are merged into a kernel, as numbers.

    With y the kernel's output, the merged layer computes
    `activation((y * scale + shift) @ matrix)`: a BatchNorm gives `scale` and
    `shift` (Eq. 5 of the paper), a compactor gives `matrix`, its kept columns
    (Eq. 8 and 9).
    """

    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    matrix: np.ndarray | None = None
    activation: Callable[[Any], Any] | None = None

    def factors(self, keep: np.ndarray) -> np.ndarray:
        """Returns the factor of each channel, if `matrix` is diagonal.

        Args:
            keep: A boolean for each channel, true if it has a column.
        """
        found = np.zeros(len(keep))
        places = np.flatnonzero(keep)
        if np.count_nonzero(self.matrix) > np.count_nonzero(
            self.matrix[places, np.arange(len(places))]
        ):
            raise ValueError(
                "Behind a layer that makes each channel alone, a compactor can only be "
                "merged if it scales each channel: it must be of kind 'vector'. "
                "Received: a compactor that mixes channels"
            )
        found[places] = self.matrix[places, np.arange(len(places))]
        return found

    def with_part(self, part: "Fusion") -> "Fusion":
        """Returns this fusion together with that of another operation."""
        given = {name: value for name, value in vars(part).items() if value is not None}
        return dataclasses.replace(self, **given)


@dataclass(frozen=True)
class Merged:
    """A layer's weights, into which other operations were merged, in float64.

    Args:
        kernel: Its last axis is the output channels; in a depthwise layer the last two
            axes are.
        bias: One value for each output channel, or None.
        before: The layer's weights before this kernel.
        output_axes: The number of the kernel's last axes that are output channels.
    """

    kernel: np.ndarray
    bias: np.ndarray | None
    before: tuple[np.ndarray, ...] = ()
    output_axes: int = 1

    def scaled(self, scale: np.ndarray) -> "Merged":
        """Returns weights that multiply the output by `scale`, by channel."""
        kernel = self.kernel * scale.reshape(self.kernel.shape[-self.output_axes :])
        bias = None if self.bias is None else self.bias * scale
        return dataclasses.replace(self, kernel=kernel, bias=bias)

    def shifted(self, shift: np.ndarray) -> "Merged":
        """Returns weights that add `shift` to the output."""
        bias = (0.0 if self.bias is None else self.bias) + shift
        return dataclasses.replace(self, bias=bias)

    def normalised(self, fusion: Fusion) -> "Merged":
        """Returns the weights with the BatchNorm of a fusion, if it has one."""
        if fusion.scale is None:
            return self
        return self.scaled(fusion.scale).shifted(fusion.shift)
