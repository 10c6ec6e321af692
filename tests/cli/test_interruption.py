"""Signals: when they take effect, and what they lead to."""

import os
import signal
import subprocess
import sys

import pytest

import resrep_tf
from resrep_tf.cli import running
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.interruption import Interrupted, Interruption
from resrep_tf.convert import command as convert
from support import runs


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


# === Ctrl-C while modules are imported ===

# A module that is imported at some moment of a start, and what then ends the process.
MOMENTS = {"traceback": -signal.SIGINT, "absl": 130, "tensorflow": 75}


@pytest.mark.parametrize("module", MOMENTS)
def test_ctrl_c_while_modules_are_imported(module, tmp_path):
    planted = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / f"{module}.py").write_text(f"{planted}; time.sleep(60)")
    path = os.pathsep.join([str(tmp_path), str(runs.ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "resrep_tf.train", "--output=new"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # What a shell starts in the background ignores Ctrl-C, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == MOMENTS[module]
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("interrupted") is (done.returncode > 0)
    assert not (tmp_path / "new").exists()


# === Ctrl-C at any moment of a conversion ===


class Calls:
    """Counts calls of this package's functions, and interrupts one of them."""

    def __init__(self, number=None):
        self.number = number
        self.count = 0

    def __call__(self, frame, event, argument):
        if event == "call" and "resrep_tf" in frame.f_globals.get("__name__", ""):
            self.count += 1
            if self.count == self.number:
                raise KeyboardInterrupt

    def run(self, arguments):
        """Runs a conversion as from a shell; returns its exit code."""

        def command(_):
            sys.setprofile(self)
            try:
                convert.run(arguments)
            finally:
                sys.setprofile(None)

        try:
            running.run(command)
        except SystemExit as stop:
            return stop.code
        return 0


def _interrupt_convert(formats, moments, folder, capsys):
    pruner = folder / "pruner.keras"
    resrep_tf.wrap(runs.digits_network()).save(pruner)
    flags = [f"--pruner={pruner}", f"--export={formats}"]
    for name in ("first", "whole"):  # The first time, there is more to do.
        whole = Calls()
        assert whole.run([*flags, f"--output={folder / name}"]) == 0
    assert whole.count > 1000
    for moment in range(moments):
        interrupted = Calls(int((moment + 0.5) / moments * whole.count))
        code = interrupted.run([*flags, f"--output={folder / 'new'}"])
        assert code == 130 and capsys.readouterr().err == "interrupted\n"
        names = {path.name for path in folder.iterdir()}
        assert names == {"pruner.keras", "first", "whole"}
    assert Calls().run([*flags, f"--output={folder / 'new'}"]) == 0
    new, whole = (
        sorted(p.name for p in (folder / n).iterdir()) for n in ("new", "whole")
    )
    assert new == whole


def test_ctrl_c_leaves_nothing_of_a_conversion(tmp_path, capsys):
    _interrupt_convert("keras", 4, tmp_path, capsys)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_of_an_export(tmp_path, capsys):
    _interrupt_convert("keras,saved_model,tflite", 10, tmp_path, capsys)
