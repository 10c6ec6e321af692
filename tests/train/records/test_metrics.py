"""The metrics of every epoch."""

import time

import keras
from keras import layers

from resrep_tf.cli import output
from resrep_tf.train.phases import ORDER
from resrep_tf.train.records.metrics import (
    CHANNELS,
    CPU_SECONDS,
    EpochLog,
    MetricsFile,
    channel_history,
    cpu_seconds,
)
from support.runs import events


def test_what_was_logged_but_not_saved_is_logged_again(tmp_path):
    """A run that was killed between its last epoch's log and its checkpoint."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    for start in (0, 1):
        file = MetricsFile(tmp_path / output.METRICS)
        log = EpochLog("prune", file, tmp_path / output.TENSORBOARD, start)
        log.set_model(model)
        log.set_params({"steps": 5})
        log.on_train_begin()
        for epoch in range(start, 2):
            log.on_epoch_end(epoch, {"loss": 1.0})
        log.on_train_end()
    steps = [step for _, step, value in events(tmp_path) if value.tag == "loss"]
    # Of two files of one second, the later one's name may come first.
    assert sorted(steps) == [5, 10]


def test_rows_come_back_from_the_file(tmp_path):
    path = tmp_path / output.METRICS
    rows = [
        {"phase": "base", "epoch": 1, "step": 5, "loss": 0.1 + 0.2},
        {"phase": "prune", "epoch": 1, "step": 5, CHANNELS: {"a, b": [8, 6, 8]}},
    ]
    MetricsFile(path).replace(rows)
    for phases, expected in (ORDER, rows), (ORDER[:1], rows[:1]):
        file = MetricsFile(path)
        file.restore(phases)
        assert file.rows == expected
    for damaged in (b"\xff", b"phase,epoch\nbase,x\n", b"a\nb\n", b'"', None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        file.restore(ORDER)
        assert file.rows == []


def test_channels_of_the_shrunk_network_stay_as_they_are():
    rows = [
        {"phase": "base", "epoch": 1},
        {"phase": "prune", "epoch": 1, CHANNELS: {"conv": [8, 6, 8]}},
        {"phase": "prune", "epoch": 2, CHANNELS: {"conv": [8, 3, 5]}},
        {"phase": "recover", "epoch": 3},
    ]
    assert channel_history(rows) == {
        "epochs": "0 1 2 3",
        "layers": {"conv": {"width": 8, "kept": "8 6 3 3", "left": "8 8 5 3"}},
    }
    assert channel_history(rows[:1]) is None


def test_an_epoch_that_is_taken_up_costs_what_a_whole_one_does(tmp_path, monkeypatch):
    clock = iter([10.0, 14.0, 20.0, 21.0])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    file = MetricsFile(tmp_path / output.METRICS)
    log = EpochLog("prune", file, tmp_path / output.TENSORBOARD)
    log.set_model(model)
    log.set_params({"steps": 8})
    log.on_train_begin()
    for epoch, first in [(0, 0), (1, 6)]:  # Two steps of the second one are left.
        log.on_epoch_begin(epoch)
        for batch in range(first, 8):
            log.on_train_batch_end(batch)
        log.on_epoch_end(epoch, {"loss": 1.0})
    log.on_train_end()
    assert [row[CPU_SECONDS] for row in file.rows] == [4.0, 4.0]
    assert cpu_seconds(file.rows) == 8.0
    assert CPU_SECONDS not in (tmp_path / output.METRICS).read_text()
    # Runs of the version before did not note it.
    assert cpu_seconds([{"phase": "prune", "epoch": 1}]) is None
