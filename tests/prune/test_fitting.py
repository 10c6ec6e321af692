"""Several models in one run."""

import logging

from resrep_tf.prune.fitting import Run

RETRACED = "5 out of the last 5 calls to step triggered tf.function retracing."


class Talkative:
    """Warns as TensorFlow does when a model after others is evaluated."""

    def evaluate(self, **arguments):
        for message in (RETRACED, "Something else."):
            logging.getLogger("tensorflow").warning(message)
        return {"loss": 1.0}


class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_each_model_is_traced_once_without_a_warning():
    logger, handler = logging.getLogger("tensorflow"), Handler()
    logger.addHandler(handler)
    try:
        run = Run(([0], [0]), ([0], [0]), 1, None, None, 0)
        assert run.evaluate(Talkative()) == {"loss": 1.0}
        assert handler.messages == ["Something else."]
        logger.warning(RETRACED)
        assert handler.messages[1:] == [RETRACED]
    finally:
        logger.removeHandler(handler)
