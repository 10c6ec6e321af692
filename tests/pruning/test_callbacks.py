"""Channel selection during training: when, what, and what it says about it."""

import csv
import dataclasses
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras.optimizers import SGD, Adam

import resrep_tf
from resrep_tf import ChannelSelection
from resrep_tf.pruning import callbacks
from support.checks import randomise

# Runs of a few steps cannot finish forgetting; where that is the point, it is tested.
pytestmark = [
    pytest.mark.filterwarnings("ignore:A row masked at step"),
    pytest.mark.filterwarnings("ignore:The last of .* selections"),
]

GRAPH = {"run_eagerly": False, "jit_compile": False}


def network(widths=(8, 6)):
    inputs = keras.Input((5,))
    x = inputs
    for number, width in enumerate(widths):
        x = L.Dense(width, activation="tanh", name=f"hidden_{number}")(x)
    return randomise(keras.Model(inputs, L.Dense(3, activation="softmax")(x)))


def pruner_of(widths=(8, 6), optimizer=None, **arguments):
    pruner = resrep_tf.wrap(network(widths))
    pruner.compile(
        optimizer or SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        **{**GRAPH, **arguments},
    )
    return pruner


def data(batches=10, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4 * batches, 5)), rng.integers(0, 3, 4 * batches)


def fit(pruner, *callbacks, batches=10, **arguments):
    x, y = data(batches)
    arguments = {"batch_size": 4, "shuffle": False, "verbose": 0, **arguments}
    return pruner.fit(x, y, callbacks=list(callbacks), **arguments).history


def masked(pruner):
    return [int((np.asarray(c.mask) < 0.5).sum()) for c in pruner.compactors]


class Watch(keras.callbacks.Callback):
    """Notes after each batch the step, the limit and the number of masked rows."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations)
        limit = int(self.model.selection_limit)
        self.seen.append((step, limit, sum(masked(self.model))))


# === When ===


def test_the_limit_rises_at_every_interval_from_the_warm_up_on():
    pruner, watch = pruner_of(), Watch()
    selection = ChannelSelection(0.8, warmup_steps=4, interval=3, step=2)
    fit(pruner, selection, watch, batches=7, epochs=2)
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
    selection = ChannelSelection(0.8, warmup_steps=5, interval=2, step=1)
    fit(pruner, selection, watch, batches=12)
    limits = [(step, limit) for step, limit, _ in watch.seen]
    assert limits == [(4, 0), (8, 2), (12, 4)]


def test_with_accumulated_gradients_steps_are_updates():
    optimizer = SGD(0.05, momentum=0.9, gradient_accumulation_steps=2)
    pruner, watch = pruner_of(optimizer=optimizer), Watch()
    selection = ChannelSelection(0.8, warmup_steps=2, interval=2, step=1)
    fit(pruner, selection, watch, batches=10)
    assert [limit for _, limit, _ in watch.seen] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert selection.plan.total_steps == 5


def test_the_default_warm_up_is_five_epochs():
    pruner, watch = pruner_of(), Watch()
    selection = ChannelSelection(0.3)
    fit(pruner, selection, watch, batches=2, epochs=6)
    assert selection.warmup_steps == 10
    assert [limit for _, limit, _ in watch.seen] == [0] * 9 + [4] * 3
    accumulating = pruner_of(optimizer=SGD(0.05, gradient_accumulation_steps=2))
    selection = ChannelSelection(0.3)
    fit(accumulating, selection, batches=2)
    assert selection.warmup_steps == 5


def test_no_warm_up_at_all():
    pruner, watch = pruner_of(), Watch()
    selection = ChannelSelection(0.3, warmup_steps=0, interval=100, step=3)
    fit(pruner, selection, watch, batches=2)
    assert [limit for _, limit, _ in watch.seen] == [3, 3]


def test_a_second_fit_goes_on_counting():
    pruner, watch = pruner_of(), Watch()
    first = ChannelSelection(0.8, warmup_steps=4, interval=3, step=1)
    fit(pruner, first, watch, batches=5)
    second = ChannelSelection(0.8, warmup_steps=4, interval=3, step=1)
    fit(pruner, second, watch, batches=5)
    assert first.plan.total_steps == 5 and second.plan.total_steps == 10
    limits = [limit for _, limit, _ in watch.seen]
    assert limits == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    third = ChannelSelection(0.8, warmup_steps=4)
    fit(pruner, third, batches=5, epochs=3, initial_epoch=2)
    assert third.plan.total_steps == 15


# === What ===


def test_the_smallest_rows_are_masked_and_all_others_freed():
    pruner = pruner_of()
    selection = ChannelSelection(0.8, warmup_steps=10**6)
    fit(pruner, selection, batches=1)
    first, second = pruner.compactors
    pruner.selection_limit.assign(3)
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
    fit(pruner, ChannelSelection(0.3, warmup_steps=1, step=100), batches=3)
    removed = float(pruner.flops_removed)
    assert 0.3 <= removed < 0.45
    assert int(pruner.selection_limit) == 100 and sum(masked(pruner)) < 10


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
    selection = ChannelSelection(target, warmup_steps=1, step=1000, **arguments)
    history = fit(pruner, selection, batches=3)
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
    pruner.compile(SGD(0.01), "sparse_categorical_crossentropy", **GRAPH)
    return pruner


def test_logs_are_what_conversion_removes(tmp_path):
    """Also with a selection right after the last batch of an epoch."""
    pruner = conv_pruner()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 8, 8, 3)), rng.integers(0, 3, 12)
    selection = ChannelSelection(0.6, warmup_steps=3, interval=3, step=2)
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
    selection = ChannelSelection(0.5, warmup_steps=2, interval=2, step=1)
    board = keras.callbacks.TensorBoard(tmp_path)
    history = fit(pruner, selection, board, batches=2, epochs=3)
    logged = scalars(tmp_path)
    for name in ("flops_removed", "forgotten"):
        np.testing.assert_allclose(logged[f"epoch_{name}"], history[name], rtol=1e-6)
    assert logged["epoch_flops_removed"][-1] > 0


def test_forgotten_rises_to_one():
    pruner = pruner_of(lasso_strength=2.0, snap=True, compactor_optimizer=0.5)
    selection = ChannelSelection(0.5, warmup_steps=2, interval=2, step=4, epsilon=1e-4)
    history = fit(pruner, selection, batches=4, epochs=7)
    assert float(pruner.epsilon) == pytest.approx(1e-4)
    assert history["forgotten"][0] < history["forgotten"][-1] == 1.0
    assert history["flops_removed"][-1] >= 0.5
    assert {"loss", "flops_removed", "forgotten"} == set(history)


# === Before the first batch ===


class Never(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        raise AssertionError("a batch has begun")


def test_a_target_out_of_reach():
    pruner = pruner_of()
    with pytest.raises(ValueError) as error:
        fit(pruner, ChannelSelection(0.97, min_width=2), Never())
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
        fit(pruner, ChannelSelection(0.5), watch, Never(), batches=40, epochs=10)
    (text,) = [
        str(w.message) for w in caught if "These constants fit" in str(w.message)
    ]
    assert text.startswith("The last of 2 selections would come at step 400")
    assert not watch.seen
    advice = dict(re.findall(r"(\w+)=([\d.e-]*\d)", text))
    assert set(advice) == {"warmup_steps", "interval", "step", "masked_strength"}
    strength = float(advice.pop("masked_strength"))
    fitting = pruner_of(snap=True, masked_strength=strength)
    selection = ChannelSelection(0.5, **{k: int(v) for k, v in advice.items()})
    with pytest.raises(AssertionError, match="a batch has begun"):
        fit(fitting, selection, Never(), batches=40, epochs=10)
    assert selection.plan.fits and selection.plan.total_steps == 400
    assert selection.plan.masked_strength == pytest.approx(strength)


def test_the_papers_constants_are_taken_as_they_are():
    pruner = pruner_of(lasso_strength=0.0123)
    selection = ChannelSelection(0.5, warmup_steps=7, interval=11, step=3)
    fit(pruner, selection, batches=1)
    constants = (selection.warmup_steps, selection.interval, selection.step)
    assert constants == (7, 11, 3)
    assert float(pruner.lasso_strength) == np.float32(0.0123)


def test_auto_changes_what_does_not_fit():
    pruner = pruner_of(snap=True)
    selection = ChannelSelection(0.5, schedule="auto")
    with pytest.raises(AssertionError, match="a batch has begun"):
        fit(pruner, selection, Never(), batches=40, epochs=10)
    plan = selection.plan
    assert plan.fits and plan.total_steps == 400
    constants = (selection.warmup_steps, selection.interval, selection.step)
    assert constants == (plan.warmup_steps, plan.interval, plan.step)
    assert plan.warmup_steps < 200  # Five epochs are half of the run.
    assert float(pruner.masked_strength) == np.float32(plan.masked_strength)
    assert plan.masked_strength > 1e-4 == pruner.compiled_strength
    assert float(pruner.lasso_strength) == np.float32(1e-4)  # Others are spared.


def test_auto_meets_the_target_when_planned(monkeypatch):
    """Also if it takes more rows than were estimated before training."""

    def too_few(*args, **kwargs):
        plan = resrep_tf.plan(*args, **kwargs)
        return dataclasses.replace(plan, warmup_steps=3, step=1, selections=1)

    monkeypatch.setattr(callbacks, "plan", too_few)
    pruner = pruner_of(snap=True)
    history = fit(pruner, ChannelSelection(0.5, schedule="auto"), batches=2, epochs=2)
    assert history["flops_removed"][0] == 0 and history["flops_removed"][1] >= 0.5


def test_auto_forgets_in_time_what_has_grown_before_it_was_masked():
    """Plans are made from the norms at the start; training may change them."""
    pruner = pruner_of(snap=True)
    for compactor in pruner.compactors:
        compactor.kernel.assign(3 * compactor.kernel)
    selection, watch = ChannelSelection(0.5, schedule="auto"), Watch()
    history = fit(pruner, selection, watch, batches=40, epochs=10)
    assert float(pruner.masked_strength) > 2 * selection.plan.masked_strength
    assert history["forgotten"][-1] == 1.0
    assert selection.plan.forgotten_by == 100  # A quarter of the run.


def test_auto_stops_selecting_once_the_target_is_met():
    """Rows that are exchanged late would not be forgotten in time."""
    counts = {}
    for schedule in ("paper", "auto"):
        pruner = pruner_of(snap=True, masked_strength=5.0)
        selection = ChannelSelection(
            0.5, warmup_steps=2, interval=2, step=4, schedule=schedule
        )
        selections = []
        select = selection.select
        selection.select = lambda s=selections, f=select: s.append(f()) or s[-1]
        fit(pruner, selection, batches=10, epochs=4)
        counts[schedule] = [chosen.target_met for chosen in selections]
    assert counts["auto"].count(True) == 1 and counts["auto"][-1]
    assert counts["paper"].count(True) > 5


def unknown_length():
    x, y = data()

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
        pruner.fit(unknown_length(), callbacks=[ChannelSelection(0.3)], **arguments)
    automatic = ChannelSelection(0.3, warmup_steps=2, schedule="auto")
    with pytest.raises(ValueError, match=r"Give `steps_per_epoch`.*schedule='auto'"):
        pruner.fit(unknown_length(), callbacks=[automatic], **arguments)
    assert int(pruner.optimizer.iterations) == 0
    known = ChannelSelection(0.3, warmup_steps=2, interval=3, step=1)
    pruner.fit(unknown_length(), callbacks=[known], **arguments)
    assert int(pruner.selection_limit) == 3 and known.plan is None
    # Where data of unknown length run out, Keras's optimizers count one step more.
    before = int(pruner.optimizer.iterations)
    told = ChannelSelection(0.3)
    endless = unknown_length().repeat()
    pruner.fit(endless, callbacks=[told], steps_per_epoch=2, **arguments)
    assert told.warmup_steps == 10 and told.plan.total_steps == before + 2


def test_an_optimizer_that_cannot_be_foreseen():
    pruner = pruner_of(compactor_optimizer=Adam(0.01))
    selection = ChannelSelection(0.3, warmup_steps=2, interval=3, step=1)
    fit(pruner, selection)
    assert selection.plan is None and int(pruner.selection_limit) == 3
    automatic = ChannelSelection(0.3, schedule="auto")
    with pytest.raises(ValueError, match=r"Only SGD's way.*Received: .*Adam"):
        fit(pruner, automatic, Never())


def test_a_plain_model():
    model = network()
    model.compile("sgd", "sparse_categorical_crossentropy", **GRAPH)
    with pytest.raises(
        TypeError, match=r"made by `resrep_tf\.wrap`.*model=<Functional"
    ):
        fit(model, ChannelSelection(0.3), Never())


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


# === Restarts ===


def train_epochs(pruner, epochs, *callbacks, initial_epoch=0, **selecting):
    selection = ChannelSelection(0.6, **selecting)
    watch = Watch()
    fit(
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
        ({"warmup_steps": 3, "interval": 2, "step": 2}, {"lasso_strength": 0.1}),
        # Here the raised Lasso alone would make the given interval fit after all.
        (
            {"warmup_steps": 2, "interval": 8, "step": 3, "schedule": "auto"},
            {"snap": True},
        ),
    ],
    ids=["paper", "auto"],
)
def test_a_restart_selects_the_same(selecting, compiling, tmp_path):
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
    if selecting.get("schedule") == "auto":
        assert selection.interval != selecting["interval"]
    assert rest == seen[5:]
    for name in ("variables", "optimizer", "compactor_optimizer"):
        left, right = getattr(pruner, name), getattr(loaded, name)
        if name != "variables":
            left, right = left.variables, right.variables
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)
