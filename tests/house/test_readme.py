"""The README's example runs as it stands."""

import re
from pathlib import Path

import keras
import numpy as np

import resrep_tf
from support.checks import assert_plain

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def block(marker: str) -> str:
    """The code behind a marker in the README."""
    (code,) = re.findall(rf"<!-- {marker} -->\n```python\n(.*?)```", README, re.DOTALL)
    return code


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    code = block("example")
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


def write_images(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for number, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            pixels = rng.integers(0, 128, (16, 16, 3)) + 128 * number
            keras.utils.save_img(folder / name / f"{image}.png", pixels, scale=False)


def test_own_images_are_pruned_in_one_call(tmp_path, monkeypatch, capsys):
    # As it stands, but for the size of the images and the number of epochs.
    code = block("own-data")
    for large, small in (("(224, 224)", "(16, 16)"), ("epochs=20", "epochs=3")):
        assert large in code
        code = code.replace(large, small)
    write_images(tmp_path / "train", 48)
    write_images(tmp_path / "val", 8)
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for _ in range(2):
        x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(x))
    model.save(tmp_path / "trained.keras")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert "accuracy" in capsys.readouterr().out
    slim = keras.models.load_model(tmp_path / "slim.keras")
    assert_plain(slim)
    assert resrep_tf.count_flops(slim) <= 0.5 * resrep_tf.count_flops(model)
