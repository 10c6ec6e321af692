"""No word of TensorFlow's converters on stdout or stderr."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_quiet_in_a_process_of_its_own(tmp_path):
    script = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import sys, keras, numpy as np
from resrep_tf.export import export, load
model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3),
    keras.layers.Flatten(), keras.layers.Dense(2)])
print("begin", flush=True)
print("begin", file=sys.stderr, flush=True)
for name in ("tflite", "int8"):
    export(model, f"{sys.argv[1]}/{name}.tflite", name, np.ones((4, 8, 8, 3)))
    load(f"{sys.argv[1]}/{name}.tflite")(np.ones((4, 8, 8, 3)))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("begin")[1] == "\n"
    assert done.stderr.split("begin")[1] == "\n"
