"""The metrics of every epoch."""

import keras
from keras import layers

from resrep_tf.cli import output
from resrep_tf.train.metrics import EpochLog, MetricsFile
from support.runs import events


def test_what_was_logged_but_not_saved_is_logged_again(tmp_path):
    """A run that was killed between its last epoch's log and its checkpoint."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    for start in (0, 1):
        file = MetricsFile(tmp_path / output.METRICS)
        log = EpochLog("prune", file, tmp_path / output.TENSORBOARD, start)
        log.set_model(model)
        log.set_params({"steps": 5})
        log.on_train_begin()
        for epoch in range(start, 2):
            log.on_epoch_end(epoch, {"loss": 1.0})
        log.on_train_end()
    steps = [step for _, step, value in events(tmp_path) if value.tag == "loss"]
    assert steps == [5, 10]
