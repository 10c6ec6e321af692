"""Fitting a wrapped model: a selection of channels is asked for."""

import keras
import pytest

import resrep_tf
from support.trainings import compiled, data


def test_fit_asks_for_a_selection_of_channels():
    pruner = compiled("sgd")
    x, y = data()
    with pytest.raises(
        ValueError, match=r"ChannelSelection\(.*Received: callbacks=None"
    ):
        pruner.fit(x, y, verbose=0)
    others = [keras.callbacks.TerminateOnNaN()]
    with pytest.raises(ValueError, match=r"Received: callbacks=\[.*TerminateOnNaN"):
        pruner.fit(x, y, callbacks=others, verbose=0)


@pytest.mark.filterwarnings("ignore:The last of")  # The run is too short, of course.
@pytest.mark.parametrize("given", ["alone", "in a list", "by position", "by Keras"])
def test_all_ways_to_hand_over_the_selection(given):
    pruner = compiled("sgd")
    x, y = data()
    selection = resrep_tf.ChannelSelection(0.3, 10**6, schedule="paper")
    if given == "by position":
        pruner.fit(x, y, None, 1, 0, [selection])
    else:
        callbacks = selection
        if given == "in a list":
            callbacks = [keras.callbacks.TerminateOnNaN(), selection]
        elif given == "by Keras":
            callbacks = keras.callbacks.CallbackList(
                [selection], add_history=True, model=pruner, epochs=1, steps=1
            )
        pruner.fit(x, y, callbacks=callbacks, verbose=0)
    assert int(pruner.optimizer.iterations) == 1
    assert selection.plan.warmup_steps == 10**6
