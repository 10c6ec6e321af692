"""Checkpoints: the newest whole one counts, and nothing is lost."""

import dataclasses
import errno
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from resrep_tf.cli.errors import CommandError
from resrep_tf.train import checkpoints
from resrep_tf.train.checkpoints import (
    Checkpoint,
    Checkpoints,
    Position,
    assign,
    values,
)


def checkpoint(step: int) -> Checkpoint:
    values = [np.full((3, 4), step, np.float32), np.array(step, np.int64)]
    return Checkpoint("prune", Position(1, step), [{"epoch": 1}], values)


@pytest.fixture
def store(tmp_path) -> Checkpoints:
    store = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (1, 2, 3):
        store.save(checkpoint(step), step)
    return store


def paths(store: Checkpoints) -> list[Path]:
    return sorted(store._folder.iterdir())


def test_the_newest_checkpoints_are_kept(store):
    assert [p.name for p in paths(store)] == [
        "prune-000000002.npz",
        "prune-000000003.npz",
    ]
    found = store.newest()
    assert (found.phase, found.position) == ("prune", Position(1, 3))
    assert found.rows == [{"epoch": 1}]
    for value, expected in zip(found.values, checkpoint(3).values, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """Changes one bit of a value."""
    place = content.index(np.full((3, 4), 3, np.float32).tobytes())
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def empty(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_checkpoint_is_passed_over(store, damage):
    newest = paths(store)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(UserWarning, match="prune-000000003.npz cannot be read"):
        assert store.newest().position == Position(1, 2)


def test_phases_are_in_their_own_order_not_in_that_of_the_alphabet(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "ORDER", ("prune", "base"))
    store = Checkpoints(tmp_path, keep=2)
    store.save(checkpoint(9), 9)
    store.save(dataclasses.replace(checkpoint(1), phase="base"), 1)
    assert store.newest().phase == "base"


def test_pruning_is_newer_than_the_base(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    store.save(dataclasses.replace(checkpoint(9), phase="base"), 9)
    store.save(checkpoint(1), 1)
    assert len(paths(store)) == 2
    assert store.newest().phase == "prune"


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    store.save(checkpoint(8), 8).write_bytes(b"")
    store.save(checkpoint(4), 4)
    assert [path.name for path in paths(store)] == ["prune-000000004.npz"]
    assert store.newest().position == Position(1, 4)


def test_a_full_disk_leaves_the_last_checkpoint(store, monkeypatch):
    def full(path, **arrays):
        path.write_bytes(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(CommandError, match=r"Cannot write .*No space left on device"):
        store.save(checkpoint(4), 4)
    assert len(paths(store)) == 2
    assert store.newest().position == Position(1, 3)


def test_a_checkpoint_of_another_model_is_refused():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    found = values(model)
    found[0] = found[0][:, :1]
    with pytest.raises(ValueError, match=r"kernel.*Received: \(3, 1\)"):
        assign(model, found)


def test_bfloat16_comes_back_from_a_checkpoint(tmp_path):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="bfloat16")])
    model.compile("sgd", "mse")
    store, before = Checkpoints(tmp_path, keep=1), values(model)
    store.save(Checkpoint("base", Position(), [], before), 0)
    for variable in model.variables:
        variable.assign(variable + 1)
    assign(model, store.newest().values)
    np.testing.assert_array_equal(values(model)[0], before[0])
