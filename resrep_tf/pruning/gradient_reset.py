"""Gradient resetting, by which compactors forget (Sect. 3.3 of the paper).

Pure functions of (gradient, kernel, mask, strength). A kernel's *rows* in the
paper's sense are its output channels, the last axis in Keras's layout.
"""

from typing import Any

from keras import ops


def row_norms(kernel: Any) -> Any:
    """Returns the Euclidean norm of every output channel's weights."""
    axes = tuple(range(len(kernel.shape) - 1))
    # The root of a sum over no axis (a vector kernel) is the absolute value.
    return ops.sqrt(ops.sum(ops.square(kernel), axis=axes))


def row_effects(gradient: Any, kernel: Any) -> Any:
    """Returns the derivative of the loss with respect to the scale of every row."""
    axes = tuple(range(len(kernel.shape) - 1))
    return ops.sum(gradient * kernel, axis=axes)


def lasso_gradient(kernel: Any, strength: Any) -> Any:
    """Returns `strength * F / ||F||` for every row F, and zero where F is zero."""
    norms = row_norms(kernel)
    nonzero = ops.where(norms > 0, norms, ops.ones_like(norms))
    # Not `ops.cast`, which takes a Python number through float32. One factor for each
    # row first: kernels are larger than that, and every step passes over them.
    return kernel * (ops.convert_to_tensor(strength, kernel.dtype) / nonzero)


def reset_gradient(gradient: Any, kernel: Any, mask: Any, strength: Any) -> Any:
    """Returns the reset gradient (Eq. 14): the mask acts on all but the Lasso's part.

    Args:
        gradient: The gradient of the objective with respect to `kernel`.
        kernel: The weights, with output channels on the last axis.
        mask: A factor for each output channel: 1 to keep, 0 to forget.
        strength: The Lasso's strength, lambda.
    """
    return gradient * ops.cast(mask, gradient.dtype) + lasso_gradient(kernel, strength)
