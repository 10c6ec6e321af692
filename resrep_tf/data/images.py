"""Image operations of the input pipelines: decode, crop, flip, normalise."""

from __future__ import annotations

import math

import numpy as np

from resrep_tf.lazy import tf

# Mean and deviation of ImageNet's pixels divided by 255, as published weights expect.
RGB_MEAN = (0.485, 0.456, 0.406)
RGB_STD = (0.229, 0.224, 0.225)

# The limits of random resized crops: share of the image's area, width over height.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
# Two numbers for every attempted window, two for its place.
WINDOW_DRAWS = 2 * ATTEMPTS + 2

# Evaluation uses the middle of a slightly larger image: 224 of 256 pixels.
EVAL_SCALE = 256 / 224


def normalise(images: tf.Tensor, mean: np.ndarray, std: np.ndarray) -> tf.Tensor:
    """Scales pixels to about zero mean and unit variance.

    Args:
        images: One image or a batch, of any dtype.
        mean: Mean of each channel, in the units of `images`.
        std: Standard deviation of each channel.
    """
    # The constants have the shape of a whole image: broadcasting over a last axis of
    # three takes TensorFlow several times as long.
    shape = images.shape[-3:]
    scale = np.broadcast_to(1 / np.asarray(std, "float64"), shape)
    offset = scale * np.asarray(mean, "float64")
    images = tf.cast(images, tf.float32)
    return images * tf.constant(scale, tf.float32) - tf.constant(offset, tf.float32)


def shift_and_flip(
    images: tf.Tensor, draws: tf.Tensor, pad: int, flip: bool
) -> tf.Tensor:
    """Pads each image of a batch with zeros and crops it back at a random place.

    Args:
        images: A batch of images.
        draws: Three numbers in [0, 1) for each image.
        pad: Pixels added on each side, the largest possible shift.
        flip: Whether to mirror every second image, from left to right.
    """
    height, width, channels = images.shape[1:]
    padded_width = width + 2 * pad
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    offsets = tf.cast(draws[:, :2] * (2 * pad + 1), tf.int32)
    rows = offsets[:, :1] + tf.range(height)
    columns = tf.range(width)
    if flip:
        columns = tf.where(draws[:, 2:] < 0.5, columns[::-1], columns)
    columns = offsets[:, 1:] + columns
    pixels = rows[:, :, None] * padded_width + columns[:, None, :]
    flat = tf.reshape(padded, [-1, (height + 2 * pad) * padded_width, channels])
    return tf.gather(flat, pixels, batch_dims=1)


def crop_window(shape: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Draws the window of a random resized crop: top, left, height, width.

    The area and the logarithm of the ratio are uniformly distributed. The first of ten
    windows that fits is taken; if none fits, the largest one in the middle whose ratio
    is in range.

    Args:
        shape: Height and width of the image.
        draws: `WINDOW_DRAWS` numbers in [0, 1).
    """
    size = tf.cast(shape[:2], tf.float32)
    areas, ratios, place = tf.split(draws, [ATTEMPTS, ATTEMPTS, 2])
    areas = tf.reduce_prod(size) * (AREA[0] + areas * (AREA[1] - AREA[0]))
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratios = tf.exp(low + ratios * (high - low))
    tried = tf.round(tf.sqrt(tf.stack([areas / ratios, areas * ratios], axis=1)))
    fits = tf.reduce_all((tried > 0) & (tried <= size), axis=1)

    largest = tf.stack(
        [
            tf.minimum(size[0], tf.round(size[1] / RATIO[0])),
            tf.minimum(size[1], tf.round(size[0] * RATIO[1])),
        ]
    )
    found = tf.reduce_any(fits)
    window = tf.where(found, tried[tf.argmax(fits)], largest)
    room = size - window
    corner = tf.where(found, tf.floor(place * (room + 1)), tf.floor(room / 2))
    return tf.cast(tf.concat([corner, window], axis=0), tf.int32)


def decode(contents: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG or PNG file to RGB."""
    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def grey(image: tf.Tensor) -> tf.Tensor:
    """Returns an RGB image as one channel, the luma that JPEG files store."""
    weights = tf.constant([0.299, 0.587, 0.114])
    return tf.reduce_sum(tf.cast(image, tf.float32) * weights, axis=-1, keepdims=True)


def random_resized_crop(contents: tf.Tensor, draws: tf.Tensor, size: int) -> tf.Tensor:
    """Cuts a random window out of an encoded image and resizes it.

    Of a JPEG, only the window is decoded. It is resized without antialiasing, which
    would take longer than the decoding.

    Args:
        contents: A JPEG or PNG file.
        draws: `WINDOW_DRAWS` numbers in [0, 1).
        size: Height and width of the result.
    """

    def from_jpeg() -> tf.Tensor:
        window = crop_window(tf.io.extract_jpeg_shape(contents), draws)
        return tf.io.decode_and_crop_jpeg(contents, window, channels=3)

    def from_other() -> tf.Tensor:
        image = decode(contents)
        top, left, height, width = tf.unstack(crop_window(tf.shape(image), draws))
        return image[top : top + height, left : left + width]

    crop = tf.cond(tf.io.is_jpeg(contents), from_jpeg, from_other)
    return tf.image.resize(crop, [size, size])


def central_crop(contents: tf.Tensor, size: int) -> tf.Tensor:
    """Resizes an encoded image's shorter side and cuts out the middle.

    Of a JPEG, only the middle is decoded, with the margin that resizing needs, so that
    the result is the same as from the whole image.

    Args:
        contents: A JPEG or PNG file.
        size: Height and width of the result; the shorter side becomes 256/224 of it.
    """
    shorter = round(size * EVAL_SCALE)

    def from_jpeg() -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(contents)[:2]
        scale, corner = _central_window(shape, shorter, size)
        # The pixels that contribute to one pixel of the result, and one more for the
        # colours, which most files store at half of the resolution.
        margin = tf.math.ceil(tf.maximum(1 / scale, 1)) + 1
        first = tf.maximum(tf.floor(corner / scale - margin), 0)
        last = tf.math.ceil((corner + size) / scale + margin)
        last = tf.minimum(last, tf.cast(shape, tf.float32))
        window = tf.cast(tf.concat([first, last - first], axis=0), tf.int32)
        image = tf.io.decode_and_crop_jpeg(contents, window, channels=3)
        return _scaled(image, size, scale, first * scale - corner)

    def from_other() -> tf.Tensor:
        image = decode(contents)
        scale, corner = _central_window(tf.shape(image)[:2], shorter, size)
        return _scaled(image, size, scale, -corner)

    image = tf.cond(tf.io.is_jpeg(contents), from_jpeg, from_other)
    return tf.ensure_shape(image, [size, size, 3])


def resized(contents: tf.Tensor, size: int) -> tf.Tensor:
    """Returns a whole image in another size, as Keras reads images from a folder.

    Args:
        contents: A JPEG or PNG file.
        size: Height and width of the result.
    """
    return tf.image.resize(decode(contents), [size, size])


def _central_window(
    shape: tf.Tensor, shorter: int, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the scale of both sides, and the corner of the crop."""
    # Integers, so that the shorter side becomes exactly `shorter`.
    resized = shape * shorter // tf.reduce_min(shape)
    corner = tf.round(tf.cast(resized - size, tf.float32) / 2)
    return tf.cast(resized, tf.float32) / tf.cast(shape, tf.float32), corner


def _scaled(
    image: tf.Tensor, size: int, scale: tf.Tensor, shift: tf.Tensor
) -> tf.Tensor:
    """Returns a window of the image as `tf.image.resize` scales it, antialiased."""
    return tf.raw_ops.ScaleAndTranslate(
        images=tf.cast(image[None], tf.float32),
        size=[size, size],
        scale=scale,
        translation=shift,
        kernel_type="triangle",
        antialias=True,
    )[0]
