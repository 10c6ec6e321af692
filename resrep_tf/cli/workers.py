"""`--strategy`: the devices and machines of a run."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable
from functools import cached_property

from resrep_tf.cli.errors import CommandError
from resrep_tf.lazy import tf

STRATEGIES = ("auto", "none", "mirrored", "multiworker")


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes of a run, seen from one of them.

    Attributes:
        strategy: TensorFlow's strategy for replicas of the model.
        count: Number of processes.
        index: The number of this process.
    """

    strategy: tf.distribute.Strategy
    count: int = 1
    index: int = 0

    @property
    def chief(self) -> bool:
        """True if this process writes results and prints."""
        return self.index == 0

    @property
    def replicas(self) -> int:
        """The number of replicas in all processes."""
        return self.strategy.num_replicas_in_sync

    @property
    def replicated(self) -> bool:
        """True if variables belong to replicas, even if there is only one."""
        kinds = (
            tf.distribute.MirroredStrategy,
            tf.distribute.MultiWorkerMirroredStrategy,
        )
        return isinstance(self.strategy, kinds)

    @property
    def local_replicas(self) -> int:
        """The number of replicas in this process."""
        return self.replicas // self.count

    def total(self, number: int) -> int:
        """Returns the sum of a number over all replicas. All workers must call it."""
        return int(self._add(tf.constant(number, tf.int64)))

    def wait(self) -> None:
        """Returns when all workers have called it."""
        if self.count > 1:
            self.total(0)

    @cached_property
    def _add(self) -> Callable[[tf.Tensor], tf.Tensor]:
        @tf.function
        def add(number: tf.Tensor) -> tf.Tensor:
            each = self.strategy.run(tf.identity, args=(number,))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)

        return add

    def describe(self) -> str:
        """Returns the number of replicas and processes in words."""
        processes = "" if self.count == 1 else f" in {self.count} processes"
        return f"{self.replicas} replicas{processes}"


def start(name: str) -> Workers:
    """Creates the strategy.

    With several workers, TensorFlow must not have run any operation before.

    Args:
        name: One of `STRATEGIES`.
    """
    if name == "multiworker":
        return _join()
    devices = tf.config.list_logical_devices("GPU")
    if name == "mirrored" and not devices:
        devices = tf.config.list_logical_devices("CPU")
    if name == "mirrored" or (name == "auto" and len(devices) > 1):
        return Workers(tf.distribute.MirroredStrategy([d.name for d in devices]))
    return Workers(tf.distribute.get_strategy())


def _join() -> Workers:
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        # TensorFlow's own order: a chief, if there is one, comes before all workers.
        addresses = {kind: len(cluster.get(kind, [])) for kind in ("chief", "worker")}
        index = int(task["index"])
        if task["type"] == "worker":
            index += addresses["chief"]
        count = sum(addresses.values())
        if task["type"] not in addresses or not 0 <= index < count:
            raise ValueError(f"there is no {task['type']} {task['index']}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(
            "`--strategy=multiworker` reads the environment variable TF_CONFIG, JSON "
            "with the addresses of all workers and which of them this is: "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": '
            f'"worker", "index": 0}}}}. {type(error).__name__}: {error}. '
            f"Received: TF_CONFIG={text or None}"
        ) from error
    print(f"Worker {index} waits for all {count}", flush=True)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if threading.current_thread() is threading.main_thread():
        # TensorFlow has replaced the handler of SIGTERM, to warn of preemption, without
        # Python's knowledge. This sets Python's handler again.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return Workers(strategy, count, index)
