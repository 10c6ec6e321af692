"""Crops: windows, sizes, and JPEG files that are decoded in part."""

import numpy as np
import pytest
import tensorflow as tf

from resrep_tf.data import images
from support.tfds import pictures


def test_crop_window_has_the_area_and_ratio_asked_for():
    draws = tf.random.stateless_uniform([400, images.WINDOW_DRAWS], [0, 1])
    windows = tf.data.Dataset.from_tensor_slices(draws).map(
        lambda draw: images.crop_window(tf.constant([300, 400, 3]), draw)
    )
    top, left, height, width = np.stack(list(windows.as_numpy_iterator())).T
    assert min(top.min(), left.min()) == 0
    assert (top + height).max() <= 300
    assert (left + width).max() <= 400
    areas = height * width / (300 * 400)
    assert 0.07 < areas.min() < 0.12
    assert 0.85 < areas.max() <= 1
    ratios = width / height
    assert 0.74 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.36


@pytest.mark.parametrize("shape, window", [
    ((4, 400, 3), (0, 197, 4, 5)),
    ((400, 4, 3), (197, 0, 5, 4)),
])  # fmt: skip
def test_crop_window_of_an_image_in_which_none_fits(shape, window):
    draws = tf.fill([images.WINDOW_DRAWS], 0.99)
    assert images.crop_window(tf.constant(shape), draws).numpy().tolist() == list(
        window
    )


def test_crop_of_a_jpeg_is_the_crop_of_the_decoded_image():
    picture = tf.io.encode_jpeg(pictures(1, 90, 120)[0])
    lossless = tf.io.encode_png(tf.io.decode_jpeg(picture))
    draws = tf.random.stateless_uniform([images.WINDOW_DRAWS], [3, 4])
    crops = [
        images.random_resized_crop(file, draws, 24) for file in (picture, lossless)
    ]
    assert crops[0].shape == (24, 24, 3)
    np.testing.assert_allclose(*crops, atol=3)
    assert np.ptp(crops[0]) > 50


def test_central_crop():
    picture = pictures(1, 256, 300)[0]
    crop = images.central_crop(tf.io.encode_png(picture), 224)
    np.testing.assert_allclose(crop, picture[16:240, 38:262], atol=1e-3)
    tall = images.central_crop(tf.io.encode_png(picture[:, :64]), 56)
    assert tall.shape == (56, 56, 3)


@pytest.mark.parametrize("height, width", [(90, 121), (375, 200), (40, 40)])
@pytest.mark.parametrize("size", [24, 56])
def test_central_crop_of_a_jpeg_is_that_of_the_resized_image(height, width, size):
    picture = tf.io.encode_jpeg(pictures(1, height, width)[0])
    whole = tf.io.decode_jpeg(picture)
    shorter = round(size * 256 / 224)
    sides = [side * shorter // min(height, width) for side in (height, width)]
    resized = tf.image.resize(whole, sides, antialias=True).numpy()
    top, left = (int(np.round((side - size) / 2)) for side in sides)
    expected = resized[top : top + size, left : left + size]
    for file in (picture, tf.io.encode_png(whole)):
        np.testing.assert_allclose(images.central_crop(file, size), expected, atol=0.01)
