"""The targets of a run, and the budgets that they apply to."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from resrep_tf.budget.combined import (
    FLOPS_TARGET,
    LATENCY_TARGET,
    PARAMS_TARGET,
    TARGETS,
    CombinedBudget,
    Goal,
    check_target,
)
from resrep_tf.budget.latency_table import LatencyTable

if TYPE_CHECKING:
    from resrep_tf.graph.channel_graph import ChannelGraph


@dataclass(frozen=True)
class Goals:
    """The fractions to remove, as the user gives them; at least one.

    Attributes:
        flops_target: Fraction of the FLOPs.
        params_target: Fraction of the parameters of the converted model.
        latency_target: Fraction of the latency that `latency_table` predicts.
        latency_table: The measured times, or the path of a file with them.
    """

    flops_target: float | None = None
    params_target: float | None = None
    latency_target: float | None = None
    latency_table: LatencyTable | str | Path | None = None

    def __post_init__(self):
        if not self.targets:
            raise ValueError(
                "One of `flops_target`, `params_target` and `latency_target` must be "
                "given. Received: none of them"
            )
        for argument, target in self.targets.items():
            check_target(target, argument)
        if (self.latency_target is None) != (self.latency_table is None):
            raise ValueError(
                "`latency_target` and `latency_table` must be given together; "
                "`resrep_tf.measure_latency` makes a table. Received: "
                f"latency_target={self.latency_target}, "
                f"latency_table={self.latency_table}"
            )
        if isinstance(self.latency_table, (str, Path)):
            table = LatencyTable.load(self.latency_table)
            object.__setattr__(self, "latency_table", table)

    @property
    def targets(self) -> dict[str, float]:
        """The targets that are given, by argument."""
        found = {name: getattr(self, name) for name in TARGETS}
        return {name: target for name, target in found.items() if target is not None}

    def budget(self, graph: "ChannelGraph", fuse_bn: bool = True) -> CombinedBudget:
        """Returns the budgets of a model; the first is FLOPs, with or without a target.

        Args:
            graph: The graph of a plain or a wrapped model.
            fuse_bn: Whether parameters are counted with BatchNorms merged, as
                `resrep_tf.convert` leaves them.
        """
        # Here, since flags are checked with this class before TensorFlow is imported.
        from resrep_tf.budget.flops import FlopsMeter
        from resrep_tf.budget.latency import LatencyMeter
        from resrep_tf.budget.parameters import ParametersMeter

        goals = [Goal(FlopsMeter.of(graph), self.flops_target, FLOPS_TARGET)]
        if self.params_target is not None:
            meter = ParametersMeter.of(graph, fuse_bn)
            goals.append(Goal(meter, self.params_target, PARAMS_TARGET))
        if self.latency_table is not None:
            table = cast(LatencyTable, self.latency_table)  # Loaded if it was a path.
            latency = LatencyMeter(table, graph)
            goals.append(Goal(latency, self.latency_target, LATENCY_TARGET))
        return CombinedBudget(goals)
