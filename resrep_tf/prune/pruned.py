"""`prune()` calls wrap, train, shrink and convert, and adds a report."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from resrep_tf.budget.goals import Goals
from resrep_tf.convert import ConversionReport, convert
from resrep_tf.markup import prose
from resrep_tf.prune.changes import difference
from resrep_tf.prune.compiling import another, compiled_like, scope_of
from resrep_tf.prune.fitting import Run
from resrep_tf.pruning.callbacks import ChannelSelection
from resrep_tf.pruning.model import ResRepModel
from resrep_tf.pruning.planning import targets_met
from resrep_tf.pruning.replicas import average_statistics
from resrep_tf.pruning.rows import unforgotten
from resrep_tf.pruning.state import number
from resrep_tf.pruning.wrap import wrap
from resrep_tf.selection.plan import Plan
from resrep_tf.shrinking.shrinking import ShrinkReport, shrink
from resrep_tf.surgery.fuse import fused
from resrep_tf.teacher.distillation import Student


@dataclasses.dataclass(frozen=True)
class PruneReport:
    """The report of `resrep_tf.prune`.

    Attributes:
        plan: The plan that was made before the run.
        history: For each metric, its value after every epoch of the whole run.
        shrinking: The report of shrinking in the middle of the run; None if masked
            channels were not forgotten before its end.
        conversion: The change of each layer.
        before: The metrics of the given model on the validation data, if there are.
        after: The same metrics of the result.
    """

    plan: Plan
    history: Mapping[str, Sequence[float]]
    shrinking: ShrinkReport | None
    conversion: ConversionReport
    before: Mapping[str, float]
    after: Mapping[str, float]

    def __str__(self):
        return "\n".join([str(self.conversion), *self._metrics()])

    def _repr_html_(self):
        metrics = "<br />\n".join(map(prose, self._metrics()))
        return f"{self.conversion._repr_html_()}<p>{metrics}</p>"

    def _metrics(self) -> list[str]:
        return [
            f"{name} {value:.4f} -> {self.after[name]:.4f}"
            for name, value in self.before.items()
        ]


def prune(
    model: keras.Model,
    train: Any,
    validation: Any = None,
    flops_target: float | None = None,
    epochs: int = 20,
    *,
    targets: Any = None,
    teacher: keras.Model | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    verbose: int | str = "auto",
    return_report: bool = False,
    **selection: Any,
) -> keras.Model | tuple[keras.Model, PruneReport]:
    """Prunes a trained, compiled model in one call, and prints a report.

    It wraps the model, compiles it as the model was compiled, and trains it with a
    selection of channels. Once the masked channels are forgotten, the network is shrunk
    and trained on for the rest of the epochs. Replicas of the model, if it has any,
    train together. To do these steps yourself, call `wrap`, `ChannelSelection`,
    `shrink` and `convert`. The given model is not changed.

    Args:
        model: A trained model, compiled as for finetuning: with about a tenth of the
            learning rate it was trained with.
        train: What `fit` takes: a `tf.data.Dataset`, or arrays `(x, y)`.
        validation: The same for `validation_data`.
        flops_target: The fraction of FLOPs to remove; 0.5 without another target.
        epochs: The total number of epochs.
        targets: Which layers to prune, as in `wrap`.
        teacher: A trained model to learn from, beside the labels, such as `model`.
        callbacks: Further callbacks. They see two models, one after the other.
        batch_size: The size of a batch if `train` are arrays.
        steps_per_epoch: As in `fit`; needed if `train` is endless.
        verbose: As in `fit`; 0 also leaves out the report.
        return_report: Whether to return `(model, report)`.
        **selection: Further arguments of `ChannelSelection`, such as `round_to`.

    Returns:
        The plain, narrower model, compiled as the given one is.

    Example:

    ```python
    slim = resrep_tf.prune(model, train, validation, flops_target=0.5, epochs=3)
    slim.save("slim.keras")
    ```
    """
    if flops_target is None and not {"params_target", "latency_target"} & {*selection}:
        flops_target = 0.5
    choosing = ChannelSelection(flops_target, **selection)
    lesson = {} if teacher is None else {"teacher": teacher}
    run = Run(train, validation, epochs, batch_size, steps_per_epoch, verbose)
    with scope_of(model):
        slim, report = _pruned(model, targets, choosing, run, lesson, callbacks)
    if verbose:
        print(report)
    return (slim, report) if return_report else slim


def _pruned(
    model: keras.Model,
    targets: Any,
    selection: ChannelSelection,
    run: Run,
    lesson: Mapping[str, Any],
    callbacks: Sequence[keras.callbacks.Callback],
) -> tuple[keras.Model, PruneReport]:
    arguments = compiled_like(model)
    before = run.evaluate(model)
    pruner = wrap(model, targets)
    pruner.compile(**arguments, **lesson)
    over = _StopWhenForgotten(selection.goals)
    run.fit(pruner, [selection, over, *callbacks])
    if over.forgotten:
        slim, shrinking, conversion = _train_on(model, pruner, run, lesson, callbacks)
    else:
        shrinking = None
        slim, conversion = convert(pruner, return_report=True)
    slim.compile(**compiled_like(model))
    # Without a state, the optimizer in a saved file could not be loaded.
    slim.optimizer.build(slim.trainable_variables)
    after = run.evaluate(slim)
    return slim, PruneReport(
        selection.plan, run.history, shrinking, conversion, before, after
    )


def _train_on(
    model: keras.Model,
    pruner: ResRepModel,
    run: Run,
    lesson: Mapping[str, Any],
    callbacks: Sequence[keras.callbacks.Callback],
) -> tuple[keras.Model, ShrinkReport, ConversionReport]:
    """Shrinks the model, trains it for the remaining epochs, and converts it."""
    optimizer = another(pruner.optimizer)
    narrow, shrinking = shrink(
        pruner, run.examples, optimizer=optimizer, return_report=True
    )
    if run.done < run.epochs:
        student = Student.of(narrow) if lesson else narrow
        student.compile(**{**compiled_like(model), "optimizer": optimizer}, **lesson)
        run.fit(student, callbacks)
        average_statistics(student)
        narrow = student.plain() if lesson else narrow
    slim, rounding = fused(narrow)
    changes = dataclasses.replace(
        difference(model, slim),
        rows_dropped=shrinking.rows_dropped,
        largest_norm_dropped=shrinking.largest_norm_dropped,
        kept=shrinking.kept,
        difference=rounding,
    )
    return slim, shrinking, changes


class _StopWhenForgotten(keras.callbacks.Callback):
    """Ends training after the epoch in which the last masked row was forgotten."""

    forgotten = False

    def __init__(self, goals: Goals):
        super().__init__()
        self._goals = goals

    def on_epoch_end(self, epoch, logs=None):
        epsilon = number(self.model.state.epsilon)
        if targets_met(self.model, self._goals) and not unforgotten(
            self.model, epsilon
        ):
            self.forgotten = self.model.stop_training = True
