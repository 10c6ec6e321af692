"""The methods of `--method`: ResRep, and the methods that it is compared with.

All of them train on the same data, in the same order, for the same number of epochs,
and meet the same targets on the same channel graph.
"""

import keras

from resrep_tf.train.methods.base import Method, Outcome
from resrep_tf.train.methods.one_shot import OneShot
from resrep_tf.train.methods.resrep import ResRep
from resrep_tf.train.settings import Settings
from resrep_tf.train.training import Trainer

__all__ = ["Method", "Outcome", "make"]


def make(
    settings: Settings, trainer: Trainer, teacher: keras.Model | None = None
) -> Method:
    """Returns the method that `--method` names."""
    kind = ResRep if settings.method == "resrep" else OneShot
    return kind(settings, trainer, teacher)
