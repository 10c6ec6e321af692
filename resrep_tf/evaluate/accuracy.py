"""The accuracy of a model in memory or in a file."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.images import blame_images, verbosity
from resrep_tf.cli.models import architectures
from resrep_tf.cli.models.architectures import check_fits, check_shapes
from resrep_tf.cli.workers import Workers
from resrep_tf.data import Dataset
from resrep_tf.data.detection import near_chance
from resrep_tf.export import Predictor, load

# A function from a batch of images to the outputs.
Predict = Callable[[tf.Tensor], Any]
# A function from labels and outputs to the mean loss of a batch.
Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Scores:
    """The result of an evaluation.

    Attributes:
        examples: Number of images.
        accuracy: Share of them whose class has the largest output.
        top5_accuracy: Share whose class has one of the five largest outputs; None if
            there are five classes or fewer.
        loss: The mean loss without weight decay, or None if not asked for.
        warning: A warning if the accuracy could be that of guessing, or if some classes
            have no held-out images; else None.
    """

    examples: int
    accuracy: float
    top5_accuracy: float | None
    loss: float | None = None
    warning: str | None = None

    def __str__(self):
        fifth = self.top5_accuracy
        more = "" if fifth is None else f", top-5 {fifth:.2%}"
        return f"top-1 accuracy {self.accuracy:.2%}{more} ({self.examples:,} images)"


def evaluate(
    predict: Predict, data: Dataset, title: str, steps: int | None = None
) -> Scores:
    """Returns the accuracy on held-out images; shows a progress bar.

    Args:
        predict: The model.
        data: The images.
        title: A name for the model, which is printed.
        steps: Number of batches, if not all of them.
    """
    print(f"Evaluating {title} on {data.name}")
    total = count(data, steps)
    progress = keras.utils.Progbar(total, verbose=verbosity(), unit_name="batch")
    scores = score(predict, data, steps, after_batch=lambda: progress.add(1))
    if scores.warning is not None:
        print(scores.warning)
    return scores


def score(
    predict: Predict,
    data: Dataset,
    steps: int | None = None,
    loss: Loss | None = None,
    after_batch: Callable[[], None] = lambda: None,
) -> Scores:
    """Returns the accuracy on held-out images, without printing.

    Args:
        predict: The model.
        data: The images.
        steps: Number of batches, if not all of them.
        loss: A loss whose mean is computed too.
        after_batch: Called after every batch.
    """
    first, fifth, losses = 0, 0, 0.0
    seen: list[int] = []
    with blame_images(data):
        for images, labels in limited(data.evaluation(), steps):
            outputs = tf.convert_to_tensor(predict(images))
            if loss is not None:
                losses += len(labels) * float(loss(labels, outputs))
            outputs = _of_classes(predict, outputs)
            first += _count_in_top(1, labels, outputs)
            fifth += _count_in_top(5, labels, outputs)
            seen += labels.numpy().tolist()
            after_batch()
    examples = len(seen)
    mean = None if loss is None else losses / examples
    warnings = near_chance(first / examples, seen, data.classes), _unseen(seen, data)
    warning = " ".join(filter(None, warnings)) or None
    top5 = fifth / examples if data.classes > 5 else None
    return Scores(examples, first / examples, top5, mean, warning)


def _unseen(seen: Sequence[int], data: Dataset) -> str | None:
    """Returns a note about classes without held-out images, or None."""
    if len(seen) < data.eval_examples:
        return None
    missing = sorted(set(range(data.classes)) - set(seen))
    if not missing:
        return None
    names = [str(data.class_names[n] if data.class_names else n) for n in missing[:5]]
    return (
        f"NOTE: {len(missing)} of {data.classes} classes have no held-out images "
        f"({', '.join(names)}{', ...' if len(missing) > 5 else ''}): the accuracy says "
        "nothing about them."
    )


def _of_classes(predict: Predict, outputs: tf.Tensor) -> tf.Tensor:
    """Returns a column for each class, also for a model with a single output."""
    if outputs.shape[-1] != 1:
        return outputs
    outputs = tf.cast(outputs, tf.float32)
    model = getattr(predict, "model", None)
    if model is None:  # A file that does not say whether its outputs are logits.
        logits = bool(tf.reduce_any((outputs < 0) | (outputs > 1)))
    else:
        logits = architectures.head(model, 2).from_logits
    return tf.concat([(0.0 if logits else 1.0) - outputs, outputs], axis=-1)


def _count_in_top(k: int, labels: tf.Tensor, outputs: tf.Tensor) -> int:
    found = tf.math.in_top_k(labels, tf.cast(outputs, tf.float32), k)
    return int(tf.math.count_nonzero(found))


def limited(batches: tf.data.Dataset, steps: int | None) -> tf.data.Dataset:
    """Returns the first `steps` batches, or all of them."""
    return batches if steps is None else batches.take(steps)


def count(data: Dataset, steps: int | None) -> int:
    """Returns the number of batches of an evaluation, `steps` at most."""
    return int(limited(data.evaluation(), steps).cardinality())


def compile_arguments(model: keras.Model, classes: int) -> dict[str, Any]:
    """Returns loss and metrics for a classifier with integer labels."""
    head = architectures.head(model, classes)
    if head.kind == "binary":
        middle = 0.0 if head.from_logits else 0.5
        metric = keras.metrics.BinaryAccuracy(name="accuracy", threshold=middle)
        return {"loss": head.loss(), "metrics": [metric]}
    metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    if classes > 5:
        metrics.append(
            keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5_accuracy")
        )
    return {"loss": head.loss(), "metrics": metrics}


# === Models as functions ===


def predictor(model: keras.Model, workers: Workers | None = None) -> Predict:
    """Returns a model's inference as a compiled function.

    Args:
        model: The model.
        workers: The workers that the model was made for. The replicas in this
            process share every batch.
    """
    parts = 1 if workers is None else workers.local_replicas
    shape = (None, *model.inputs[0].shape[1:])

    # The batch size is open, since the last batch may be smaller.
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)], autograph=False)
    def predict(images: tf.Tensor) -> tf.Tensor:
        if parts == 1:
            return model(images, training=False)
        count = tf.shape(images)[0]
        share = -(-count // parts)
        padding = [[0, share * parts - count]] + [[0, 0]] * (len(shape) - 1)
        padded = tf.pad(images, padding)

        def on_replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            start = context.replica_id_in_sync_group % parts * share
            return model(padded[start : start + share], training=False)

        outputs = workers.strategy.run(on_replica)
        outputs = workers.strategy.experimental_local_results(outputs)
        return tf.concat(outputs, axis=0)[:count]

    # Without this, TensorFlow warns of retracing when many models are evaluated.
    concrete = predict.get_concrete_function()

    def call(images: tf.Tensor) -> tf.Tensor:
        return concrete(images)

    call.model = model  # Keeps the model alive.
    return call


def load_predictor(path: str, data: Dataset) -> Predictor:
    """Loads any file that `resrep_tf.export` writes; raises if it does not fit."""
    predict = load_file(path)
    check_file(predict, data)
    return predict


def load_file(path: str) -> Predictor:
    """Loads any file that `resrep_tf.export` writes, as `--model`."""
    try:
        return load(path)
    except (ValueError, ImportError) as error:
        message = str(error).replace("`path`", "`--model`", 1)
        message = message.replace("Received: path=", "Received: --model=")
        raise CommandError(message) from error


def check_file(predict: Predictor, data: Dataset) -> None:
    """Raises if a file does not classify images like those of the data."""
    if predict.model is not None:
        check_fits(predict.model, data.input_shape, data.classes, "model")
        return
    shapes = map(tf.TensorShape, (predict.input_shape, predict.output_shape))
    check_shapes(*shapes, data.input_shape, data.classes, "model")
