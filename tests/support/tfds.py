"""Sets of small pictures, as tensorflow-datasets prepares them."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

FEATURES = tfds.features
# One class for each image of training: labels then tell which images these are.
CLASSES = 21


def pictures(count, height=20, width=24, channels=3):
    """Returns smooth pictures, which JPEG files hardly change."""
    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (count, 4, 4, channels))
    return tf.saturate_cast(tf.image.resize(coarse, (height, width)), tf.uint8).numpy()


def write_tfds(root, name, version, features, splits):
    """Writes a set as tensorflow-datasets prepares it; `splits`: examples, files."""
    folder = root / name / version
    folder.mkdir(parents=True)
    features = FEATURES.FeaturesDict(features)
    infos = []
    for split, (examples, files) in splits.items():
        parts = [examples[number::files] for number in range(files)]
        for number, part in enumerate(parts):
            file = f"{name}-{split}.tfrecord-{number:05d}-of-{files:05d}"
            with tf.io.TFRecordWriter(str(folder / file)) as writer:
                for example in part:
                    encoded = features.encode_example(example)
                    writer.write(features.serialize_example(encoded))
        lengths = [len(part) for part in parts]
        infos.append(
            tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=0)
        )
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=infos
    )


def labelled(pictures, classes=CLASSES, **others):
    return [
        {"image": picture, "label": number % classes, **others}
        for number, picture in enumerate(pictures)
    ]
