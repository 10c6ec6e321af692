"""Smoke test of an installed wheel; `.ci/run` runs it from outside the checkout.

Usage: python -P smoke_wheel.py FOLDER, where FOLDER holds the wheel's installation and
nothing else, and is on PYTHONPATH.
"""

import importlib.metadata
import importlib.resources
import sys
from pathlib import Path

import keras

import resrep_tf
import resrep_tf.flags
import resrep_tf.models


def check(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"smoke test failed: {message}")


def main(site: Path) -> None:
    for module in (resrep_tf, resrep_tf.models, resrep_tf.flags):
        path = Path(module.__file__).resolve()
        check(site / "resrep_tf" in path.parents, f"{module.__name__} is {path}")
    check(len(resrep_tf.__path__) == 1, f"__path__ is {resrep_tf.__path__}")

    version = importlib.metadata.version("resrep_tf")
    check(resrep_tf.__version__ == version, f"metadata say {version}")
    top = {path.name for path in site.iterdir()}
    expected = {"resrep_tf", f"resrep_tf-{version}.dist-info"}
    check(top == expected, f"the wheel installs {sorted(top)}")

    resources = importlib.resources.files("resrep_tf.flags").iterdir()
    flagfiles = [item for item in resources if item.name.endswith(".flags")]
    check(bool(flagfiles), "no flagfile in resrep_tf.flags")
    check(all(item.read_text() for item in flagfiles), "an empty flagfile")

    for name in ("ResRepModel", "Compactor", "Student"):
        found = keras.saving.get_registered_object(f"resrep_tf>{name}")
        check(found is not None, f"Keras could not load a model with {name}")

    model = resrep_tf.models.build("resnet20")
    check(model.count_params() > 250_000, f"resnet20 has {model.count_params()}")
    print(f"{site}: version {version}, {len(flagfiles)} flagfiles")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
