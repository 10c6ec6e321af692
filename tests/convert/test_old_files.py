"""Models that version 0.1.0 saved can still be read, trained and converted."""

from pathlib import Path

import keras
import numpy as np
import pytest

import resrep_tf
from resrep_tf.convert.conversion import UnfinishedWarning

FILES = Path(__file__).parent / "files"


@pytest.fixture(scope="module")
def outputs():
    with np.load(FILES / "outputs-0.1.0.npz") as stored:
        return dict(stored)


def examples():
    rng = np.random.default_rng(1)
    return rng.normal(size=(8, 6, 6, 2)).astype("float32"), rng.integers(0, 3, 8)


def test_a_wrapped_model(outputs):
    pruner = keras.models.load_model(FILES / "wrapped-0.1.0.keras")
    assert isinstance(pruner, resrep_tf.ResRepModel)
    found = pruner(outputs["inputs"], training=False)
    np.testing.assert_allclose(found, outputs["wrapped"], rtol=1e-5)
    assert [c.targets for c in pruner.compactors] == [("conv",), ("conv2",)]
    assert [np.sum(c.mask) for c in pruner.compactors] == [3, 2]
    # Of the two masked channels, one is zero and one is not.
    with pytest.warns(UnfinishedWarning, match="1 of 2 masked channels"):
        slim = resrep_tf.convert(pruner)
    found = slim(outputs["inputs"], training=False)
    np.testing.assert_allclose(found, outputs["converted"], rtol=1e-5)


def test_a_wrapped_model_trains_on():
    pruner = keras.models.load_model(FILES / "wrapped-0.1.0.keras")
    # Two epochs of two batches were trained before.
    assert int(pruner.optimizer.iterations) == 4
    assert int(pruner.compactor_optimizer.iterations) == 4
    compactor = pruner.compactors[1]
    before = np.asarray(compactor.row_norms())
    keras.Model.fit(pruner, *examples(), batch_size=8, epochs=1, verbose=0)
    assert int(pruner.optimizer.iterations) == 5
    # The masked row is forgotten: nothing but the Lasso moves it.
    assert np.asarray(compactor.row_norms())[2] < before[2]
    assert np.asarray(pruner.compactors[0].row_norms())[1] == 0
    slim = resrep_tf.convert(pruner, drop_masked=True)
    assert [slim.get_layer(n).filters for n in ("conv", "conv2")] == [3, 2]


def test_a_converted_model(outputs):
    slim = keras.models.load_model(FILES / "converted-0.1.0.keras")
    found = slim(outputs["inputs"], training=False)
    np.testing.assert_allclose(found, outputs["converted"], rtol=1e-5)
    assert slim.get_layer("conv").filters == 3
    # It is a plain model, which can be wrapped once more.
    pruner = resrep_tf.wrap(slim)
    pruner.compile("sgd", "sparse_categorical_crossentropy")
    keras.Model.fit(pruner, *examples(), batch_size=8, epochs=1, verbose=0)
    keep = {"conv": [True, False, True]}
    assert resrep_tf.convert(pruner, keep=keep).get_layer("conv").filters == 2
