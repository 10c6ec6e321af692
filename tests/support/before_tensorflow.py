"""Runs commands with bad flags, which must fail before TensorFlow is imported.

This is a script. Its argument is the folder to work in. It reads JSON from standard
input (the module and the arguments of each command, by name), and writes the outcomes
to standard output.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

HEAVY = ("tensorflow", "keras")


def outcome(module: str, arguments: list[str]) -> dict:
    from resrep_tf.cli import running

    before = sorted(str(path) for path in Path().rglob("*"))
    sys.argv = ["command", *arguments]
    code, printed = 0, io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            running.run(module)
        except SystemExit as stop:
            code = stop.code
    after = sorted(str(path) for path in Path().rglob("*"))
    return {
        "code": code,
        "printed": printed.getvalue(),
        "written": [path for path in after if path not in before],
        "imported": [name for name in HEAVY if name in sys.modules],
    }


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.chdir(sys.argv[1])
    cases = json.load(sys.stdin)
    # The values that Python sets while it looks for the module of `python -m`.
    sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "resrep_tf.train"]
    import resrep_tf  # noqa: F401

    json.dump({name: outcome(*case) for name, case in cases.items()}, sys.stdout)


if __name__ == "__main__":
    main()
