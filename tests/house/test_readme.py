"""The README's example runs as it stands."""

import re
from pathlib import Path

import keras
import numpy as np

from support.checks import assert_plain

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", README, re.DOTALL)
    lines = [line for line in code.splitlines() if line and line[0] != "#"]
    assert len(lines) <= 24
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "compactor rows dropped" in capsys.readouterr().out
    assert names["report"].flops_removed >= 0.5
    slim = keras.models.load_model(tmp_path / "slim.keras")
    assert_plain(slim)
    assert (tmp_path / "slim_savedmodel").is_dir()
    digits, accuracy = names["digits"], {}
    for name in ("pruner", "slim"):
        right = [
            np.argmax(names[name](x, training=False), -1) == y
            for x, y in digits.evaluation()
        ]
        accuracy[name] = np.concatenate(right).mean()
    assert accuracy["slim"] == accuracy["pruner"] > 0.85
