"""No word of TensorFlow's converters on stdout or stderr."""

import subprocess
import sys

import pytest

MODEL = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import sys, keras, numpy as np
import resrep_tf
model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3),
    keras.layers.Flatten(), keras.layers.Dense(2)])
print("begin", flush=True)
print("begin", file=sys.stderr, flush=True)
"""
EXPORT = """
from resrep_tf.export import export, load
for name in ("tflite", "int8"):
    export(model, f"{sys.argv[1]}/{name}.tflite", name, np.ones((4, 8, 8, 3)))
    load(f"{sys.argv[1]}/{name}.tflite")(np.ones((4, 8, 8, 3)))
"""
MEASURE = """
for runtime in ("litert", "saved_model", "keras"):
    resrep_tf.measure_latency(model, runtime, threads=1, rounds=2, verbose=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", [EXPORT, MEASURE], ids=["export", "measure"])
def test_quiet_in_a_process_of_its_own(work, tmp_path):
    command = [sys.executable, "-c", MODEL + work, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("begin")[1] == "\n"
    assert done.stderr.split("begin")[1] == "\n"
