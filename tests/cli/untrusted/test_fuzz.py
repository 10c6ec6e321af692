"""Random files for all readers: each is read, or refused in the expected way."""

import io
import json
import os
import time
import warnings

import numpy as np
import pytest

from resrep_tf.budget.latency_table import LatencyTable
from resrep_tf.cli.errors import CommandError
from resrep_tf.cli.flagset import FlagSet
from resrep_tf.evaluate import command as evaluate
from resrep_tf.models import load_weights
from resrep_tf.train.checkpoints import Checkpoints
from support import runs

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

SECONDS = float(os.environ.get("RESREP_FUZZ_SECONDS", "120"))

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def _damaged(content):
    """Valid content of which bytes are changed, cut off or added."""
    change = st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255))
    return st.builds(
        _applied,
        st.just(content),
        st.lists(change, max_size=6),
        st.integers(0, len(content)) | st.just(len(content)),
        st.binary(max_size=8),
    )


def _applied(content, changes, end, more):
    found = bytearray(content)
    for place, value in changes:
        found[place] = value
    return bytes(found[:end]) + more


# === Safetensors ===


def _safetensors(header, buffers):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + buffers


_number = st.integers(-8, 64) | st.integers()
_tensor = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F64", "F32", "F16", "BF16", "I8"]) | _json,
        "shape": st.lists(_number, max_size=5) | _json,
        "data_offsets": st.lists(_number, min_size=2, max_size=2) | _json,
    }
)
_names = st.sampled_from(["conv1.weight", "fc.bias", "__metadata__"]) | st.text()
_good = _safetensors(
    {"fc.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)
)
SAFETENSORS = (
    st.binary(max_size=64)
    | _damaged(_good)
    | st.builds(
        _safetensors,
        st.dictionaries(_names, _tensor | _json, max_size=3) | st.binary(max_size=32),
        st.binary(max_size=64),
    )
)


def _read_safetensors(content, folder, model=[]):  # noqa: B006, one for all.
    path = folder / "w.safetensors"
    path.write_bytes(content)
    model[:] = model or [runs.digits_network()]
    with pytest.raises(ValueError, match=r"Received: "):
        load_weights(model[0], path)


# === Flagfiles ===

_line = st.sampled_from(
    ["--model=x", "--batch_size=", "--nolatency", "# a", "--pixels"]
)
FLAGFILES = st.binary(max_size=80) | st.lists(_line | st.text(max_size=12)).map(
    lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
)


def _read_flagfile(content, folder):
    path = folder / "some.flags"
    path.write_bytes(content)
    try:
        FlagSet(evaluate.USAGE, evaluate.Settings, recipes=True).parse(
            [f"--recipe={path}"]
        )
    except CommandError as error:
        assert "Received: " in str(error)
    except SystemExit as stop:
        assert stop.code == 0  # A line that asks for the help.


# === Checkpoints ===


def _checkpoint(meta, values):
    stream = io.BytesIO()
    np.savez(stream, meta=np.array(meta), v00000=np.zeros(values))
    return stream.getvalue()


_meta = {"phase": "base", "position": {"epoch": 1, "step": 2}, "rows": []}
CHECKPOINTS = (
    st.binary(max_size=64)
    | _damaged(_checkpoint(json.dumps(_meta), 3))
    | st.builds(_checkpoint, _json.map(json.dumps), st.integers(0, 3))
)


def _read_checkpoint(content, folder):
    (folder / "base-000000001.npz").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Checkpoints(folder, keep=1).newest()
    assert found is None or isinstance(found.position.steps(10), int)


# === Latency tables ===

_times = st.fixed_dictionaries(
    {"widths": _json, "microseconds": _json, "bundles": _json}
)
_table = st.fixed_dictionaries(
    {
        "format": st.just(1),
        "model": st.just("m") | _json,
        "runtime": st.just("tflite") | _json,
        "batch_size": st.just(1) | _json,
        "threads": st.just(1) | _json,
        "input_shapes": st.just([[1, 2]]) | _json,
        "machine": st.just({}) | _json,
        "versions": st.just({}) | _json,
        "overhead": st.just(0.1) | _json,
        "operations": st.dictionaries(st.text(max_size=3), _times | _json, max_size=2),
        "checks": st.just({}) | _json,
    }
)
TABLES = st.binary(max_size=64) | (_table | _json).map(
    lambda content: json.dumps(content).encode()
)


def _read_table(content, folder):
    path = folder / "latency.json"
    path.write_bytes(content)
    try:
        str(LatencyTable.load(path))
    except ValueError as error:
        assert str(path) in str(error)


READERS = {
    "safetensors": (SAFETENSORS, _read_safetensors),
    "flagfile": (FLAGFILES, _read_flagfile),
    "checkpoint": (CHECKPOINTS, _read_checkpoint),
    "latency table": (TABLES, _read_table),
}


def _fuzz(kind, folder, examples):
    content, read = READERS[kind]

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(content)
    def check(found):
        read(found, folder)

    check()


@pytest.mark.parametrize("kind", READERS)
def test_random_files(kind, tmp_path):
    _fuzz(kind, tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_random_files_for_long(kind, tmp_path):
    end, rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        _fuzz(kind, tmp_path, 2000)
        rounds += 1
    print(f"{kind}: {rounds} rounds of 2000 files in {SECONDS:.0f} s")
