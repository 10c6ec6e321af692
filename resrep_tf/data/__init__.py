"""Input pipelines: image classification sets by name, reproducible and resumable.

The order of the training images and their augmentation depend on the seed, the epoch
and the example alone. So a run can start at any step and continue exactly like the run
that it replaces, without reading the images before that step.
"""

from resrep_tf import lazy

# Imported on first use: checking flags needs only the names.
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
