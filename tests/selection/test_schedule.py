"""The constants of forgetting: one home, checked once."""

import dataclasses

import pytest

from resrep_tf.selection.schedule import KINDS, Schedule


def test_the_papers_constants():
    schedule = Schedule()
    assert (schedule.interval, schedule.step, schedule.warmup_epochs) == (200, 4, 5)
    assert (schedule.lasso_strength, schedule.momentum) == (1e-4, 0.99)
    assert schedule.epsilon == 1e-5 and schedule.snap
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.step = 5


def test_what_the_kinds_mean():
    kinds = {kind: Schedule(kind=kind) for kind in KINDS}
    assert Schedule().kind == "auto"
    assert [kinds[kind].informed for kind in KINDS] == [False, True, False]
    assert [kinds[kind].fits_run for kind in KINDS] == [True, True, False]


def test_the_strength_on_masked_rows():
    assert Schedule(lasso_strength=0.5).strength == 0.5
    assert Schedule(lasso_strength=0.5, masked_strength=2.0).strength == 2


def test_the_warm_up():
    schedule = Schedule()
    assert schedule.warmup(1000, 30) == 150
    assert schedule.warmup(None, 7, batches_per_step=2) == 17
    assert schedule.warmup(1000, None) == 50
    assert Schedule(warmup_steps=3).warmup(1000, 30) == 3
    with pytest.raises(ValueError, match=r"5 epochs.*Received: warmup_steps=None"):
        schedule.warmup(None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", 0),
        ("interval", 1.5),
        ("step", float("nan")),
        ("step", float("inf")),
        ("warmup_epochs", -1.0),
        ("warmup_steps", float("inf")),
        ("lasso_strength", 0),
        ("masked_strength", -1),
        ("epsilon", float("nan")),
        ("momentum", 1.0),
        ("momentum", -0.1),
    ],
)
def test_errors_name_the_argument(name, value):
    with pytest.raises(ValueError) as error:
        Schedule(**{name: value})
    assert str(error.value).startswith(f"`{name}` must be ")
    assert str(error.value).endswith(f"Received: {name}={value}")


def test_unknown_kind():
    with pytest.raises(
        ValueError, match=r"\('auto', 'informed', 'paper'\).*schedule='fast'"
    ):
        Schedule(kind="fast")
