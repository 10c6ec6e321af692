"""Times the input pipeline for ImageNet-like images, from the project's root:

    python benchmarks/input_pipeline.py
    python benchmarks/input_pipeline.py --arch resnet50 --batch_size 8

Writes JPEG files of random, smooth content to a temporary folder. Prints how many
images a second TensorFlow decodes, with nothing else done, how many come out of the
training pipeline as batches of normalised random crops, with the same number of
threads, and the ratio of the two. With an architecture, also how many its training step
takes in when it is always given the same batch, and when it is fed by the pipeline.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from resrep_tf import data, models

CLASSES = 10
HEIGHT, WIDTH = 375, 500


def write_images(root: Path, count: int) -> list[str]:
    """Writes `count` training images, and a few that are held out."""
    random = np.random.default_rng(0)
    paths = []
    for number in range(count + CLASSES):
        split = "train" if number >= CLASSES else "val"
        path = root / split / f"class{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.normal(128, 45, (HEIGHT // 16, WIDTH // 16, 3))
        # With some noise, the files have the size of photographs.
        image = tf.image.resize(coarse, (HEIGHT, WIDTH), "bicubic")
        image += random.normal(0, 6, image.shape)
        image = tf.saturate_cast(image, tf.uint8)
        path.write_bytes(tf.io.encode_jpeg(image, quality=92).numpy())
        if split == "train":
            paths.append(str(path))
    return paths


def bare_decoding(paths: list[str]) -> tf.data.Dataset:
    """Returns an endless stream of whole images, decoded in parallel."""

    def decode(path: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_jpeg(tf.io.read_file(path), channels=3)

    files = tf.data.Dataset.from_tensor_slices(paths).repeat()
    images = files.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return images.prefetch(tf.data.AUTOTUNE)


def with_threads(dataset: tf.data.Dataset, threads: int) -> tf.data.Dataset:
    """Returns the same elements, made by a pool of so many threads."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.autotune.cpu_budget = threads
    return dataset.with_options(options)


def timed(action: Callable[[], object]) -> np.ndarray:
    """Returns the seconds that a call takes, and the CPU seconds of this process."""
    start = time.perf_counter(), time.process_time()
    action()
    return np.subtract((time.perf_counter(), time.process_time()), start)


def draw(dataset: tf.data.Dataset, count: int) -> np.ndarray:
    """Times `count` elements, after drawing as many untimed ones."""
    elements = iter(dataset)

    def run() -> None:
        for _ in itertools.islice(elements, count):
            pass

    run()
    return timed(run)


def compare(
    runs: dict[str, Callable[[], np.ndarray]], images: int, rounds: int
) -> None:
    """Times two runs in turns, and prints their medians and the second's share.

    They take turns, because the speed of a machine drifts. If others use the machine
    as well, the time of the cores says more than the time that passes.
    """
    times = [[run() for run in runs.values()] for _ in range(rounds)]
    first, second = np.median(times, axis=0)
    for name, (passed, used) in zip(runs, (first, second), strict=True):
        print(
            f"{name:<30} {images / passed:8.1f} images/s "
            f"{1000 * used / images:9.2f} ms of a core per image"
        )
    passed, used = first / second
    print(f"{'ratio':<30} {passed:8.2f} {used:18.2f}")


def build(arch: str, dataset: data.Dataset) -> keras.Model:
    """Returns the compiled architecture."""
    model = models.build(arch, dataset.input_shape, dataset.classes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


def train(model: keras.Model, batches: tf.data.Dataset, steps: int) -> np.ndarray:
    """Times `steps` training steps, after two that do not count."""
    elements = iter(batches)

    def run(steps: int) -> None:
        for batch in itertools.islice(elements, steps):
            model.train_on_batch(*batch)

    run(2)
    return timed(lambda: run(steps))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=320, help="files to write")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--arch", help="a name that `resrep_tf.models.build` takes")
    parser.add_argument("--steps", type=int, default=8, help="timed training steps")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), args.images)
        dataset = data.load(
            f"folder:{folder}", batch_size=args.batch_size, image_size=args.image_size
        )
        bare = with_threads(bare_decoding(paths), args.threads)
        pipeline = with_threads(dataset.train_from(0), args.threads)
        steps = dataset.steps_per_epoch
        images = steps * args.batch_size
        compare(
            {
                "bare decoding": lambda: draw(bare, images),
                "training pipeline": lambda: draw(pipeline, steps),
            },
            images,
            args.rounds,
        )
        if not args.arch:
            return
        model = build(args.arch, dataset)
        same = dataset.train(0).take(1).cache().repeat()
        compare(
            {
                f"{args.arch}, same batch": lambda: train(model, same, args.steps),
                f"{args.arch}, fed": lambda: train(model, pipeline, args.steps),
            },
            args.steps * args.batch_size,
            args.rounds,
        )


if __name__ == "__main__":
    main()
