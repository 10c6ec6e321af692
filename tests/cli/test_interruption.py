"""Signals: when they take effect, and what they lead to."""

import signal

import pytest

from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import Interrupted, Interruption


def test_a_signal_waits_for_a_convenient_moment():
    interruption = Interruption()
    with interruption.watching():
        with pytest.raises(Interrupted), interruption.handled(at_once=False):
            signal.raise_signal(signal.SIGTERM)
            assert interruption.requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    interruption = Interruption()
    with interruption.watching(), pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("error", [RuntimeError("MISMATCH"), CommandError("full")])
def test_what_a_signal_leads_to_is_told_from_what_needs_attention(error):
    expected = CommandError if isinstance(error, CommandError) else Interrupted
    interruption = Interruption()
    with (
        pytest.raises(expected),
        interruption.watching(),
        interruption.handled(at_once=False),
    ):
        signal.raise_signal(signal.SIGTERM)
        raise error
