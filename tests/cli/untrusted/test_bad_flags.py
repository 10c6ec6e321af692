"""Bad flags and paths: one line and exit code 2, before TensorFlow is imported."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from resrep_tf.budget.latency_table import LatencyTable
from support import before_tensorflow
from support.runs import ROOT

LONG = "x" * 300
CONVERT, EVALUATE, EXPLAIN, STUDY, TRAIN = (
    "resrep_tf.convert.command",
    "resrep_tf.evaluate.command",
    "resrep_tf.explain.command",
    "resrep_tf.study.command",
    "resrep_tf.train.pipeline",
)
# For each: the command, its arguments, and the words that say what is wrong.
CASES = {
    # === Flags that are no flags ===
    "train: unknown flag": (TRAIN, ["--epoch=3"], "Unknown command line flag 'epoch'"),
    "evaluate: unknown flag": (EVALUATE, ["--modle=x"], "Unknown command line flag"),
    "explain: unknown flag": (EXPLAIN, ["--modle=x"], "Unknown command line flag"),
    "convert: unknown flag": (CONVERT, ["--prune=x"], "Unknown command line flag"),
    "study: unknown flag": (
        STUDY,
        ["--study=ablation", "--epoch=3"],
        "Unknown command line flag 'epoch'",
    ),
    "explain: a word": (EXPLAIN, ["model.keras"], "Every argument must be a flag"),
    "train: a word": (TRAIN, ["resnet20"], "Every argument must be a flag"),
    "train: not UTF-8": (TRAIN, ["--arch=\udcff.keras"], "must be UTF-8"),
    "explain: not UTF-8": (EXPLAIN, ["--model=\udcff.keras"], "must be UTF-8"),
    "train: a folder not UTF-8": (TRAIN, ["--dataset=folder:\udcff"], "must be UTF-8"),
    "evaluate: not UTF-8": (EVALUATE, ["--model=\udcff"], "must be UTF-8"),
    "convert: not UTF-8": (CONVERT, ["--pruner=\udcff.keras"], "must be UTF-8"),
    "study: not UTF-8": (STUDY, ["--output=\udcff"], "must be UTF-8"),
    # === Values ===
    "train: text for a number": (TRAIN, ["--epochs=x"], "invalid literal"),
    "train: not a choice": (TRAIN, ["--method=l3"], "value should be one of"),
    "train: a number too low": (TRAIN, ["--batch_size=0"], "a positive integer"),
    "train: target of 2": (TRAIN, ["--flops_target=2"], "between 0 and 1"),
    "train: target of nan": (TRAIN, ["--flops_target=nan"], "`--flops_target`"),
    "train: target in percent": (TRAIN, ["--params_target=54.5"], "between 0 and 1"),
    "train: infinite rate": (TRAIN, ["--learning_rate=inf"], "must be positive"),
    "train: momentum of 1": (TRAIN, ["--momentum=1"], "less than 1"),
    "train: epsilon of nan": (TRAIN, ["--epsilon=nan"], "`--epsilon` must be positive"),
    "train: boundaries": (
        TRAIN,
        ["--lr_schedule=step", "--lr_boundaries=9,3"],
        "rising numbers of epochs",
    ),
    "train: targets": (TRAIN, ["--targets=("], "a regular expression"),
    "train: arch options": (TRAIN, ["--arch_options=alpha"], "list of name=value"),
    "train: export": (TRAIN, ["--export=pdf"], "must be a list of"),
    "convert: export": (CONVERT, ["--export=pdf"], "must be a list of"),
    "convert: epsilon": (CONVERT, ["--epsilon=2"], "less than 1"),
    "explain: shape": (EXPLAIN, ["--input_shape=8,8"], "three positive integers"),
    "study: seeds": (STUDY, ["--study=ablation", "--seeds=a"], "different numbers"),
    "study: no such study": (STUDY, ["--study=nope"], "value should be one of"),
    "study: only": (STUDY, ["--study=ablation", "--only=x"], "methods of this study"),
    "study: a flag of its runs": (
        STUDY,
        ["--study=ablation", "--flops_target=3"],
        "between 0 and 1",
    ),
    "train: text for a target": (TRAIN, ["--flops_target=a"], "could not convert"),
    "train: target of 0": (TRAIN, ["--flops_target=0"], "between 0 and 1"),
    "train: epsilon of 1e9": (TRAIN, ["--epsilon=1e9"], "`--epsilon` must be at least"),
    "convert: epsilon of nan": (CONVERT, ["--epsilon=nan"], "`--epsilon` must be"),
    "train: text for a strength": (TRAIN, ["--lasso_strength=a"], "could not convert"),
    "train: strength of nan": (TRAIN, ["--lasso_strength=nan"], "`--lasso_strength`"),
    "train: strength below 0": (
        TRAIN,
        ["--lasso_strength=-1"],
        "a non-negative number",
    ),
    "train: width of 0": (TRAIN, ["--min_width=0"], "a positive integer"),
    "train: size of 0": (TRAIN, ["--image_size=0"], "a positive integer"),
    "train: pixels": (TRAIN, ["--pixels=0..2"], "value should be one of"),
    "train: strategy": (TRAIN, ["--strategy=gpu"], "value should be one of"),
    "train: seed": (TRAIN, ["--seed=-1"], "is not an integer in the range"),
    "evaluate: batch": (EVALUATE, ["--batch_size=0"], "a positive integer"),
    "study: the same seeds": (STUDY, ["--seeds=0,0"], "different numbers"),
    # === Flags that do not go together ===
    "train: noreset of l2": (
        TRAIN,
        ["--noreset", "--method=l2"],
        "other methods have nothing to reset",
    ),
    "train: minimal with reset": (TRAIN, ["--remove=minimal"], "needs `--noreset`"),
    "train: latency without table": (
        TRAIN,
        ["--latency_target=0.3"],
        "`latency_table` must be given together",
    ),
    "train: no epochs": (TRAIN, ["--epochs=0", "--base_epochs=0"], "must be positive"),
    "train: boundaries of cosine": (TRAIN, ["--lr_boundaries=3"], "lr_schedule=step"),
    "train: paper's layers of a file": (
        TRAIN,
        ["--arch=broken.keras", "--dataset=digits"],
        "cut short or damaged",
    ),
    "train: fresh weights": (TRAIN, ["--base_epochs=0"], "`--init_weights` must be"),
    "evaluate: model and arch": (
        EVALUATE,
        ["--model=a.keras", "--arch=resnet20", "--dataset=digits"],
        "not both",
    ),
    "evaluate: no data": (EVALUATE, ["--model=a.keras"], "`--dataset` must be given"),
    "evaluate: fresh weights": (
        EVALUATE,
        ["--arch=resnet20", "--dataset=digits"],
        "fresh weights classify nothing",
    ),
    "explain: nothing": (EXPLAIN, [], "`--model` or `--arch` must be given"),
    "convert: nothing": (CONVERT, [], "`--pruner` must be given"),
    "convert: no output": (CONVERT, ["--pruner=x.keras"], "`--output` must be given"),
    "convert: int8 without data": (
        CONVERT,
        ["--pruner=a.keras", "--output=new", "--export=int8"],
        "`--dataset` must be given",
    ),
    "study: no study": (STUDY, [], "`--study` must be given"),
    # === Networks ===
    "train: no such network": (TRAIN, ["--arch=resnet21"], "Did you mean 'resnet32'"),
    "train: no such file": (
        TRAIN,
        ["--arch=no.keras", "--dataset=digits"],
        "an existing .keras file",
    ),
    "train: no such weights": (TRAIN, ["--init_weights=no.keras"], "existing file"),
    "train: no such teacher": (TRAIN, ["--teacher=no.keras"], "`--teacher` must be"),
    "train: a teacher cut short": (
        TRAIN,
        ["--teacher=broken.keras"],
        "cut short or damaged",
    ),
    "train: no such module": (TRAIN, ["--import=no.py"], "there is no such file"),
    "evaluate: no such file": (
        EVALUATE,
        ["--model=no.tflite", "--dataset=digits"],
        "and must exist",
    ),
    "evaluate: no such weights": (
        EVALUATE,
        ["--arch=resnet20", "--init_weights=no.keras", "--dataset=digits"],
        "`--init_weights` must be an existing",
    ),
    "evaluate: cut short": (
        EVALUATE,
        ["--model=broken.keras", "--dataset=digits"],
        "cut short or damaged",
    ),
    "explain: no such file": (EXPLAIN, ["--model=no.keras"], "an existing .keras file"),
    "explain: a text file": (EXPLAIN, ["--model=text.keras"], "it is a text file"),
    "explain: long": (EXPLAIN, [f"--model={LONG}.keras"], "File name too long"),
    "explain: arch, long": (EXPLAIN, [f"--arch={LONG}.keras"], "File name too long"),
    "convert: no such file": (
        CONVERT,
        ["--pruner=no.keras", "--output=new"],
        "`--pruner` must be an existing",
    ),
    "convert: cut short": (
        CONVERT,
        ["--pruner=broken.keras", "--output=new"],
        "cut short or damaged",
    ),
    "train: weights of no kind": (
        TRAIN,
        ["--init_weights=some.npz"],
        "must end with one of",
    ),
    "train: weights, long": (TRAIN, [f"--init_weights={LONG}.keras"], "name too long"),
    "train: teacher, long": (TRAIN, [f"--teacher={LONG}.keras"], "name too long"),
    "train: a module, long": (TRAIN, [f"--import={LONG}.py"], "there is no such file"),
    "train: a folder as network": (TRAIN, ["--arch=./empty"], "existing .keras file"),
    "explain: a folder": (EXPLAIN, ["--model=folder.keras"], "existing .keras file"),
    "convert: a folder": (
        CONVERT,
        ["--pruner=folder.keras", "--output=new"],
        "existing .keras file",
    ),
    "evaluate: an empty TFLite file": (
        EVALUATE,
        ["--model=none.tflite", "--dataset=digits"],
        "is an empty file",
    ),
    "evaluate: a TFLite file cut short": (
        EVALUATE,
        ["--model=cut.tflite", "--dataset=digits"],
        "it is cut short",
    ),
    "evaluate: a file of no kind": (
        EVALUATE,
        ["--model=table.json", "--dataset=digits"],
        "a .keras, .tflite or .onnx file",
    ),
    "evaluate: a folder of no kind": (
        EVALUATE,
        ["--model=empty", "--dataset=digits"],
        "the folder of a SavedModel",
    ),
    **{
        f"explain: {name}": (EXPLAIN, [f"--model={name}.keras"], words)
        for name, words in {
            "empty": "it is empty",
            "noise": "no archive of Keras",
            "hdf5": "it is an HDF5 file",
            "flipped": "the checksum of model.weights.h5 is wrong",
            "no_json": "its config.json is damaged",
            "deep": "nested too deep",
            "filters": "asks for filters=1000000000",
            "code": "is a Lambda",
            "no_weights": "model.weights.h5 is missing",
        }.items()
    },
    # === Data ===
    "train: no such data": (TRAIN, ["--dataset=digit"], "Did you mean 'digits'"),
    "train: no folder": (TRAIN, ["--dataset=folder:no"], "there is no folder"),
    "train: no classes": (TRAIN, ["--dataset=folder:empty"], "no class folders"),
    "train: no images": (TRAIN, ["--dataset=folder:hollow"], "no image of class 'a'"),
    "train: a class in val": (TRAIN, ["--dataset=folder:more"], "'c' is not"),
    "train: one class": (TRAIN, ["--dataset=folder:one"], "at least two classes"),
    "train: no npz": (TRAIN, ["--dataset=npz:no.npz"], "There is no such file"),
    "train: text as npz": (TRAIN, ["--dataset=npz:text.keras"], "an .npz file"),
    "train: arrays missing": (
        TRAIN,
        ["--dataset=npz:half.npz"],
        "x_test, y_test not found",
    ),
    "evaluate: no npz": (
        EVALUATE,
        ["--arch=resnet20", "--init_weights=broken.keras", "--dataset=npz:no.npz"],
        "There is no such file",
    ),
    "convert: no npz": (
        CONVERT,
        ["--pruner=broken.keras", "--output=new", "--dataset=npz:no.npz"],
        "There is no such file",
    ),
    "study: no folder": (
        STUDY,
        ["--study=ablation", "--dataset=folder:no"],
        "there is no folder",
    ),
    "train: a folder, long": (TRAIN, [f"--dataset=folder:{LONG}"], "no folder"),
    "train: npz, long": (TRAIN, [f"--dataset=npz:{LONG}.npz"], "File name too long"),
    "train: a file as data": (TRAIN, ["--dataset=text.keras"], "must be one of"),
    # === Flagfiles and folders ===
    "train: no such recipe": (TRAIN, ["--recipe=nope"], "one of the recipes"),
    "train: a recipe of text": (
        TRAIN,
        ["--recipe=text.keras"],
        "one of its lines is not",
    ),
    "train: a recipe of bytes": (TRAIN, ["--recipe=some.npz"], "must be a text file"),
    "train: a recipe, long": (TRAIN, [f"--recipe={LONG}"], "one of the recipes"),
    "train: a folder as recipe": (TRAIN, ["--recipe=empty"], "one of the recipes"),
    "train: no such flagfile": (TRAIN, ["--flagfile=nope"], "one of the recipes"),
    "train: damaged flags": (TRAIN, ["--output=torn"], "whose run.flags is damaged"),
    "train: output out of reach": (TRAIN, ["--output=/proc/x"], "can be written to"),
    "train: a deep table": (
        TRAIN,
        ["--latency_target=0.3", "--latency_table=deep.json"],
        "is no latency table",
    ),
    "train: foreign output": (TRAIN, ["--output=foreign"], "holds other files"),
    "train: output is a file": (TRAIN, ["--output=text.keras"], "must be a folder"),
    "train: output is long": (TRAIN, [f"--output={LONG}"], "File name too long"),
    "train: no table": (
        TRAIN,
        ["--latency_target=0.3", "--latency_table=no.json"],
        "no.json",
    ),
    "train: text as table": (
        TRAIN,
        ["--latency_target=0.3", "--latency_table=text.keras"],
        "latency table",
    ),
    "train: a table of another runtime": (
        TRAIN,
        ["--latency_target=0.3", "--latency_table=table.json", "--export=tflite"],
        "measured on 'saved_model', and the model is for 'keras' and 'litert'",
    ),
    "train: a damaged report": (TRAIN, ["--output=done"], "report.json of this run"),
    "convert: h5": (
        CONVERT,
        ["--pruner=x.keras", "--output=x.h5"],
        "must end with .keras",
    ),
    "convert: output exists": (
        CONVERT,
        ["--pruner=x.keras", "--output=text.keras"],
        "this one exists",
    ),
    "convert: output is not empty": (
        CONVERT,
        ["--pruner=x.keras", "--output=foreign"],
        "new or empty folder",
    ),
    "study: foreign output": (
        STUDY,
        ["--study=ablation", "--output=foreign"],
        "this one holds thesis.tex",
    ),
}


def _prepare(folder):
    """Writes the files and folders that the cases name."""
    (folder / "text.keras").write_text("password: hunter2\n" * 9)
    (folder / "broken.keras").write_bytes(b"PK\x03\x04" + bytes(60))
    LatencyTable("m", "saved_model", 1, 1, (), {}, {}, 0.0, {}).save(
        folder / "table.json"
    )
    numbers = np.zeros(3)
    np.savez(folder / "some.npz", a=numbers)
    np.savez(folder / "half.npz", x_train=numbers, y_train=numbers)
    (folder / "foreign").mkdir()
    (folder / "foreign" / "thesis.tex").write_text("years of work")
    (folder / "empty" / "train").mkdir(parents=True)
    # By folder: the classes in `train`, and those in `val`.
    for name, splits in {"hollow": "ab ab", "more": "ab c", "one": "a a"}.items():
        for split, classes in zip(("train", "val"), splits.split(), strict=True):
            for label in classes:
                (folder / name / split / label).mkdir(parents=True)
    _write_models(folder)
    (folder / "torn").mkdir()
    (folder / "torn" / "run.flags").write_text("--nonsense\n")
    (folder / "done").mkdir()
    (folder / "done" / "report.json").write_text("{")
    (folder / "done" / "pruned.keras").write_bytes(b"")
    (folder / "done" / "run.flags").write_text("--arch=resnet20\n--dataset=digits\n")


def _write_models(folder):
    """Writes files that are no models, or whose configurations ask for too much."""
    (folder / "empty.keras").write_bytes(b"")
    (folder / "noise.keras").write_bytes(bytes(range(256)))
    (folder / "hdf5.keras").write_bytes(b"\x89HDF\r\n\x1a\n")
    (folder / "folder.keras").mkdir()
    (folder / "none.tflite").write_bytes(b"")
    (folder / "cut.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(30))
    (folder / "deep.json").write_text("[" * 200_000)
    weights = b"weights" * 9

    def write(name, config, **others):
        with zipfile.ZipFile(folder / f"{name}.keras", "w") as archive:
            for file, content in {"config.json": config, **others}.items():
                archive.writestr(file, content)

    def layer(kind, **config):
        config = {"class_name": kind, "module": "keras.layers", "config": config}
        return json.dumps({"class_name": "Functional", "config": {"layers": [config]}})

    whole = {"model.weights.h5": weights}
    write("flipped", "{}", **whole)
    content = (folder / "flipped.keras").read_bytes()
    (folder / "flipped.keras").write_bytes(content.replace(weights, b"W" + weights[1:]))
    write("no_json", "{", **whole)
    write("deep", "[" * 200_000, **whole)
    write("filters", layer("Conv2D", filters=10**9, kernel_size=[3, 3]), **whole)
    write("code", layer("Lambda"), **whole)
    write("no_weights", "{}")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_flags")
    _prepare(folder)
    cases = {name: (module, flags) for name, (module, flags, _) in CASES.items()}
    done = subprocess.run(
        [sys.executable, before_tensorflow.__file__, folder],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_bad_flags_and_paths(name, outcomes):
    found, words = outcomes[name], CASES[name][2]
    assert found["code"] == 2
    lines = found["printed"].splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    assert words in lines[0] and "Received: " in lines[0]
    assert "hunter2" not in lines[0]  # Nothing of the contents of a file.
    assert found["written"] == []
    assert found["imported"] == []
