"""The devices and machines of a run."""

import json

import pytest

from resrep_tf.cli import workers
from resrep_tf.cli.errors import CommandError


@pytest.mark.parametrize(
    "config", ["", "{", "[]", '{"cluster": {"worker": ["a:1"]}}', "TASK"]
)
def test_a_wrong_cluster_is_explained(monkeypatch, config):
    if config == "TASK":
        task = {"type": "worker", "index": 2}
        config = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(CommandError, match=r"TF_CONFIG, JSON.*Received: TF_CONFIG="):
        workers.start("multiworker")
