"""Several budgets at once."""

import numpy as np
import pytest

import resrep_tf
from resrep_tf.budget.combined import CombinedBudget, Goal
from resrep_tf.budget.flops import FlopsMeter
from resrep_tf.budget.parameters import ParametersMeter
from support.models.small import small_model


def goals(flops, params):
    graph = resrep_tf.ChannelGraph(small_model())
    meters = FlopsMeter.of(graph), ParametersMeter.of(graph)
    channels = [c for s in graph.spaces if s.prunable for c in s.channels.tolist()]
    order = np.random.default_rng(0).permutation(channels).tolist()
    return [
        Goal(meters[0], flops),
        Goal(meters[1], params, "params_target"),
    ], order


def walk(combined, order):
    combined.reset()
    for number, channel in enumerate(order):
        if combined.met():
            return number
        combined.remove(channel)
    return len(order)


@pytest.mark.parametrize("targets", [(0.3, 0.1), (0.1, 0.3), (0.3, 0.3)])
def test_walk_ends_when_the_last_target_is_met(targets):
    pairs, order = goals(*targets)
    alone = [walk(CombinedBudget([goal]), order) for goal in pairs]
    together = CombinedBudget(pairs)
    assert walk(together, order) == max(alone)
    assert together.met() and together.unmet() == []
    for goal in pairs:
        assert goal.removed >= goal.target


def test_a_budget_without_a_target_is_only_counted():
    (flops, params), order = goals(None, 0.3)
    together = CombinedBudget([flops, params])
    steps = walk(together, order)
    assert steps == walk(CombinedBudget([params]), order)
    assert together.unit == "FLOPs" and 0 < together.current < together.total


def test_unmet_targets_are_named():
    pairs, order = goals(0.01, 0.99)
    combined = CombinedBudget(pairs)
    combined.remove(order[0])
    combined.remove(order[1])
    assert [goal.argument for goal in combined.unmet()] == ["params_target"]
    assert "params_target=0.99" in repr(combined)
    combined.reset()
    assert combined.unmet() == pairs


def test_target_that_was_computed_from_a_reachable_cost_is_met_by_it():
    pairs, order = goals(0.5, 0.5)
    for goal in pairs:
        budget = goal.budget
        budget.reset()
        before = 0.0
        for channel in order[:3]:
            budget.remove(channel)
            exact = Goal(budget, goal.removed, goal.argument)
            assert exact.met and exact.removed > before
            assert not Goal(budget, np.nextafter(exact.removed, 1)).met
            before = exact.removed


def test_errors_name_the_target():
    pairs, _ = goals(0.5, 0.5)
    for target in (0, 1, -0.5, 54.5):
        with pytest.raises(ValueError, match=f"Received: latency_target={target}"):
            Goal(pairs[0].budget, target, "latency_target")
    with pytest.raises(ValueError, match="Received: none of them"):
        CombinedBudget([])
