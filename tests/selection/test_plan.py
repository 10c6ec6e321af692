import json
import math

import numpy as np
import pytest

from resrep_tf.selection import plan as planning
from resrep_tf.selection.schedule import Schedule


def make_plan(*task, row_norm=1.0, schedule="paper", snap=False, **constants):
    """Plans with the paper's constants but for those given."""
    chosen = Schedule(kind=schedule, snap=snap, **constants)
    return planning.make_plan(*task, chosen, row_norm)


def cosine(steps, peak=0.01):
    return peak * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))


SCHEDULES = {
    "constant": np.full(4000, 0.01),
    "cosine": cosine(6000),
    "long cosine": cosine(12000),
    "linear": np.linspace(0.01, 0, 6001)[:-1],
    "warm-up and cosine": np.append(np.linspace(0, 0.01, 500), cosine(6000)),
    "staircase": np.repeat(0.01 * 0.3 ** np.arange(6), 1200),
    "down to nothing": np.append(cosine(6000), np.zeros(100)),
}


def forget(rates, strength, momentum, snap, epsilon, rows, velocities=0.0):
    """Trains masked rows as Keras's SGD does, and nothing else.

    Returns:
        For each row the number of steps until its norm stays below epsilon; the
        number of steps plus one if that does not happen.
    """
    rows = np.array(rows)
    velocities = np.zeros_like(rows) + velocities
    last_large = np.zeros(len(rows), int)
    for taken, rate in enumerate(rates, start=1):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        lasso = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
        velocities = momentum * velocities - rate * strength * lasso
        rows = rows + velocities
        norms = np.linalg.norm(rows, axis=1)
        if snap:
            close = norms < rate * strength / (1 - momentum)
            rows[close] = velocities[close] = norms[close] = 0
            if not norms.any():
                break
        last_large[norms >= epsilon] = taken
    return last_large + 1


def rows_of_norm(norms, dimensions, rng):
    directions = rng.normal(size=(len(norms), dimensions))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions * np.asarray(norms)[:, None]


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


@pytest.mark.parametrize("snap", [False, True])
def test_the_derived_strength_grows_with_the_norm(snap):
    arguments = (10, 6000, cosine(6000), 0.5)
    options = {"warmup_steps": 100, "momentum": 0.9, "snap": snap, "schedule": "auto"}
    one, large = (make_plan(*arguments, row_norm=n, **options) for n in (1, 10))
    assert one.fits and large.fits
    assert large.masked_strength == pytest.approx(10 * one.masked_strength, rel=0.01)
    # Rows that are zero already are forgotten when they are masked.
    none = make_plan(*arguments, row_norm=0, **options)
    assert none.fits and none.forgotten_at == none.target_reached_at


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


@pytest.mark.parametrize("snap", [False, True])
def test_the_paper_fits_its_own_run(snap):
    steps = 180 * 5005
    plan = make_plan(
        4000, steps, lambda s: 0.005 * (1 + math.cos(math.pi * s / steps)), 0.545,
        warmup_steps=5 * 5005, snap=snap, schedule="auto",
    )  # fmt: skip
    assert plan.fits
    assert plan.advice == ""
    assert (plan.interval, plan.step, plan.masked_strength) == (200, 4, 1e-4)
    assert plan.selections == 1000
    assert plan.target_reached_at == 5 * 5005 + 999 * 200
    way = plan.forgotten_at - plan.target_reached_at
    if snap:
        # The cosine has lost 14 % of its height by then.
        assert 10_000 < way < 12_500
    else:
        assert plan.forgotten_at < 0.9 * steps


@pytest.mark.parametrize("rows", [1, 40, 4000])
def test_a_short_run_never_fits_the_papers_constants(rows):
    for rate in (0.01, cosine(5000)):
        plan = make_plan(rows, 5000, rate, 0.5, warmup_steps=100, snap=True)
        assert not plan.fits
        assert plan.forgotten_at is None
        assert (plan.interval, plan.step, plan.masked_strength) == (200, 4, 1e-4)
        derived = make_plan(
            rows, 5000, rate, 0.5, warmup_steps=100, snap=True, schedule="auto"
        )
        assert derived.fits
        for name in ("warmup_steps", "interval", "step", "masked_strength"):
            assert f"{name}={getattr(derived, name)}" in plan.advice
    reason = "norm 0" if rows < 100 else "last of 1,000 selections"
    assert reason in plan.advice


@pytest.mark.parametrize(
    ("steps", "snap"), [(1000, True), (7820, True), (7820, False), (20_000, False)]
)
@pytest.mark.parametrize("rows", [1, 168, 4000])
def test_derived_constants_fit_when_simulated(rows, steps, snap):
    rates = cosine(steps)
    plan = make_plan(
        rows, steps, rates, 0.5, warmup_steps=steps // 2, snap=snap, schedule="auto"
    )
    assert plan.fits
    assert plan.advice == ""
    assert plan.interval >= min(10, steps // 150)
    assert plan.selections * plan.step >= rows > (plan.selections - 1) * plan.step
    assert plan.target_reached_at <= max(0.12 * steps, plan.warmup_steps)
    sinking = rates[plan.target_reached_at :]
    forgotten = plan.target_reached_at + forget(
        *(sinking, plan.masked_strength, plan.momentum, snap, 1e-5),
        np.linspace(0.9, 1, 20)[:, None],
    )
    assert forgotten.max() <= plan.forgotten_at <= steps
    if snap:
        assert plan.forgotten_at <= 0.25 * steps


@pytest.mark.parametrize("momentum", [0.9, 0.99])
def test_derived_strength_is_no_larger_than_necessary(momentum):
    rates = cosine(5000)
    plan = make_plan(
        100, 5000, rates, 0.5,
        warmup_steps=250, momentum=momentum, snap=True, schedule="auto",
    )  # fmt: skip
    # A tenth less and the last row misses its date, at a quarter of the run.
    milder = forget(
        *(rates[plan.target_reached_at :], 0.9 * plan.masked_strength, momentum),
        *(True, 1e-12, np.ones((1, 1))),
    )
    assert plan.target_reached_at + milder[0] > 0.25 * 5000
    assert float(f"{plan.masked_strength:.2g}") == plan.masked_strength


def test_informed_is_done_after_an_eighth_of_the_run():
    """Also where the paper's constants would fit."""
    for rows, steps in [(40, 80_000), (400, 5_000)]:
        rates, given = cosine(steps), {"snap": True, "schedule": "informed"}
        plan = make_plan(rows, steps, rates, 0.5, **given)
        assert plan.fits and plan.warmup_steps <= 0.03 * steps
        assert plan.target_reached_at <= 0.10 * steps
        assert plan.forgotten_at <= plan.forgotten_by == round(0.12 * steps)
    given |= {"warmup_steps": 7, "interval": 20, "step": 100}
    plan = make_plan(400, 5_000, 0.01, 0.5, **given)
    assert (plan.warmup_steps, plan.interval, plan.step) == (7, 20, 100)


def test_auto_moves_only_what_it_must():
    # A warm-up of nearly the whole run: the paper's pace is fine once it is shorter.
    rates = cosine(80_000)
    plan = make_plan(
        40, 80_000, rates, 0.5, warmup_steps=79_000, snap=True, schedule="auto"
    )
    assert plan.warmup_steps == 4000
    assert (plan.interval, plan.step, plan.masked_strength) == (200, 4, 1e-4)
    # Too many rows for the paper's pace: the interval gives way before the step.
    rates = cosine(60_000)
    plan = make_plan(
        2000, 60_000, rates, 0.5, warmup_steps=500, snap=True, schedule="auto"
    )
    assert plan.warmup_steps == 500
    assert plan.step == 4
    assert 10 <= plan.interval < 200


@pytest.mark.parametrize("steps", [2, 3, 5, 10, 30, 100])
@pytest.mark.parametrize("rows", [1, 7, 500])
@pytest.mark.parametrize("schedule", ["auto", "informed"])
def test_tiny_runs_have_valid_constants(schedule, rows, steps):
    plan = make_plan(
        rows, steps, 0.01, 0.5, warmup_steps=5, snap=True, schedule=schedule
    )
    assert plan.interval >= 1
    assert plan.step >= 1
    assert plan.warmup_steps >= 0
    assert plan.target_reached_at < steps
    assert plan.fits


def test_a_run_of_one_step_is_hopeless():
    """Channels are selected behind the first step, and none is left to forget them."""
    plan = make_plan(7, 1, 0.01, 0.5, warmup_steps=5, snap=True, schedule="auto")
    assert not plan.fits
    assert "end of the run (1 steps). No constants fit: train for longer" in plan.advice


def test_runs_that_only_snapping_saves():
    # At a constant rate rows never come to rest; the paper's constants are fine
    # otherwise on a run of this length.
    plan = make_plan(10, 20_000, 0.01, 0.5, warmup_steps=0, schedule="auto")
    assert not plan.fits
    assert "with `snap=True` these do: warmup_steps=0, interval=200" in plan.advice
    assert "masked_strength=0.0001." in plan.advice
    # On a short run the suggestion is a plan for snapping.
    plan = make_plan(10, 2000, 0.01, 0.5, warmup_steps=0)
    snapping = make_plan(
        10, 2000, 0.01, 0.5, warmup_steps=0, snap=True, schedule="auto"
    )
    assert snapping.fits
    assert f"interval={snapping.interval}, step={snapping.step}" in plan.advice
    assert f"masked_strength={snapping.masked_strength:g}." in plan.advice


def test_hopeless_runs_say_so():
    for snap in (False, True):
        plan = make_plan(10, 2000, 0.0, 0.5, warmup_steps=0, snap=snap)
        assert not plan.fits
        assert "norm 1 at the end" in plan.advice
        assert plan.advice.endswith("train for longer or at a higher learning rate.")


def test_learning_rates_of_all_kinds_agree():
    rates = cosine(3000)
    calls = []

    def function(step):
        calls.append(step)
        return rates[step]

    array, sampled = (
        make_plan(8, 3000, rate, 0.5, warmup_steps=0, masked_strength=1e-3, snap=True)
        for rate in (rates, function)
    )
    assert abs(array.forgotten_at - sampled.forgotten_at) <= 1
    assert len(calls) <= 512
    assert (calls[0], calls[-1]) == (0, 2999)
    constants = [
        make_plan(8, 3000, rate, 0.5, warmup_steps=0, masked_strength=1e-3, snap=True)
        for rate in (0.01, np.full(3000, 0.01), lambda step: 0.01)
    ]
    assert constants[0] == constants[1] == constants[2]


def test_prints_well_and_survives_json():
    plan = make_plan(
        np.int64(40), np.int64(5000), cosine(5000), 0.5, warmup_steps=100, snap=True
    )
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()
    text = str(plan)
    assert "about 40 rows to mask, of norm 1 at most" in text
    assert "from step 100, 4 more rows every 200 steps, 10 times" in text
    assert "step 1,900 (38% of the run)" in text
    assert f"no. {plan.advice}" in text
    assert max(map(len, text.splitlines()[:-1])) <= 88


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows_to_mask", 0),
        ("total_steps", 0),
        ("warmup_steps", -1),
        ("interval", 0),
        ("step", 0),
        ("masked_strength", -1e-4),
        ("masked_strength", float("nan")),
        ("momentum", 1.0),
        ("epsilon", -1.0),
        ("row_norm", -1.0),
        ("row_norm", float("inf")),
        ("flops_target", 1.5),
        ("schedule", "fast"),
    ],
)
def test_errors_name_the_argument(name, value):
    task = {"rows_to_mask": 10, "total_steps": 1000}
    task |= {"learning_rate": 0.01, "flops_target": 0.5}
    constants = {"warmup_steps": 10}
    (task if name in task else constants)[name] = value
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}={value!r}"):
        make_plan(*task.values(), **constants)


def test_learning_rate_errors():
    with pytest.raises(ValueError, match=r"`learning_rate`.*shape \(3,\)"):
        make_plan(1, 10, np.ones(3), 0.5, warmup_steps=0)
    for rate in (-0.1, float("nan"), lambda step: 5 - step):
        with pytest.raises(ValueError, match=r"`learning_rate`.*Received"):
            make_plan(1, 10, rate, 0.5, warmup_steps=0)
