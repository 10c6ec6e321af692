"""Plans for a model, and runs that go as planned."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras.optimizers import SGD, Adam, LossScaleOptimizer

import resrep_tf
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.pruning import selection
from resrep_tf.pruning.plan import make_plan
from resrep_tf.pruning.planning import check_reachable, rate_of
from resrep_tf.pruning.selection import rows_for_target
from support.checks import randomise

LOSS = "sparse_categorical_crossentropy"


def wrapped(width=16):
    inputs = keras.Input((5,))
    x = L.Dense(width, activation="tanh")(inputs)
    x = L.Dense(width, activation="tanh")(x)
    return resrep_tf.wrap(keras.Model(inputs, L.Dense(3, activation="softmax")(x)))


def rows(pruner, target=0.5, **arguments):
    return rows_for_target(
        pruner.spaces(), FlopsMeter.of(pruner.graph), target, **arguments
    )


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
        warmup_steps=150,
        interval=50,
        step=2,
        masked_strength=0.25,
        momentum=0.8,
        snap=True,
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
        **given,
    )
    assert plan == expected
    assert (plan.warmup_steps, plan.interval, plan.step) == (7, 9, 3)
    assert (plan.masked_strength, plan.momentum, plan.snap) == (0.5, 0.5, True)


def test_the_warm_up():
    pruner = wrapped()
    pruner.compile(SGD(0.02), LOSS, masked_strength=1.0, snap=True)
    assert resrep_tf.plan(pruner, 0.5, 4000).warmup_steps == 200
    assert resrep_tf.plan(pruner, 0.5, 4000, steps_per_epoch=30).warmup_steps == 150


def test_a_decaying_rate_is_followed():
    pruner = wrapped()
    options = {"masked_strength": 0.05, "momentum": 0.5, "schedule": "paper"}
    pruner.compile(SGD(keras.optimizers.schedules.CosineDecay(0.05, 2000)), LOSS)
    decaying = resrep_tf.plan(pruner, 0.5, 2000, **options)
    pruner.compile(SGD(0.05), LOSS)
    constant = resrep_tf.plan(pruner, 0.5, 2000, **options)
    # Without snapping, rows come to rest only as the rate goes to zero.
    assert decaying.fits and not constant.fits
    cosine = keras.optimizers.schedules.CosineDecay(0.05, 2000)
    given = resrep_tf.plan(pruner, 0.5, 2000, learning_rate=cosine, **options)
    assert given == decaying
    assert decaying.target_reached_at < decaying.forgotten_at < 2000


def test_paper_only_tells_and_auto_derives():
    pruner = wrapped()
    pruner.compile(SGD(0.01), LOSS, snap=True)
    paper = resrep_tf.plan(pruner, 0.5, 1000, schedule="paper")
    auto = resrep_tf.plan(pruner, 0.5, 1000)
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
    assert again == auto
    assert float(pruner.masked_strength) == np.float32(1e-4)  # A plan changes nothing.
    assert int(pruner.selection_limit) == 0


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
    pruner.compile("sgd", LOSS, compactor_optimizer=Adam())
    with pytest.raises(ValueError, match=r"Only SGD's.*Received: .*\.Adam object"):
        resrep_tf.plan(pruner, 0.5, 1000)
    plan = resrep_tf.plan(pruner, 0.5, 1000, momentum=0.9, snap=True)
    assert plan.momentum == 0.9


def test_filters_are_planned_by_the_norms_they_had_when_wrapped(tmp_path):
    model = large_filters()
    pruner = resrep_tf.wrap(model, compactor="filters")
    compile_pruner(pruner, SGD(0.02, momentum=0.9), snap=True)
    plan = resrep_tf.plan(pruner, 0.5, 1000)
    chosen = selection.select(
        pruner.norms_at_start(), pruner.spaces(), FlopsMeter.of(pruner.graph), 0.5
    )
    sizes = np.tile(np.linspace(4.5, 5.5, 8), 2)
    masked = np.concatenate(chosen.masks) < 0.5
    assert plan.rows_to_mask == masked.sum()
    assert plan.row_norm == pytest.approx(sizes[masked].max())
    assert (
        plan.masked_strength
        > 4
        * resrep_tf.plan(
            resrep_tf.wrap(model),
            0.5,
            1000,
            learning_rate=0.02,
            momentum=0.9,
            snap=True,
        ).masked_strength
    )
    # Training moves the filters, not the plan, nor does a restart.
    for compactor in pruner.compactors:
        compactor.rows.assign(compactor.rows * 0.5)
    assert resrep_tf.plan(pruner, 0.5, 1000) == plan
    pruner.save(tmp_path / "pruner.keras")
    loaded = keras.models.load_model(tmp_path / "pruner.keras")
    assert resrep_tf.plan(loaded, 0.5, 1000) == plan


def test_compactors_are_planned_by_the_norm_they_start_with():
    pruner = wrapped()
    pruner.compile(SGD(0.02), LOSS, snap=True)
    for compactor in pruner.compactors:
        compactor.kernel.assign(compactor.kernel * 0.5)
    assert pruner.norms_at_start() is None
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
    spaces, meter = pruner.spaces(), FlopsMeter.of(pruner.graph)
    narrowest = 5 * width + width * width + width * 3
    largest = 1 - narrowest / (5 * 16 + 16 * 16 + 16 * 3)
    if largest > 0:
        check_reachable(spaces, meter, largest - 1e-9, min_width, round_to)
    target = largest + 1e-3
    with pytest.raises(ValueError) as error:
        check_reachable(spaces, meter, target, min_width, round_to)
    text = str(error.value)
    assert f"At most {largest:.1%} of the FLOPs" in text
    assert f"`min_width={min_width}` and `round_to={round_to}`" in text
    assert text.endswith(f"Received: flops_target={target}")
    if 0 < target < 1:
        pruner.compile("sgd", LOSS)
        with pytest.raises(ValueError, match="At most"):
            resrep_tf.plan(pruner, target, 1000, min_width=min_width, round_to=round_to)


# === Runs that go as planned ===

BATCH = 16


def images(count=640, seed=0):
    """Which of three textures is it? Easy, but not without the channels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    stripes = np.indices((8, 8)) % 2
    textures = np.stack([stripes[0], stripes[1], stripes[0] ^ stripes[1]]) * 2.0 - 1
    noise = rng.normal(size=(count, 8, 8))
    return (textures[labels] + 1.5 * noise)[..., None].astype("float32"), labels


def cnn():
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="first")(inputs)
    x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    x = L.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, L.Dense(3, activation="softmax", name="head")(x))
    return randomise(model)


def compile_pruner(pruner, optimizer, **arguments):
    pruner.compile(
        optimizer, LOSS, metrics=["accuracy"], jit_compile=False, **arguments
    )


def train(pruner, selection, epochs):
    x, y = images()
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0}
    return pruner.fit(x, y, callbacks=[selection], **options).history


def assert_went_as_planned(pruner, selection, history, target):
    """Forgotten or not, nothing in between; and nothing is lost by conversion."""
    assert selection.plan.fits
    norms = np.concatenate([np.asarray(c.row_norms()) for c in pruner.compactors])
    kept = np.concatenate([np.asarray(c.mask) > 0.5 for c in pruner.compactors])
    assert 3 < (~kept).sum() < 13
    assert norms[~kept].max() < 1e-5 < 1e-2 < norms[kept].min()
    assert history["forgotten"][-1] == 1
    slim, report = resrep_tf.convert(pruner, return_report=True)
    assert report.flops_removed >= target
    assert report.flops_removed == pytest.approx(history["flops_removed"][-1])
    assert report.rows_dropped == (~kept).sum()
    x, y = images(seed=1)
    wide, narrow = pruner.predict(x, verbose=0), slim.predict(x, verbose=0)
    np.testing.assert_array_equal(wide.argmax(-1), narrow.argmax(-1))
    np.testing.assert_allclose(narrow, wide, atol=1e-4)
    accuracy = float((narrow.argmax(-1) == y).mean())
    scores = pruner.evaluate(x, y, verbose=0, return_dict=True)
    assert scores["accuracy"] == np.float32(accuracy)
    assert accuracy > 0.8


def test_a_run_with_snapping_and_a_schedule_of_its_own():
    pruner = resrep_tf.wrap(cnn())
    compile_pruner(pruner, SGD(0.02, momentum=0.9), snap=True)
    selection = resrep_tf.ChannelSelection(0.6, schedule="auto")
    history = train(pruner, selection, epochs=8)
    assert selection.plan.total_steps == 320
    assert_went_as_planned(pruner, selection, history, 0.6)
    for compactor in pruner.compactors:
        gone = np.asarray(compactor.mask) < 0.5
        assert (np.asarray(compactor.kernel)[:, gone] == 0).all()


def large_filters():
    """Filters of norms about 5, and a head that expects them."""
    model = cnn()
    for layer in (model.get_layer("first"), model.get_layer("second")):
        kernel = np.asarray(layer.kernel)
        sizes = np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]), axis=0)
        layer.kernel.assign(kernel / sizes * np.linspace(4.5, 5.5, len(sizes)))
    head = model.get_layer("head")
    head.kernel.assign(np.asarray(head.kernel) / 5)
    return model


def test_a_run_that_forgets_large_filters():
    pruner = resrep_tf.wrap(large_filters(), compactor="filters")
    compile_pruner(pruner, SGD(0.02, momentum=0.9), snap=True)
    selection = resrep_tf.ChannelSelection(0.5, schedule="auto")
    history = train(pruner, selection, epochs=8)
    assert history["flops_removed"][-1] >= 0.5
    assert history["forgotten"][-1] == 1
    for compactor in pruner.compactors:
        kept = np.asarray(compactor.mask) > 0.5
        filters = np.asarray(compactor.rows)
        assert (filters[..., ~kept] == 0).all()
        assert (np.abs(filters[..., kept]).max(axis=(0, 1, 2)) > 0.1).all()
    assert selection.plan.fits and 4.5 < selection.plan.row_norm < 5.5


def test_a_run_as_in_the_paper():
    """No snapping: rows come to rest as the learning rate decays to zero.

    With the paper's momentum that takes some ten thousand steps; with less, hundreds.
    """
    pruner = resrep_tf.wrap(cnn())
    total, target = 640, 0.4
    rate = keras.optimizers.schedules.CosineDecay(0.1, total)
    compile_pruner(pruner, SGD(rate), compactor_optimizer=0.8)
    plan = resrep_tf.plan(pruner, target, total)
    compile_pruner(
        pruner,
        SGD(rate),
        compactor_optimizer=0.8,
        masked_strength=plan.masked_strength,
    )
    selection = resrep_tf.ChannelSelection(
        target, plan.warmup_steps, plan.interval, plan.step
    )
    history = train(pruner, selection, epochs=16)
    assert not pruner.snap and selection.plan.total_steps == total
    assert_went_as_planned(pruner, selection, history, target)
