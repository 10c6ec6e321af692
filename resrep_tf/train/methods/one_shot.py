"""One-shot criteria, and training from scratch: the widths are chosen first."""

import keras

from resrep_tf.baselines import criteria
from resrep_tf.cli import output
from resrep_tf.cli.errors import blame
from resrep_tf.evaluate import accuracy
from resrep_tf.prune.changes import difference
from resrep_tf.train.methods.base import Method, Outcome, copy
from resrep_tf.train.phases import PRUNE, Phase, Rate, Ready

# The number of batches that a criterion sees if it needs data.
BATCHES = 20


class OneShot(Method):
    """Chooses the widths first, then trains the result like any model."""

    def phases(self, base):
        settings = self.settings
        scratch = settings.method == "shrink"
        start = settings.base_learning_rate if scratch else settings.learning_rate
        what = "Training from scratch" if scratch else "Finetuning"
        return (
            Phase(
                PRUNE,
                f"{what} ({settings.method}), {settings.epochs} epochs",
                range(settings.epochs),
                self._rate(start),
                self._make,
                self._plain,
                file=output.PRUNED,  # The trained network as it is.
            ),
        )

    def _make(self, base: keras.Model, rate: Rate) -> Ready:
        student = self._student(base)
        optimizer = self.trainer.optimizer(rate)
        return Ready(self._compiled(student, optimizer, self._lesson(base)))

    def _student(self, base: keras.Model) -> keras.Model:
        """Returns the model to train; it is the same each time it is made."""
        settings = self.settings
        keras.utils.set_random_seed(settings.seed)
        constraints = {
            "targets": self._targets(),
            "min_width": settings.min_width,
            "round_to": settings.round_to,
            **self._asked(),
        }
        with blame("method"):
            if settings.method == "finetune":
                return copy(base)
            if settings.method == "shrink":
                return criteria.shrink(base, **constraints)
            losses = accuracy.compile_arguments(base, self.trainer.data.classes)
            return criteria.prune_by_scores(
                base,
                settings.method,
                data=self.trainer.same_batches(BATCHES),
                loss=losses["loss"],
                seed=settings.seed,
                **constraints,
            )

    def _plain(self, base: keras.Model, trained: keras.Model) -> keras.Model:
        return copy(trained)  # Without the optimizer too.

    def finish(self, base, trained, plan):
        conversion = difference(base, trained)
        print(conversion)
        return Outcome(trained, conversion, plan)
