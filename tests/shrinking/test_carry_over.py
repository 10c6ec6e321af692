"""Optimizers of narrower models go on where the pruner's are."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import resrep_tf
from resrep_tf.shrinking.shrinking import shrink
from resrep_tf.surgery.verify import compare
from support.checks import example, randomise
from support.models.graphs import chain, depthwise, forgetful


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9
        ),
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.Nadam(0.01),
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
        lambda: keras.optimizers.AdamW(0.01, amsgrad=True),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    ],
)
def test_the_optimizer_goes_on(make):
    """On weights that nothing was merged into, its next step is the pruner's."""
    pruner = resrep_tf.wrap(randomise(depthwise()), ["conv2d", "conv2d_2"])
    pruner.compile(make(), "mse", snap=False, run_eagerly=True)
    x, rng = example(pruner), np.random.default_rng(0)
    keras.Model.fit(pruner, x, rng.normal(size=(8, 3)), epochs=3, verbose=0)
    for compactor in pruner.compactors:
        compactor.kernel.assign(
            np.asarray(compactor.kernel) * (np.arange(compactor.width) > 1)
        )
    optimizer = make()
    slim = shrink(pruner, x, optimizer=optimizer)
    assert int(np.asarray(optimizer.iterations)) == 3

    old = {v.path: v for v in pruner.trainable_variables if "compactor" not in v.path}
    new = {v.path: v for v in slim.trainable_variables}
    same = ["batch_normalization_2/gamma", "batch_normalization_3/beta", "dense/bias"]
    kept = {
        "conv2d_1/kernel": np.s_[:, :, 2:],
        "depthwise_conv2d/kernel": np.s_[:, :, 2:],
        "batch_normalization_1/beta": np.s_[2:],
        "dense/kernel": np.s_[2:],
    }
    assert not set(same) - set(new)
    cuts = dict.fromkeys(same, np.s_[...]) | kept
    gradients = {path: rng.normal(size=v.shape) for path, v in old.items()}
    narrow = {
        path: gradients[path][cuts[path]] if path in cuts else np.zeros(v.shape)
        for path, v in new.items()
    }
    scale = 2.0**15 if hasattr(optimizer, "inner_optimizer") else 1.0
    for trainer, values, variables in [
        (pruner.optimizer, gradients, old),
        (optimizer, narrow, new),
    ]:
        grads = [tf.constant(scale * values[p], "float32") for p in variables]
        trainer.apply(grads, list(variables.values()))
    for name, part in cuts.items():
        np.testing.assert_allclose(
            np.asarray(new[name]), np.asarray(old[name])[part], rtol=1e-6
        )


@pytest.mark.filterwarnings("ignore:The shrunk model is as wide as before")
def test_merged_weights_start_from_rest():
    pruner = resrep_tf.wrap(randomise(chain()))
    pruner.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    x = example(pruner)
    keras.Model.fit(pruner, x, np.zeros((8, 3)), epochs=3, verbose=0)
    optimizer = keras.optimizers.Adam(0.01)
    shrink(pruner, x, optimizer=optimizer)
    slots = {v.path.split("/")[-1]: np.asarray(v) for v in optimizer.variables}
    old = {v.path.split("/")[-1]: np.asarray(v) for v in pruner.optimizer.variables}
    for name in ("conv1_kernel", "bn1_gamma", "bn2_beta"):
        assert not slots[f"{name}_momentum"].any()
        # Divided by nothing, the first steps would be several times too large.
        np.testing.assert_allclose(
            slots[f"{name}_velocity"], old[f"{name}_velocity"].mean(), rtol=1e-5
        )
    for name in ("momentum", "velocity"):
        np.testing.assert_array_equal(
            slots[f"head_kernel_{name}"], old[f"head_kernel_{name}"]
        )
        assert old[f"head_kernel_{name}"].any()


@pytest.mark.slow
def test_replicas():
    """In a process of its own, where there are two devices."""
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests.parent), str(tests)])
    run = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]


def check_replicas():
    """A model that was trained on two replicas is shrunk, and trained on there."""
    device = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(device, logical)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = {"batch_size": 4, "verbose": 0, "shuffle": False}
    y = np.zeros((8, 3))
    with strategy.scope():
        pruner = resrep_tf.wrap(randomise(chain()))
        pruner.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    x = example(pruner)
    keras.Model.fit(pruner, x, y, **options)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        slim = shrink(pruner, x, optimizer=optimizer)
        slim.compile(optimizer, "mse")
    assert compare(pruner.predict(x, verbose=0), slim.predict(x, verbose=0)) < 1e-5
    slot = next(v for v in optimizer.variables if v.path.endswith("head_bias_momentum"))
    parts = [np.array(p) for p in strategy.experimental_local_results(slot.value)]
    assert len(parts) == 2 and parts[0].any()
    np.testing.assert_array_equal(*parts)
    slim.fit(x, y, **options)
    assert int(np.asarray(optimizer.iterations.numpy())) == 4


def test_optimizers_that_cannot_go_on():
    pruner = forgetful(chain())
    x = example(pruner)
    with pytest.raises(ValueError, match="and a model that is not compiled"):
        shrink(pruner, x, optimizer=keras.optimizers.SGD())
    pruner.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.raises(ValueError, match=r"SGD\. Received: .*of another type"):
        shrink(pruner, x, optimizer=keras.optimizers.Adam())
    with pytest.raises(ValueError, match="built already"):
        shrink(pruner, x, optimizer=pruner.optimizer)
    pruner.compile(keras.optimizers.Adafactor(), "mse")
    with pytest.raises(ValueError, match="state of Adafactor cannot be carried over"):
        shrink(pruner, x, optimizer=keras.optimizers.Adafactor())


if __name__ == "__main__":
    check_replicas()
