"""Input pipelines: image classification sets by name, reproducible and resumable.

The order of the training images and their augmentation are functions of the seed, the
epoch and the example alone, so that a run can start at any step and continue exactly
as the one it replaces, without reading what came before.
"""

from resrep_tf import lazy

# Imported when asked for: flags need the names alone.
__getattr__ = lazy.attributes(
    __name__,
    {
        "Dataset": "resrep_tf.data.dataset",
        "check": "resrep_tf.data.loading",
        "load": "resrep_tf.data.loading",
        "names": "resrep_tf.data.loading",
        "train_examples": "resrep_tf.data.loading",
    },
)

__all__ = ["Dataset", "check", "load", "names", "train_examples"]
