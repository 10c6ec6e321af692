"""Rows vanish when `forgetting` says, as simulated rows do."""

import numpy as np
import pytest

from support.forgetting import cosine, forget, make_plan, rows_of_norm

SCHEDULES = {
    "constant": np.full(4000, 0.01),
    "cosine": cosine(6000),
    "long cosine": cosine(12000),
    "linear": np.linspace(0.01, 0, 6001)[:-1],
    "warm-up and cosine": np.append(np.linspace(0, 0.01, 500), cosine(6000)),
    "staircase": np.repeat(0.01 * 0.3 ** np.arange(6), 1200),
    "down to nothing": np.append(cosine(6000), np.zeros(100)),
}


def plan_one_selection(rates, strength, momentum, snap):
    """Plans a run in which a single row is masked at the very beginning."""
    return make_plan(
        1,
        len(rates),
        rates,
        0.5,
        warmup_steps=0,
        masked_strength=strength,
        momentum=momentum,
        snap=snap,
    )


@pytest.mark.parametrize(
    ("momentum", "dimensions"), [(0.0, 8), (0.9, 8), (0.99, 8), (0.99, 1)]
)
@pytest.mark.parametrize("name", SCHEDULES)
def test_snapped_rows_vanish_when_predicted(name, dimensions, momentum):
    rates = SCHEDULES[name]
    rng = np.random.default_rng(0)
    for share in (0.2, 0.5):  # Of the run, spent on sinking.
        strength = (1 - momentum) / rates[: int(share * len(rates))].sum()
        predicted = plan_one_selection(rates, strength, momentum, True).forgotten_at
        rows = rows_of_norm([1.0, 1.0, 1.0], dimensions, rng)
        simulated = forget(rates, strength, momentum, True, 1e-12, rows)
        assert abs(simulated - predicted).max() <= 1


@pytest.mark.parametrize("norm", [0.05, 5.0, 40.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rows_of_any_norm_vanish_when_predicted(name, norm):
    rates = SCHEDULES[name]
    rng = np.random.default_rng(0)
    strength = norm * 0.1 / rates[: int(0.4 * len(rates))].sum()
    arguments = (1, len(rates), rates, 0.5)
    constants = {"warmup_steps": 0, "masked_strength": strength, "momentum": 0.9}
    plan = make_plan(*arguments, snap=True, row_norm=norm, **constants)
    rows = rows_of_norm([norm, norm / 2], 8, rng)
    simulated = forget(rates, strength, 0.9, True, 1e-12, rows)
    assert plan.fits and plan.row_norm == norm
    assert abs(simulated[0] - plan.forgotten_at) <= 1 and simulated[1] < simulated[0]


@pytest.mark.parametrize(
    ("momentum", "dimensions"), [(0.0, 1), (0.9, 1), (0.99, 1), (0.99, 4)]
)
@pytest.mark.parametrize("name", SCHEDULES)
def test_swinging_rows_settle_no_later_than_predicted(name, dimensions, momentum):
    # Where a row locks into its cycle is chance, so the prediction must hold for the
    # slowest of many.
    rates = SCHEDULES[name]
    rng = np.random.default_rng(0)
    strength = (1 - momentum) / rates[: len(rates) // 4].sum()
    plan = plan_one_selection(rates, strength, momentum, False)
    rows = rows_of_norm(rng.uniform(0.9, 1, 200), dimensions, rng)
    simulated = forget(rates, strength, momentum, False, 1e-5, rows).max()
    if plan.forgotten_at is None:
        assert simulated > 0.99 * len(rates)
    else:
        # Neither too early nor over-cautious; on stairs, one of the six at most.
        slack = len(rates) * (0.17 if name == "staircase" else 0.1)
        assert simulated <= plan.forgotten_at <= simulated + slack


def test_a_constant_rate_settles_only_under_a_mild_pull():
    rates = np.full(4000, 0.01)
    rows = np.linspace(0.9, 1, 100)[:, None]
    strong = plan_one_selection(rates, 1e-3, 0.9, False)
    assert strong.forgotten_at is None
    assert forget(rates, 1e-3, 0.9, False, 1e-5, rows).max() > 3990
    # The same pull is harmless if "forgotten" is meant less strictly.
    plan = make_plan(
        *(1, 4000, 0.01, 0.5),
        warmup_steps=0,
        masked_strength=4e-3,
        momentum=0.9,
        epsilon=1e-3,
    )
    simulated = forget(rates, 4e-3, 0.9, False, 1e-3, rows).max()
    assert simulated <= plan.forgotten_at <= 1.01 * simulated


def test_rows_that_are_masked_while_moving():
    # Masked rows keep the velocity that the objective gave them. If the way down is
    # long in terms of 1 / (1 - momentum), it shifts the moment but not the course.
    rates = cosine(20000)
    rng = np.random.default_rng(0)
    strength = 2e-4
    predicted = plan_one_selection(rates, strength, 0.99, True).forgotten_at
    rows = rows_of_norm(np.ones(100), 16, rng)
    velocities = rng.normal(size=rows.shape) * 1e-4
    simulated = forget(rates, strength, 0.99, True, 1e-12, rows, velocities)
    assert np.median(simulated) == pytest.approx(predicted, rel=0.01)
    assert simulated.max() <= 1.05 * predicted


def test_closed_form_at_a_constant_rate():
    # Stride 1e-4 and 100 steps of build-up: 10,000 + 99 steps to zero, and one stride
    # before zero the row is snapped.
    plan = plan_one_selection(np.full(20000, 0.01), 1e-4, 0.99, True)
    assert abs(plan.forgotten_at - 10_098) <= 1
