"""Packaging: `models/` and `flags/` install inside `resrep_tf`."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = runpy.run_path(str(ROOT / "resrep_tf" / "version.py"))["__version__"]

# keras 3.13 is the first with `export(format="litert")`, and it asks for Python 3.11.
# tensorflow 2.20 is the first whose protobuf tensorflow-datasets works with:
# 2.18 and 2.19 hold it below 6, the tensorflow-metadata that pip picks wants 6.31.
# The first command uses all of these: matplotlib draws the report's figures.
REQUIRES = [
    "absl-py>=2.0",
    "keras>=3.13",
    "matplotlib>=3.9",
    "numpy>=2.0",
    "tensorflow>=2.20",
]
DATASETS = [
    "tensorflow-datasets>=4.9.7",
    # tensorflow-datasets 4.9.10 imports it without requiring it.
    "importlib_resources>=5.0",
]
HUB = ["keras-hub>=0.32"]
EXTRAS = {
    # `--dataset=cifar10`, `imagenet2012` and others.
    "datasets": DATASETS,
    "onnx": ["onnx>=1.17", "onnxruntime>=1.20", "tf2onnx>=1.17"],
    # The networks of keras-hub in tests/rules/test_zoo.py and benchmarks/zoo.py.
    "zoo": HUB,
    # `--arch=hub:PRESET`.
    "hub": HUB,
    # tensorflow 2.21 no longer installs it.
    "tensorboard": ["tensorboard>=2.20"],
    # The documentation as a site: `mkdocs serve`.
    "docs": ["mkdocs>=1.6,<2", "mkdocstrings-python>=2.0,<3"],
    "dev": [
        *DATASETS,
        "build>=1.2",
        # Pinned to one major version: the next one may find more.
        "hypothesis>=6.100",
        "mypy>=2.4,<3",
        "pytest>=8.2",
        "pytest-xdist>=3.6",
        # Pinned to one minor version: the next one may format differently.
        "ruff>=0.17.4,<0.18",
    ],
}


def subpackages(folder: str) -> list[str]:
    """Names under which `folder` and the packages in it are installed."""
    installed = f"resrep_tf.{folder}"
    inner = find_packages(str(ROOT / folder))
    return [installed, *(f"{installed}.{name}" for name in inner)]


setup(
    name="resrep_tf",
    version=VERSION,
    description="Lossless channel pruning for Keras 3: ResRep (ICCV 2021).",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The resrep_tf authors",
    license="MIT",
    python_requires=">=3.11",
    packages=[
        *find_packages(str(ROOT), include=["resrep_tf", "resrep_tf.*"]),
        *subpackages("models"),
        *subpackages("flags"),
    ],
    package_dir={"resrep_tf.models": "models", "resrep_tf.flags": "flags"},
    # Every file that is not Python and must be in the wheel; test_packaging.py
    # fails when one is forgotten.
    package_data={
        "resrep_tf": ["**/*.html", "**/*.json", "**/*.npz", "**/*.txt", "py.typed"],
        "resrep_tf.models": ["**/*.json"],
        "resrep_tf.flags": ["**/*.flags"],
    },
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    zip_safe=False,
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
