"""Runs the training command on a number of logical CPU devices.

    python tests/support/on_devices.py NUMBER --flag=value ...

The number of devices must be set before TensorFlow is used.
"""

import sys

import tensorflow as tf

from resrep_tf.cli.running import run
from resrep_tf.train.pipeline import run as train

if __name__ == "__main__":
    number = int(sys.argv.pop(1))
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * number,
    )
    run(train)
