"""Before the first batch: targets out of reach, and schedules that fit the run."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf
from keras.optimizers import Adam

from resrep_tf import ChannelSelection
from resrep_tf.pruning import callbacks, planning
from support.trainings import (
    CE,
    GRAPH,
    Never,
    Watch,
    dense_network,
    fit_selecting,
    paper,
    pruner_of,
    vectors,
)

# Runs of a few steps cannot finish forgetting; where that is the point, it is tested.
pytestmark = [
    pytest.mark.filterwarnings("ignore:A row masked at step"),
    pytest.mark.filterwarnings("ignore:The last of .* selections"),
]


# === Before the first batch ===


def test_a_target_out_of_reach():
    pruner = pruner_of()
    with pytest.raises(ValueError) as error:
        fit_selecting(pruner, paper(0.97, min_width=2), Never())
    text = str(error.value)
    assert "Received: flops_target=0.97" in text and "`min_width=2`" in text
    largest = float(re.search(r"At most ([\d.]+)% of the FLOPs", text).group(1))
    # 8 -> 2 and 6 -> 2 of 5*8 + 8*6 + 6*3 multiply-adds.
    assert largest == pytest.approx(100 * (1 - (5 * 2 + 2 * 2 + 2 * 3) / 106), abs=0.05)
    assert int(pruner.optimizer.iterations) == 0


def test_a_schedule_that_cannot_finish_and_the_advice_it_comes_with():
    pruner = pruner_of(snap=True)
    watch = Watch()
    with pytest.warns(UserWarning) as caught, pytest.raises(AssertionError):
        fit_selecting(pruner, paper(0.5), watch, Never(), batches=40, epochs=10)
    (text,) = [
        str(w.message) for w in caught if "These constants fit" in str(w.message)
    ]
    assert text.startswith("The last of 2 selections would come at step 400")
    assert not watch.seen
    advice = dict(re.findall(r"(\w+)=([\d.e-]*\d)", text))
    assert set(advice) == {"warmup_steps", "interval", "step", "masked_strength"}
    strength = float(advice.pop("masked_strength"))
    fitting = pruner_of(snap=True, masked_strength=strength)
    selection = paper(0.5, **{k: int(v) for k, v in advice.items()})
    with pytest.raises(AssertionError, match="a batch has begun"):
        fit_selecting(fitting, selection, Never(), batches=40, epochs=10)
    assert selection.plan.fits and selection.plan.total_steps == 400
    assert selection.plan.masked_strength == pytest.approx(strength)


def test_the_papers_constants_are_taken_as_they_are():
    pruner = pruner_of(lasso_strength=0.0123)
    selection = paper(0.5, warmup_steps=7, interval=11, step=3)
    fit_selecting(pruner, selection, batches=1)
    constants = (
        selection.schedule.warmup_steps,
        selection.schedule.interval,
        selection.schedule.step,
    )
    assert constants == (7, 11, 3)
    assert float(pruner.state.lasso_strength) == np.float32(0.0123)


def test_auto_changes_what_does_not_fit():
    pruner = pruner_of(snap=True)
    selection = ChannelSelection(0.5, schedule="auto")
    with pytest.raises(AssertionError, match="a batch has begun"):
        fit_selecting(pruner, selection, Never(), batches=40, epochs=10)
    plan = selection.plan
    assert plan.fits and plan.total_steps == 400
    constants = (
        selection.schedule.warmup_steps,
        selection.schedule.interval,
        selection.schedule.step,
    )
    assert constants == (plan.warmup_steps, plan.interval, plan.step)
    assert plan.warmup_steps < 200  # Five epochs are half of the run.
    assert float(pruner.state.masked_strength) == np.float32(plan.masked_strength)
    assert plan.masked_strength > 1e-4 == pruner.compiled_strength
    assert float(pruner.state.lasso_strength) == np.float32(1e-4)  # Others are spared.


def test_auto_meets_the_target_when_planned(monkeypatch):
    """Also if it takes more rows than were estimated before training."""

    def too_few(*args):
        plan = planning.plan_run(*args)
        return dataclasses.replace(plan, warmup_steps=3, step=1, selections=1)

    monkeypatch.setattr(callbacks, "plan_run", too_few)
    pruner = pruner_of(snap=True)
    history = fit_selecting(
        pruner, ChannelSelection(0.5, schedule="auto"), batches=2, epochs=2
    )
    assert history["flops_removed"][0] == 0 and history["flops_removed"][1] >= 0.5


@pytest.mark.parametrize(("schedule", "by"), [("auto", 100), ("informed", 48)])
def test_what_has_grown_before_it_was_masked_is_forgotten_in_time(schedule, by):
    """Plans are made from the norms at the start; training may change them."""
    pruner = pruner_of(snap=True)
    for compactor in pruner.compactors:
        compactor.kernel.assign(3 * compactor.kernel)
    selection, watch = ChannelSelection(0.5, schedule=schedule), Watch()
    history = fit_selecting(pruner, selection, watch, batches=40, epochs=10)
    assert float(pruner.state.masked_strength) > 2 * selection.plan.masked_strength
    assert history["forgotten"][-1] == 1.0
    assert selection.plan.forgotten_by == by  # A quarter of the run, or an eighth.


def test_schedules_that_fit_the_run_stop_selecting_once_the_target_is_met():
    """Rows that are exchanged late would not be forgotten in time."""
    counts = {}
    for schedule in ("paper", "auto", "informed"):
        pruner = pruner_of(snap=True, masked_strength=5.0)
        selection = ChannelSelection(
            0.5, warmup_steps=2, interval=2, step=4, schedule=schedule
        )
        selections = []
        select = selection.select
        selection.select = lambda s=selections, f=select: s.append(f()) or s[-1]
        fit_selecting(pruner, selection, batches=10, epochs=4)
        counts[schedule] = [chosen.target_met for chosen in selections]
    for schedule in ("auto", "informed"):
        assert counts[schedule].count(True) == 1 and counts[schedule][-1]
    assert counts["paper"].count(True) > 5


def unknown_length():
    x, y = vectors()

    def batches():
        for start in range(0, len(x), 4):
            yield x[start : start + 4], y[start : start + 4]

    signature = (tf.TensorSpec((4, 5)), tf.TensorSpec((4,), tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_run_of_unknown_length():
    arguments = {"verbose": 0, "shuffle": False}
    pruner = pruner_of()
    with pytest.raises(ValueError, match=r"Give `warmup_steps`.*warmup_steps=None"):
        pruner.fit(unknown_length(), callbacks=[paper(0.3)], **arguments)
    automatic = ChannelSelection(0.3, warmup_steps=2, schedule="auto")
    with pytest.raises(ValueError, match=r"Give `steps_per_epoch`.*schedule='auto'"):
        pruner.fit(unknown_length(), callbacks=[automatic], **arguments)
    assert int(pruner.optimizer.iterations) == 0
    known = paper(0.3, warmup_steps=2, interval=3, step=1)
    pruner.fit(unknown_length(), callbacks=[known], **arguments)
    assert int(pruner.state.selection_limit) == 3 and known.plan is None
    # Where data of unknown length run out, Keras's optimizers count one step more.
    before = int(pruner.optimizer.iterations)
    told = paper(0.3)
    endless = unknown_length().repeat()
    pruner.fit(endless, callbacks=[told], steps_per_epoch=2, **arguments)
    assert told.schedule.warmup_steps == 10 and told.plan.total_steps == before + 2


def test_an_optimizer_that_cannot_be_foreseen():
    pruner = pruner_of(compactor_optimizer=Adam(0.01), snap=False)
    selection = paper(0.3, warmup_steps=2, interval=3, step=1)
    fit_selecting(pruner, selection)
    assert selection.plan is None and int(pruner.state.selection_limit) == 3
    automatic = ChannelSelection(0.3, schedule="auto")
    with pytest.raises(ValueError, match=r"Only SGD's way.*Received: .*Adam"):
        fit_selecting(pruner, automatic, Never())


def test_a_plain_model():
    model = dense_network()
    model.compile("sgd", CE, **GRAPH)
    with pytest.raises(
        TypeError, match=r"made by `resrep_tf\.wrap`.*model=<Functional"
    ):
        fit_selecting(model, paper(0.3), Never())


@pytest.mark.parametrize(
    "name, value",
    [
        ("flops_target", 0),
        ("flops_target", 1.0),
        ("flops_target", -0.5),
        ("flops_target", 54.5),
        ("flops_target", float("nan")),
        ("interval", 0),
        ("interval", 2.5),
        ("step", -1),
        ("min_width", 0),
        ("round_to", 0.5),
        ("warmup_steps", -1),
        ("epsilon", 0),
        ("epsilon", float("nan")),
        ("schedule", "fast"),
    ],
)
def test_wrong_values(name, value):
    arguments = {"flops_target": 0.5, name: value}
    with pytest.raises(ValueError) as error:
        ChannelSelection(**arguments)
    assert f"`{name}`" in str(error.value)
    assert str(error.value).endswith(f"Received: {name}={value!r}")
