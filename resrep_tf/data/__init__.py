"""Input pipelines: image classification sets by name, reproducible and resumable.

The order of the training images and their augmentation are functions of the seed, the
epoch and the example alone, so that a run can start at any step and continue exactly
as the one it replaces, without reading what came before.
"""

from .dataset import Dataset
from .loading import load, names, train_examples

__all__ = ["Dataset", "load", "names", "train_examples"]
