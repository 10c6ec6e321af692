"""What every test starts from: a quiet TensorFlow and a fresh, seeded Keras."""

import gc
import os

# All are read once, when Keras and TensorFlow are imported.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# oneDNN's low-precision kernels die of an illegal instruction on some CPUs, and what it
# rounds depends on the CPU.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import pytest

SEED = 0


def reset_keras() -> None:
    import keras

    # Without its garbage collection, which takes 0.16 s: that is done per module.
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)


def pytest_configure(config):
    """Leaves rewriting and compiling of graphs to the slow tests and to the commands.

    For thousands of small graphs, which run a few times, they take longer than they
    save. What is about XLA asks for it with `jit_compile=True`.
    """
    if config.getoption("numprocesses", None):
        return  # The process that hands out the tests needs no TensorFlow.
    import keras
    import tensorflow as tf

    if config.getoption("markexpr") == "not slow":
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        # What `jit_compile="auto"`, the default, means to Keras.
        keras.Model._resolve_auto_jit_compile = lambda model: False
    # For fixtures wider than a test, which are made before the first one.
    reset_keras()


def pytest_collection_finish():
    """Exempts what is imported by now from garbage collection: it stays for good."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh_keras():
    """Seed each test, and leave no names, policies or graphs to the next one."""
    import keras

    keras.utils.set_random_seed(SEED)
    yield
    reset_keras()


@pytest.fixture(autouse=True, scope="module")
def free_memory():
    yield
    gc.collect()
