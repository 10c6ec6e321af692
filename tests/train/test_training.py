"""Learning rates."""

import numpy as np

from resrep_tf.train import training


def test_step_schedule_divides_by_ten():
    rate = training.learning_rate(0.1, "step", [2, 3], steps_per_epoch=10, epochs=4)
    values = [float(rate(step)) for step in (0, 20, 21, 30, 31, 40)]
    np.testing.assert_allclose(values, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert training.learning_rate(0.1, "constant", [], 10, 4) == 0.1
