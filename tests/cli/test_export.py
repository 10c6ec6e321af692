"""`--export`: which files, in all of its spellings."""

import sys

import keras
import pytest
from keras import layers

from resrep_tf.cli import export
from resrep_tf.cli.errors import CommandError
from resrep_tf.train import settings
from support.runs import one_convolution


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], export.DEFAULT),
        (["--export"], export.DEFAULT),
        (["--noexport"], ("keras",)),
        (["--export=false"], ("keras",)),
        (["--export=int8,keras"], ("keras", "int8")),
        (["--export=onnx,tflite"], ("keras", "tflite", "onnx")),
        (["--noexport", "--export=tflite"], ("keras", "tflite")),
    ],
)
def test_formats_are_read_and_written(arguments, expected, tmp_path):
    chosen, text = settings.parse(arguments)
    assert chosen.export == expected
    (tmp_path / "run.flags").write_text(text)
    again, _ = settings.parse([f"--flagfile={tmp_path / 'run.flags'}"])
    assert again.export == expected


@pytest.mark.parametrize("line", ["--export", "--noexport"])
def test_flagfiles_of_earlier_runs_are_read(line, tmp_path):
    (tmp_path / "run.flags").write_text(f"--jit_compile\n{line}\n--seed=3\n")
    chosen, _ = settings.parse([f"--flagfile={tmp_path / 'run.flags'}"])
    assert (chosen.export == ("keras",)) == (line == "--noexport")
    assert chosen.jit_compile and chosen.seed == 3


def test_an_unknown_format_is_refused():
    with pytest.raises(
        CommandError, match=r"`--export` must be a list of: keras, .*=h5"
    ):
        settings.parse(["--export=h5"])


def test_missing_packages_are_named_before_training(monkeypatch):
    for package in ("onnx", "tf2onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CommandError, match=r"needs onnx and tf2onnx: pip install"):
        export.check(("keras", "onnx"))
    export.check(export.DEFAULT)


def test_what_tensorflow_lite_cannot_express_is_noted(tmp_path, capsys):
    inputs = keras.Input((8, 8, 1))
    x = layers.Lambda(lambda x: keras.ops.erfinv(0.5 * keras.ops.tanh(x)))(inputs)
    model = keras.Model(inputs, one_convolution()(x))
    written = export.write(model, tmp_path, ("saved_model", "tflite"))
    assert [each.format for each in written] == ["saved_model"]
    assert [path.name for path in tmp_path.iterdir()] == ["saved_model"]
    printed = capsys.readouterr().out
    assert "NOTE: no pruned.tflite: " in printed and "TensorFlow Lite has no" in printed
