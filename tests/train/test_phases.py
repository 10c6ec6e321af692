"""Phases: a run is a list of them, and each can take over from another."""

import csv

import numpy as np
import pytest

from resrep_tf.cli import output
from resrep_tf.cli.interruption import Interruption
from resrep_tf.cli.workers import start
from resrep_tf.train import phases, settings, training
from resrep_tf.train.checkpoints import Checkpoints
from resrep_tf.train.phases import PRUNE, Phase, Ready
from resrep_tf.train.records.metrics import MetricsFile
from resrep_tf.train.training import Trainer
from support.runs import digits_network, events

STEPS = 3


@pytest.fixture
def trainer(tmp_path) -> Trainer:
    flags = ["--dataset=digits", "--eval_steps=1", "--checkpoint_interval=2"]
    chosen, _ = settings.parse(flags)
    return Trainer(
        chosen,
        training.load_data(chosen),
        start("none"),
        STEPS,
        tmp_path,
        MetricsFile(tmp_path / output.METRICS),
        Checkpoints(tmp_path / output.CHECKPOINTS, 9),
        Interruption(),
    )


def phase(trainer: Trainer, epochs: range, **options) -> Phase:
    def make(before, rate):
        model = digits_network()
        model.set_weights(before.get_weights())
        trainer.compile(model, trainer.optimizer(rate))
        return Ready(model)

    def plain(before, trained):
        model = digits_network()
        model.set_weights(trained.get_weights())
        return model

    return Phase(PRUNE, "A phase", epochs, 0.1, make, plain, **options)


def test_the_order_has_every_phase_once():
    assert list(phases.ORDER) == [phases.BASE, phases.PRUNE, phases.RECOVER]
    assert len(set(phases.ORDER)) == len(phases.ORDER)


def test_a_phase_trains_its_epochs_only(trainer, tmp_path, capsys):
    """Epochs 3 and 4, on the images of these epochs."""
    before = digits_network()
    weights = before.get_weights()
    trained = trainer.run(phase(trainer, range(2, 4)), before)
    printed = capsys.readouterr().out
    assert printed.startswith("A phase\n")
    assert "epoch 3/4, " in printed and "epoch 4/4: " in printed
    assert "epoch 1" not in printed and "epoch 2" not in printed
    with (tmp_path / output.METRICS).open(newline="") as file:
        rows = [(row["epoch"], row["step"]) for row in csv.DictReader(file)]
    assert rows == [("3", "9"), ("4", "12")]
    assert {step for _, step, _ in events(tmp_path)} == {9, 12}
    names = sorted(path.stem for path in (tmp_path / output.CHECKPOINTS).iterdir())
    assert (names[0], names[-1]) == ("prune-000000006", "prune-000000012")
    assert not np.array_equal(trained.get_weights()[0], weights[0])
    for a, b in zip(before.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)  # The model before it has not changed.
    # On the same images as an earlier phase that had got so far.
    images = [batch for batch, _ in trainer.data.train_from(2 * STEPS).take(1)]
    later = [batch for batch, _ in trainer.data.train_from(0).skip(2 * STEPS).take(1)]
    np.testing.assert_array_equal(images[0], later[0])


def test_a_model_that_is_ready_is_not_made_again(trainer):
    found = phase(trainer, range(1))
    before = digits_network()
    ready = trainer.make(found, before)
    trainer.run(found, before, ready)
    assert int(ready.model.optimizer.iterations) == STEPS


def test_a_phase_that_is_over_is_read_from_its_file(trainer, tmp_path):
    before = digits_network()
    unfinished = phase(trainer, range(1), file="done.keras")
    assert trainer.finished(unfinished, before) is None
    assert trainer.finished(phase(trainer, range(1)), before) is None
    before.save(tmp_path / "done.keras")
    found = trainer.finished(unfinished, digits_network())
    for a, b in zip(found.get_weights(), before.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
