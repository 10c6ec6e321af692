"""Trains several models one after the other, as if in one call of `fit`."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from numbers import Integral, Number
from os import PathLike
from typing import Any

import keras


@dataclasses.dataclass
class Run:
    """The data, length and progress of a run.

    Attributes:
        train: As `prune` takes it.
        validation: As `prune` takes it.
        epochs: The total number of epochs.
        batch_size: The size of a batch if the data are arrays.
        steps_per_epoch: As in `fit`.
        verbose: As in `fit`.
        done: The number of finished epochs.
        history: For each metric, its value after each finished epoch.
    """

    train: Any
    validation: Any
    epochs: int
    batch_size: int | None
    steps_per_epoch: int | None
    verbose: int | str
    done: int = 0
    history: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        epochs = self.epochs
        if isinstance(epochs, bool) or not isinstance(epochs, Integral) or epochs < 1:
            raise ValueError(
                f"`epochs` must be a positive integer. Received: epochs={epochs!r}"
            )
        _check_data("train", self.train)
        if self.validation is not None:
            _check_data("validation", self.validation)

    def fit(self, model: keras.Model, callbacks: Sequence) -> None:
        """Trains a model, starting at the epoch where the previous model stopped."""
        with _traced_once():
            history = self._fit(model, callbacks)
        self.done += len(history.epoch)
        for name, values in history.history.items():
            self.history.setdefault(name, []).extend(values)

    def _fit(self, model: keras.Model, callbacks: Sequence) -> keras.callbacks.History:
        return model.fit(
            **_split(self.train),
            validation_data=self.validation,
            initial_epoch=self.done,
            epochs=self.epochs,
            batch_size=self.batch_size,
            steps_per_epoch=self.steps_per_epoch,
            callbacks=list(callbacks),
            # Keras can shuffle only arrays, and warns about other data.
            shuffle=isinstance(self.train, tuple),
            verbose=self.verbose,
        )

    def evaluate(self, model: keras.Model) -> dict[str, float]:
        """Returns a model's metrics on the validation data; empty without data."""
        if self.validation is None:
            return {}
        arrays = isinstance(self.validation, tuple)
        with _traced_once():
            return model.evaluate(
                **_split(self.validation),
                batch_size=self.batch_size if arrays else None,
                verbose=0,
                return_dict=True,
            )

    @property
    def examples(self) -> Any:
        """Training data for BatchNorms' statistics, in the form that `shrink` takes."""
        if isinstance(self.train, keras.utils.PyDataset):
            return (self.train[index] for index in range(self.train.num_batches))
        return self.train


@contextlib.contextmanager
def _traced_once() -> Iterator[None]:
    """Hides TensorFlow's warning of retracing within the block.

    TensorFlow takes the training steps of all Keras models for one function that is
    traced again and again. In fact each model is traced once.
    """

    def of_another_kind(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in record.getMessage()

    logger = logging.getLogger("tensorflow")
    logger.addFilter(of_another_kind)
    try:
        yield
    finally:
        logger.removeFilter(of_another_kind)


def _check_data(name: str, data: Any) -> None:
    """Raises if an argument is nothing that `fit` could read batches from."""
    if data is None or isinstance(data, (str, PathLike, Number)):
        raise TypeError(
            f"`{name}` must be what `fit` takes: a `tf.data.Dataset`, such as "
            "`keras.utils.image_dataset_from_directory` makes of a folder, or arrays "
            f"`(x, y)`. Received: {name}={data!r}"
        )


def _split(data: Any) -> dict[str, Any]:
    """Returns data as arguments of `fit`; arrays are `(x, y)` or `(x, y, weights)`."""
    parts = data if isinstance(data, tuple) else (data,)
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))
