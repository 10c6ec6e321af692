"""The bar of a phase: what it shows, and when."""

import pytest

from resrep_tf.train.records import progress
from resrep_tf.train.records.progress import PhaseBar


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when a test says so."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def go(bar, clock, epochs, seconds=60.0):
    """Trains epochs of 3 steps and 3 batches of evaluation, a minute a step."""
    for epoch in epochs:
        bar.on_epoch_begin(epoch)
        for step in range(3):
            clock[0] += seconds
            bar.on_train_batch_end(step, {"loss": 2.0, "accuracy": 0.25})
        for batch in range(3):
            clock[0] += seconds / 3
            bar.on_test_batch_end(batch)
        bar.on_epoch_end(epoch, {"loss": 1.0, "val_accuracy": 0.5})


def test_a_file_gets_a_line_for_each_epoch(capsys, clock):
    bar = PhaseBar(range(2), 3, 3, watched=False)
    go(bar, clock, range(2))
    bar.on_train_end()
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/2, 4:00 left: loss 1, accuracy 25.00%, val_accuracy 50.00%",
        "epoch 2/2: loss 1, accuracy 25.00%, val_accuracy 50.00%",
    ]


def test_a_terminal_gets_one_line_that_fits(capsys, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    bar = PhaseBar(range(10, 40), 3, 3, watched=True)
    go(bar, clock, range(10, 12))
    bar.on_train_end()
    shown = capsys.readouterr().out
    assert shown.endswith("\n") and shown.count("\n") == 1
    drawn = shown.rstrip("\n").split("\r\x1b[K")[1:]
    assert all(len(line) < 60 for line in drawn)
    assert drawn[0].startswith("epoch 11/40  [......") and "left" not in drawn[0]
    assert drawn[1].startswith("epoch 11/40  [.....") and "  1:58:00 left" in drawn[1]
    assert drawn[-1] == "epoch 12/40  [=...........]   7%  1:52:00 left  loss 1  acc"
