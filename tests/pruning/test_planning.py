"""Plans for a model."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers as L
from keras.optimizers import SGD, Adam, LossScaleOptimizer

import resrep_tf
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.pruning.planning import rate_of
from resrep_tf.selection.plan import make_plan
from resrep_tf.selection.schedule import Schedule
from resrep_tf.selection.selection import Constraints, check_reachable, rows_for_target

LOSS = "sparse_categorical_crossentropy"


def wrapped(width=16):
    inputs = keras.Input((5,))
    x = L.Dense(width, activation="tanh")(inputs)
    x = L.Dense(width, activation="tanh")(x)
    return resrep_tf.wrap(keras.Model(inputs, L.Dense(3, activation="softmax")(x)))


def rows(pruner, target=0.5, **arguments):
    channels, budget = pruner.compactor_channels(), FlopsMeter.of(pruner.graph)
    constraints = Constraints(target, **arguments)
    return rows_for_target(pruner.norms_at_start(), channels, budget, constraints)[0]


# === Plans ===


def test_a_plan_takes_its_constants_from_the_compiled_model():
    pruner = wrapped()
    pruner.compile(
        SGD(0.02), LOSS, compactor_optimizer=0.8, lasso_strength=0.25, snap=True
    )
    plan = resrep_tf.plan(pruner, 0.5, 3000, interval=50, step=2)
    expected = make_plan(
        rows(pruner),
        3000,
        float(np.float32(0.02)),
        0.5,
        Schedule(
            warmup_steps=150,
            interval=50,
            step=2,
            masked_strength=0.25,
            momentum=0.8,
        ),
    )
    assert plan == expected
    assert plan.fits and plan.rows_to_mask == rows(pruner) > 4


def test_what_is_given_goes_first():
    pruner = wrapped()
    pruner.compile(SGD(0.02), LOSS, masked_strength=0.25)
    given = {
        "learning_rate": 0.1,
        "warmup_steps": 7,
        "interval": 9,
        "step": 3,
        "masked_strength": 0.5,
        "momentum": 0.5,
        "snap": True,
    }
    plan = resrep_tf.plan(pruner, 0.5, 500, min_width=2, round_to=2, **given)
    expected = make_plan(
        rows(pruner, min_width=2, round_to=2),
        500,
        given.pop("learning_rate"),
        0.5,
        Schedule(**given),
    )
    assert plan == expected
    assert (plan.warmup_steps, plan.interval, plan.step) == (7, 9, 3)
    assert (plan.masked_strength, plan.momentum, plan.snap) == (0.5, 0.5, True)


def test_the_warm_up():
    pruner = wrapped()
    pruner.compile(SGD(0.02), LOSS, masked_strength=1.0, snap=True)
    assert resrep_tf.plan(pruner, 0.5, 4000).warmup_steps == 200
    assert resrep_tf.plan(pruner, 0.5, 4000, steps_per_epoch=30).warmup_steps == 150
    assert resrep_tf.plan(pruner, 0.5, 4000, schedule="informed").warmup_steps == 120


def test_a_decaying_rate_is_followed():
    pruner = wrapped()
    options = {"masked_strength": 0.05, "momentum": 0.5, "schedule": "paper"}
    rate = keras.optimizers.schedules.CosineDecay(0.05, 2000)
    pruner.compile(SGD(rate), LOSS, snap=False)
    decaying = resrep_tf.plan(pruner, 0.5, 2000, **options)
    pruner.compile(SGD(0.05), LOSS, snap=False)
    constant = resrep_tf.plan(pruner, 0.5, 2000, **options)
    # Without snapping, rows come to rest only as the rate goes to zero.
    assert decaying.fits and not constant.fits
    cosine = keras.optimizers.schedules.CosineDecay(0.05, 2000)
    given = resrep_tf.plan(pruner, 0.5, 2000, learning_rate=cosine, **options)
    assert given == decaying
    assert decaying.target_reached_at < decaying.forgotten_at < 2000


@pytest.mark.parametrize("kind", ["auto", "informed"])
def test_paper_only_tells_and_the_others_derive(kind):
    pruner = wrapped()
    pruner.compile(SGD(0.01), LOSS, snap=True)
    paper = resrep_tf.plan(pruner, 0.5, 1000, schedule="paper")
    auto = resrep_tf.plan(pruner, 0.5, 1000, schedule=kind)
    assert not paper.fits and "These constants fit" in paper.advice
    assert (paper.interval, paper.step, paper.masked_strength) == (
        200,
        4,
        float(np.float32(1e-4)),
    )
    assert auto.fits and auto.masked_strength > paper.masked_strength
    assert auto.advice == "" and auto.forgotten_at < 1000
    # What is derived fits as it is.
    again = resrep_tf.plan(
        pruner,
        0.5,
        1000,
        warmup_steps=auto.warmup_steps,
        interval=auto.interval,
        step=auto.step,
        masked_strength=auto.masked_strength,
        schedule="paper",
    )
    assert again == dataclasses.replace(auto, schedule="paper")
    # A plan changes nothing.
    assert float(pruner.state.masked_strength) == np.float32(1e-4)


def test_a_plan_without_compiling():
    pruner = wrapped()
    with pytest.raises(
        ValueError, match=r"not compiled\. Received: learning_rate=None"
    ):
        resrep_tf.plan(pruner, 0.5, 1000)
    plan = resrep_tf.plan(pruner, 0.5, 200_000, learning_rate=0.01, snap=True)
    assert plan.momentum == 0.99 and plan.masked_strength == pytest.approx(1e-4)
    assert plan.snap and plan.fits


def test_the_rate_is_the_one_that_compactors_have():
    pruner = wrapped()
    pruner.compile(SGD(1e-9), LOSS, compactor_optimizer=SGD(0.1, momentum=0.5))
    own = resrep_tf.plan(pruner, 0.5, 3000, masked_strength=0.1, snap=True)
    same = resrep_tf.plan(
        pruner, 0.5, 3000, masked_strength=0.1, snap=True, learning_rate=0.1
    )
    assert own.fits and own.forgotten_at == same.forgotten_at
    pruner.compile(SGD(0.1), LOSS, compactor_optimizer=SGD(1e-9, momentum=0.5))
    assert not resrep_tf.plan(pruner, 0.5, 3000, schedule="paper").fits


def test_an_optimizer_that_cannot_be_foreseen():
    pruner = wrapped()
    pruner.compile("sgd", LOSS, compactor_optimizer=Adam(), snap=False)
    with pytest.raises(ValueError, match=r"Only SGD's.*Received: .*\.Adam object"):
        resrep_tf.plan(pruner, 0.5, 1000)
    plan = resrep_tf.plan(pruner, 0.5, 1000, momentum=0.9, snap=True)
    assert plan.momentum == 0.9


def test_compactors_are_planned_by_the_norm_they_start_with():
    pruner = wrapped()
    pruner.compile(SGD(0.02), LOSS, snap=True)
    for compactor in pruner.compactors:
        compactor.kernel.assign(compactor.kernel * 0.5)
    for norms in pruner.norms_at_start():
        np.testing.assert_array_equal(norms, np.ones(16))
    assert resrep_tf.plan(pruner, 0.5, 1000).row_norm == 1


# === Learning rates ===


class Unregistered(keras.optimizers.schedules.LearningRateSchedule):
    """As users write them: no registration, no config."""

    def __call__(self, step):
        return 0.5 / (keras.ops.cast(step, "float32") + 1)


def test_rate_of_a_number():
    optimizer = Adam(0.03)
    assert rate_of(optimizer) == pytest.approx(0.03)
    optimizer.learning_rate = 0.25
    assert rate_of(optimizer) == 0.25
    assert rate_of(LossScaleOptimizer(optimizer)) == 0.25
    assert rate_of(SGD(lambda: 0.75)) == 0.75


def test_rate_of_a_schedule():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.5, 0.125])
    for optimizer in (SGD(schedule), LossScaleOptimizer(Adam(schedule))):
        rate = rate_of(optimizer)
        assert [rate(step) for step in (0, 10, 11)] == [0.5, 0.5, 0.125]
    own = rate_of(SGD(Unregistered()))
    assert [own(step) for step in (0, 1, 4)] == [0.5, 0.25, pytest.approx(0.1)]


def test_a_schedule_is_compiled():
    """Called op by op for hundreds of steps, it would take seconds."""
    calls = []

    class Counting(Unregistered):
        def __call__(self, step):
            calls.append(step)
            return super().__call__(step)

    pruner = wrapped()
    pruner.compile(SGD(Counting()), LOSS, snap=True)
    calls.clear()
    assert resrep_tf.plan(pruner, 0.5, 1000).rows_to_mask > 0
    assert len(calls) == 1


def test_rate_of_steps_that_take_several_batches():
    """Keras counts batches for its schedules, and updates with the last one's rate."""
    optimizer = SGD(Unregistered(), gradient_accumulation_steps=2)
    rate = rate_of(optimizer)
    variable = keras.Variable([0.0])
    optimizer.build([variable])
    moved = []
    for _ in range(6):
        before = float(variable[0])
        optimizer.apply([np.ones(1, "float32")])
        moved.append(before - float(variable[0]))
    np.testing.assert_allclose(moved, [0, rate(0), 0, rate(1), 0, rate(2)], rtol=1e-6)


# === Reach ===


@pytest.mark.parametrize(
    "min_width, round_to, width", [(1, 1, 1), (3, 1, 3), (1, 8, 8), (9, 8, 16)]
)
def test_the_largest_reduction(min_width, round_to, width):
    pruner = wrapped()
    reach = pruner.compactor_channels(), FlopsMeter.of(pruner.graph)
    narrowest = 5 * width + width * width + width * 3
    largest = 1 - narrowest / (5 * 16 + 16 * 16 + 16 * 3)
    if largest > 0:
        check_reachable(*reach, Constraints(largest - 1e-9, min_width, round_to))
    target = largest + 1e-3
    with pytest.raises(ValueError) as error:
        check_reachable(*reach, Constraints(target, min_width, round_to))
    text = str(error.value)
    assert f"At most {largest:.1%} of the FLOPs" in text
    assert f"`min_width={min_width}` and `round_to={round_to}`" in text
    assert text.endswith(f"Received: flops_target={target}")
    if 0 < target < 1:
        pruner.compile("sgd", LOSS)
        with pytest.raises(ValueError, match="At most"):
            resrep_tf.plan(pruner, target, 1000, min_width=min_width, round_to=round_to)
