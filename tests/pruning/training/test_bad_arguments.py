"""Arguments and callbacks that would quietly give another model than was meant."""

import keras
import numpy as np
import pytest
from keras import layers as L

import resrep_tf
from support.latency import made_up_table

NAN = float("nan")


@pytest.fixture(scope="module")
def pruner():
    inputs = keras.Input((6,))
    x = L.BatchNormalization()(L.Dense(5, name="first")(inputs))
    found = resrep_tf.wrap(keras.Model(inputs, L.Dense(3)(L.ReLU()(x))))
    found.compile("sgd", "mse")
    return found


def _fit(pruner, *callbacks):
    data = np.zeros((4, 6), "float32"), np.zeros((4, 3), "float32")
    chosen = resrep_tf.ChannelSelection(flops_target=0.3, schedule="paper")
    pruner.fit(*data, callbacks=[chosen, *callbacks], verbose=0)


BAD = {
    "epsilon nan": (lambda p: resrep_tf.convert(p, epsilon=NAN), "`epsilon` must be"),
    "epsilon large": (lambda p: resrep_tf.convert(p, epsilon=1e9), "`epsilon` must be"),
    "epsilon < 0": (lambda p: resrep_tf.convert(p, epsilon=-1), "`epsilon` must be"),
    "epsilon text": (lambda p: resrep_tf.convert(p, epsilon="a"), "`epsilon` must be"),
    "epsilon bool": (lambda p: resrep_tf.convert(p, epsilon=True), "`epsilon` must be"),
    "shrink epsilon": (
        lambda p: resrep_tf.shrink(p, np.zeros((2, 6)), epsilon=NAN),
        "`epsilon` must be",
    ),
    "keep text": (lambda p: resrep_tf.convert(p, keep="all"), "`keep` must be"),
    "keep list": (lambda p: resrep_tf.convert(p, keep=[True]), "`keep` must be"),
    "keep unknown": (lambda p: resrep_tf.convert(p, keep={"x": [True]}), "`keep`"),
    "flops text": (
        lambda p: resrep_tf.ChannelSelection(flops_target="0.5"),
        "`flops_target`",
    ),
    "flops nan": (lambda p: resrep_tf.ChannelSelection(NAN), "`flops_target`"),
    "flops 54.5": (lambda p: resrep_tf.ChannelSelection(54.5), "`flops_target`"),
    "params text": (
        lambda p: resrep_tf.ChannelSelection(params_target="a"),
        "`params_target`",
    ),
    "lasso text": (
        lambda p: p.compile("sgd", "mse", lasso_strength="a"),
        "`lasso_strength`",
    ),
    "lasso nan": (
        lambda p: p.compile("sgd", "mse", lasso_strength=NAN),
        "`lasso_strength`",
    ),
    "interval text": (
        lambda p: resrep_tf.ChannelSelection(0.5, interval="a"),
        "`interval`",
    ),
    "interval 0": (lambda p: resrep_tf.ChannelSelection(0.5, interval=0), "`interval`"),
    "targets number": (
        lambda p: resrep_tf.wrap(keras.Sequential([L.Input((6,)), L.Dense(3)]), 0),
        "`targets` must be",
    ),
    "min_width large": (
        lambda p: resrep_tf.plan(p, 0.3, 100, min_width=1000),
        "Lower `min_width`",
    ),
    "out of reach": (
        lambda p: resrep_tf.plan(p, 0.999, 100),
        "Lower `flops_target`",
    ),
    "no model": (lambda p: resrep_tf.convert("x"), "made by `resrep_tf.wrap`"),
    "two selections": (
        lambda p: _fit(p, resrep_tf.ChannelSelection(flops_target=0.2)),
        "Only one callback",
    ),
    "best weights": (
        lambda p: _fit(p, keras.callbacks.EarlyStopping(restore_best_weights=True)),
        "from before channels were forgotten",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_argument_is_named(kind, pruner):
    call, words = BAD[kind]
    with pytest.raises((ValueError, TypeError)) as error:
        call(pruner)
    assert words in str(error.value) and "Received: " in str(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("best", [True, False])
def test_callbacks_that_keep_old_weights_warn(best, pruner, tmp_path):
    path = tmp_path / "best.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(
        path, save_best_only=best, save_weights_only=True, monitor="loss"
    )
    with pytest.warns(UserWarning) as found:
        _fit(pruner, checkpoint)
    said = [str(each.message) for each in found]
    assert any("save_best_only" in text for text in said) is best


@pytest.mark.filterwarnings("ignore")
def test_stopping_early_warns(pruner):
    with pytest.warns(UserWarning, match="before all masked channels are forgotten"):
        _fit(pruner, keras.callbacks.EarlyStopping(monitor="loss"))


# === What happens in `fit` ===


@pytest.fixture
def classifier():
    inputs = keras.Input((6,))
    x = L.Dense(8, activation="relu", name="first")(inputs)
    found = resrep_tf.wrap(keras.Model(inputs, L.Dense(3)(x), name="three"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found.compile("sgd", loss, run_eagerly=True)
    return found


def _train(pruner, target=0.5, labels=2, **options):
    chosen = resrep_tf.ChannelSelection(target, schedule="paper", **options)
    x, y = np.ones((4, 6), "float32"), np.full(4, labels)
    pruner.fit(x, y, batch_size=2, callbacks=[chosen], verbose=0)


@pytest.mark.filterwarnings("ignore:.*steps")
def test_a_lower_target_than_before_is_refused(classifier):
    _train(classifier)
    mask = np.ones(8)
    mask[:5] = 0
    classifier.set_masks([mask])
    for target in (0.6, 0.62):  # The fifth channel was needed for this.
        _train(classifier, target)
    message = "must not be lower .*62.5% of the FLOPs.*Received: flops_target=0.3"
    with pytest.raises(ValueError, match=message):
        _train(classifier, 0.3)


@pytest.mark.filterwarnings("ignore:.*steps")
def test_what_a_bundle_takes_beyond_the_target_is_no_lower_target():
    inputs = keras.Input((6,))
    x = L.Dense(64, activation="relu", name="first")(inputs)
    found = resrep_tf.wrap(keras.Model(inputs, L.Dense(3)(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found.compile("sgd", loss, run_eagerly=True)
    # Sixteen channels, a quarter of the time, go together: a single one saves nothing.
    table = made_up_table(found.graph, overhead=0.0, share=1.0)
    _train(found, None, latency_target=0.3, latency_table=table)
    found.set_masks([np.repeat([0.0, 1.0], 32)])
    _train(found, None, latency_target=0.3, latency_table=table)
    message = "must not be lower .*Received: latency_target=0.1"
    with pytest.raises(ValueError, match=message):
        _train(found, None, latency_target=0.1, latency_table=table)


@pytest.mark.filterwarnings("ignore:.*steps")
def test_a_run_longer_than_its_fit_warns(classifier):
    with pytest.warns(UserWarning, match="ends at step 2 of `total_steps=90000`"):
        _train(classifier, total_steps=90_000)


@pytest.mark.filterwarnings("ignore:.*steps")
@pytest.mark.parametrize("label", [3, -1])
def test_labels_out_of_range_are_named(label, classifier):
    message = (
        f"`y` must hold .* from 0 to 2: 'three' has 3 .* Received: a label {label}"
    )
    with pytest.raises(ValueError, match=message):
        _train(classifier, labels=label)


@pytest.mark.filterwarnings("ignore:.*steps")
def test_a_frozen_backbone_warns(classifier):
    classifier.get_layer("first").trainable = False
    with pytest.warns(UserWarning, match=r"Most of the weights are frozen.*\(first\)"):
        _train(classifier)


@pytest.mark.filterwarnings("ignore:.*steps")
def test_training_that_has_diverged_is_not_selected_from(classifier):
    classifier.compactors[0].kernel.assign(np.full((8, 8), np.inf))
    with pytest.raises(FloatingPointError, match=r"diverged.*Received: learning_rate="):
        _train(classifier, warmup_steps=0)
