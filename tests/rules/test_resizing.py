"""Constants that are interpolated."""

import keras
import pytest
from keras import layers as L

from support.checks import assert_prunes_exactly, precision


@pytest.mark.parametrize(
    "resize", [L.Resizing(7, 6), L.UpSampling2D(2, interpolation="bilinear")]
)
def test_a_constant_is_rounded_as_tensorflow_interpolates_it(resize):
    with precision("float64"):
        inputs = keras.Input((6, 6, 2))
        x = L.Conv2D(5, 3, activation="softplus")(inputs)
        resize = type(resize).from_config(resize.get_config() | {"dtype": "float64"})
        model = keras.Model(inputs, L.Conv2D(3, 2)(resize(x)))
        assert_prunes_exactly(model, dtype="float64")
