import json
import math

import numpy as np
import pytest

from support.forgetting import cosine, forget, make_plan


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


@pytest.mark.parametrize("snap", [False, True])
def test_the_paper_fits_its_own_run(snap):
    steps = 180 * 5005
    rows = 3242  # Those that the authors' ResNet-50 has lost at 54.5 %.
    plan = make_plan(
        rows, steps, lambda s: 0.005 * (1 + math.cos(math.pi * s / steps)), 0.545,
        warmup_steps=5 * 5005, snap=snap, schedule="auto",
    )  # fmt: skip
    assert plan.fits
    assert plan.advice == ""
    assert (plan.interval, plan.step, plan.masked_strength) == (200, 4, 1e-4)
    assert plan.selections == 811
    assert plan.target_reached_at == 5 * 5005 + 810 * 200
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


@pytest.mark.parametrize("schedule", ["auto", "informed"])
@pytest.mark.parametrize("rows", [40, 3242])
def test_a_longer_run_has_longer_to_recover(rows, schedule):
    """Also where it crosses over from derived constants to the paper's."""
    given = {"warmup_steps": 5 * 781, "snap": True, "schedule": schedule}
    strengths, left = [], 0
    for steps in np.geomspace(500, 2_000_000, 30).round().astype(int).tolist():
        plan = make_plan(rows, steps, cosine(steps), 0.5, **given)
        assert plan.fits
        assert steps - plan.forgotten_at > left
        left = steps - plan.forgotten_at
        strengths.append(plan.masked_strength)
    # Milder, the longer the run; in the end the paper's.
    assert strengths[0] > 1e-3 and strengths[-1] == 1e-4


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
    plan = make_plan(10, 50_000, 0.01, 0.5, warmup_steps=0, schedule="auto")
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
