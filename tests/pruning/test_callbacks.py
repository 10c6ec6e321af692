"""Channel selection during training: when, what, and what it says about it."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras.optimizers import SGD

import resrep_tf
from resrep_tf import ChannelSelection
from resrep_tf.pruning.planning import targets_met
from support.checks import randomise
from support.latency import goals_of, made_up_table
from support.models.small import small_model
from support.trainings import (
    CE,
    GRAPH,
    Watch,
    fit_selecting,
    masked,
    paper,
    pruner_of,
)

# Runs of a few steps cannot finish forgetting; where that is the point, it is tested.
pytestmark = [
    pytest.mark.filterwarnings("ignore:A row masked at step"),
    pytest.mark.filterwarnings("ignore:The last of .* selections"),
]


# === When ===


def test_the_limit_rises_at_every_interval_from_the_warm_up_on():
    pruner, watch = pruner_of(), Watch()
    selection = paper(0.8, warmup_steps=4, interval=3, step=2)
    fit_selecting(pruner, selection, watch, batches=7, epochs=2)
    needed = watch.seen[-1][2]
    for step, limit, count in watch.seen:
        due = 0 if step < 4 else 2 * ((step - 4) // 3 + 1)
        assert limit == due
        assert count == min(due, needed)
    assert [step for step, _, _ in watch.seen] == list(range(1, 15))
    assert needed == 8  # Otherwise the target was met too soon to see the limit rise.


def test_steps_are_counted_from_the_optimizer():
    """With several steps in an execution, a callback is not called after each."""
    pruner, watch = pruner_of(steps_per_execution=4), Watch()
    selection = paper(0.8, warmup_steps=5, interval=2, step=1)
    fit_selecting(pruner, selection, watch, batches=12)
    limits = [(step, limit) for step, limit, _ in watch.seen]
    assert limits == [(4, 0), (8, 2), (12, 4)]


def test_with_accumulated_gradients_steps_are_updates():
    optimizer = SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)
    pruner, watch = pruner_of(optimizer=optimizer), Watch()
    selection = paper(0.8, warmup_steps=2, interval=2, step=1)
    fit_selecting(pruner, selection, watch, batches=10)
    assert [limit for _, limit, _ in watch.seen] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert selection.plan.total_steps == 5


def test_the_default_warm_up_is_five_epochs():
    pruner, watch = pruner_of(), Watch()
    selection = paper(0.3)
    fit_selecting(pruner, selection, watch, batches=2, epochs=6)
    assert selection.schedule.warmup_steps == 10
    assert [limit for _, limit, _ in watch.seen] == [0] * 9 + [4] * 3
    accumulating = pruner_of(optimizer=SGD(0.05, gradient_accumulation_steps=2))
    selection = paper(0.3)
    fit_selecting(accumulating, selection, batches=2)
    assert selection.schedule.warmup_steps == 5


def test_no_warm_up_at_all():
    pruner, watch = pruner_of(), Watch()
    selection = paper(0.3, warmup_steps=0, interval=100, step=3)
    fit_selecting(pruner, selection, watch, batches=2)
    assert [limit for _, limit, _ in watch.seen] == [3, 3]


def test_a_second_fit_goes_on_counting():
    pruner, watch = pruner_of(), Watch()
    first = paper(0.8, warmup_steps=4, interval=3, step=1)
    fit_selecting(pruner, first, watch, batches=5)
    second = paper(0.8, warmup_steps=4, interval=3, step=1)
    fit_selecting(pruner, second, watch, batches=5)
    assert first.plan.total_steps == 5 and second.plan.total_steps == 10
    limits = [limit for _, limit, _ in watch.seen]
    assert limits == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    third = paper(0.8, warmup_steps=4)
    fit_selecting(pruner, third, batches=5, epochs=3, initial_epoch=2)
    assert third.plan.total_steps == 15


# === What ===


def test_the_smallest_rows_are_masked_and_all_others_freed():
    pruner = pruner_of()
    selection = paper(0.8, warmup_steps=10**6)
    fit_selecting(pruner, selection, batches=1)
    first, second = pruner.compactors
    pruner.state.selection_limit.assign(3)
    first.kernel.assign(np.diag([5, 0.1, 3, 0.3, 7, 8, 9, 4.0]))
    second.kernel.assign(np.diag([5, 6, 0.2, 7, 8, 9.0]))
    chosen = selection.select()
    np.testing.assert_array_equal(first.mask, [1, 0, 1, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(second.mask, [1, 1, 0, 1, 1, 1])
    assert chosen.masked == 3 and not chosen.target_met
    first.kernel.assign(np.diag([5, 2, 0.01, 2, 7, 8, 9, 4.0]))
    second.kernel.assign(np.diag([0.01, 6, 0.2, 7, 8, 9.0]))
    selection.select()
    np.testing.assert_array_equal(first.mask, [1, 1, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(second.mask, [0, 1, 0, 1, 1, 1])


def test_selection_stops_at_the_target():
    pruner = pruner_of()
    fit_selecting(pruner, paper(0.3, warmup_steps=1, step=100), batches=3)
    removed = float(pruner.state.flops_removed)
    assert 0.3 <= removed < 0.45
    assert int(pruner.state.selection_limit) == 100 and sum(masked(pruner)) < 10


@pytest.mark.parametrize(
    "arguments, widths",
    [
        ({"min_width": 5}, lambda widths: min(widths) >= 5),
        ({"round_to": 8}, lambda widths: all(w % 8 == 0 for w in widths)),
        (
            {"round_to": 8, "min_width": 9},
            lambda widths: all(w % 8 == 0 and w >= 16 for w in widths),
        ),
    ],
    ids=["min_width", "round_to", "both"],
)
def test_widths(arguments, widths):
    pruner = pruner_of(widths=(24, 32))
    target = 0.25
    selection = paper(target, warmup_steps=1, step=1000, **arguments)
    history = fit_selecting(pruner, selection, batches=3)
    kept = [c.width - n for c, n in zip(pruner.compactors, masked(pruner), strict=True)]
    assert sum(kept) < 56 and widths(kept)
    slim, report = resrep_tf.convert(pruner, drop_masked=True, return_report=True)
    assert [slim.get_layer(f"hidden_{n}").units for n in (0, 1)] == kept
    assert report.flops_removed >= target
    assert history["flops_removed"][-1] == pytest.approx(report.flops_removed)


# === What it says ===


def conv_pruner():
    inputs = keras.Input((8, 8, 3))
    x = L.BatchNormalization()(L.Conv2D(6, 3, padding="same", name="a")(inputs))
    x = L.ReLU()(x)
    y = L.ReLU()(L.Conv2D(5, 3, padding="same", name="b")(x))
    x = L.Add()([x, L.Conv2D(6, 1, name="c")(y)])
    x = L.GlobalAveragePooling2D()(L.DepthwiseConv2D(3)(x))
    model = keras.Model(inputs, L.Dense(3, activation="softmax")(x))
    pruner = resrep_tf.wrap(randomise(model), targets="all")
    pruner.compile(SGD(0.01), CE, snap=False, **GRAPH)
    return pruner


def test_logs_are_what_conversion_removes(tmp_path):
    """Also with a selection right after the last batch of an epoch."""
    pruner = conv_pruner()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 8, 8, 3)), rng.integers(0, 3, 12)
    selection = paper(0.6, warmup_steps=3, interval=3, step=2)
    reports = []

    class Convert(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            _, report = resrep_tf.convert(
                self.model, drop_masked=True, return_report=True
            )
            reports.append(report.flops_removed)

    history = pruner.fit(
        x,
        y,
        batch_size=4,
        epochs=4,
        callbacks=[
            selection,
            Convert(),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        ],
        verbose=0,
    ).history
    assert len(set(reports)) > 2 and reports[0] > 0
    np.testing.assert_allclose(history["flops_removed"], reports, rtol=1e-6)
    assert history["forgotten"] == [0.0] * 4
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose(
        [float(row["flops_removed"]) for row in rows], reports, rtol=1e-6
    )
    assert all(float(row["forgotten"]) == 0 for row in rows)


def scalars(folder):
    """What TensorBoard would show."""
    found = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor)
                if number.shape == () and number.dtype.kind == "f":
                    found.setdefault(value.tag, []).append(float(number))
    return found


def test_tensorboard_shows_them(tmp_path):
    pytest.importorskip("tensorboard")
    pruner = pruner_of()
    selection = paper(0.5, warmup_steps=2, interval=2, step=1)
    board = keras.callbacks.TensorBoard(tmp_path)
    history = fit_selecting(pruner, selection, board, batches=2, epochs=3)
    logged = scalars(tmp_path)
    for name in ("flops_removed", "forgotten"):
        np.testing.assert_allclose(logged[f"epoch_{name}"], history[name], rtol=1e-6)
    assert logged["epoch_flops_removed"][-1] > 0


def test_forgotten_rises_to_one():
    pruner = pruner_of(lasso_strength=2.0, snap=True, compactor_optimizer=0.5)
    selection = paper(0.5, warmup_steps=2, interval=2, step=4, epsilon=1e-4)
    history = fit_selecting(pruner, selection, batches=4, epochs=7)
    assert float(pruner.state.epsilon) == pytest.approx(1e-4)
    assert history["forgotten"][0] < history["forgotten"][-1] == 1.0
    assert history["flops_removed"][-1] >= 0.5
    assert {"loss", "flops_removed", "forgotten"} == set(history)


@pytest.mark.parametrize("budget", ["params", "latency", "all"])
@pytest.mark.parametrize("schedule", ["auto", "paper"])
def test_selection_stops_when_all_targets_are_met(budget, schedule):
    pruner = pruner_of(snap=True)
    selection = ChannelSelection(
        **goals_of(pruner.graph, budget),
        warmup_steps=1,
        interval=1,
        step=1,
        schedule=schedule,
    )
    history = fit_selecting(pruner, selection, batches=40)
    combined = selection.goals.budget(pruner.graph)
    removed = []
    for compactor, channels in zip(
        pruner.compactors, pruner.compactor_channels(), strict=True
    ):
        removed += channels[np.asarray(compactor.mask) < 0.5].tolist()
    for channel in removed:
        combined.remove(channel)
    assert combined.met()
    assert targets_met(pruner, selection.goals)
    # The log is about FLOPs whatever the targets.
    flops = combined.goals[0]
    assert flops.argument == "flops_target"
    assert history["flops_removed"][-1] == pytest.approx(flops.removed, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "must be given. Received: none of them"),
        ({"params_target": 1.5}, "`params_target` is the fraction.*params_target=1.5"),
        ({"latency_target": 0.5}, "`latency_target` and `latency_table` must be"),
        (
            {"latency_target": 0.5, "latency_table": "nowhere.json"},
            "cannot be read.*Received: path=nowhere.json",
        ),
    ],
)
def test_targets_that_cannot_be_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        ChannelSelection(**arguments)


def test_targets_that_the_model_cannot_meet_are_refused_before_training():
    pruner = pruner_of()
    with pytest.raises(ValueError, match=r"At most .* of the parameters.*=0.999"):
        fit_selecting(pruner, ChannelSelection(0.1, params_target=0.999), batches=1)
    table = made_up_table(pruner.graph, overhead=1e-9)
    with pytest.raises(ValueError, match=r"At most .* of the latency.*=0.999"):
        selection = ChannelSelection(latency_target=0.999, latency_table=table)
        fit_selecting(pruner, selection, batches=1)
    other = made_up_table(resrep_tf.ChannelGraph(small_model()))
    with pytest.raises(ValueError, match="`latency_table` was measured for another"):
        selection = ChannelSelection(latency_target=0.1, latency_table=other)
        fit_selecting(pruner, selection, batches=1)


# === Restarts ===


def train_epochs(
    pruner, epochs, *callbacks, initial_epoch=0, budget="flops", **selecting
):
    selection = ChannelSelection(**goals_of(pruner.graph, budget), **selecting)
    watch = Watch()
    fit_selecting(
        pruner,
        selection,
        watch,
        *callbacks,
        batches=5,
        epochs=epochs,
        initial_epoch=initial_epoch,
    )
    return selection, watch.seen


@pytest.mark.parametrize(
    "selecting, compiling",
    [
        (
            {"warmup_steps": 3, "interval": 2, "step": 2, "schedule": "paper"},
            {"lasso_strength": 0.1},
        ),
        # Here the raised Lasso alone would make the given interval fit after all.
        (
            {"warmup_steps": 2, "interval": 8, "step": 3, "schedule": "auto"},
            {"snap": True},
        ),
        (
            {"warmup_steps": 2, "interval": 8, "step": 3, "schedule": "informed"},
            {"snap": True},
        ),
    ],
    ids=["paper", "auto", "informed"],
)
@pytest.mark.parametrize(
    "budget",
    [
        "flops",
        *(
            pytest.param(b, marks=pytest.mark.slow)
            for b in ("params", "latency", "all")
        ),
    ],
)
def test_a_restart_selects_the_same(selecting, compiling, budget, tmp_path):
    selecting = {**selecting, "budget": budget}
    path = tmp_path / "pruner.keras"
    save = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epoch == 0 and pruner.save(path)
    )
    pruner = pruner_of(**compiling)
    selection, seen = train_epochs(pruner, 24, save, **selecting)
    assert 0 < seen[4][2] < seen[-1][2]  # Saved in the middle of it all.
    loaded = keras.models.load_model(path)
    resumed, rest = train_epochs(loaded, 24, initial_epoch=1, **selecting)
    assert resumed.plan == selection.plan
    if selecting["schedule"] != "paper":
        assert selection.schedule.interval != selecting["interval"]
    assert rest == seen[5:]
    for name in ("variables", "optimizer", "compactor_optimizer"):
        left, right = getattr(pruner, name), getattr(loaded, name)
        if name != "variables":
            left, right = left.variables, right.variables
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
