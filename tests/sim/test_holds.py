"""Asynchronous servers that hold one another: exchanges that share a server never overlap."""

from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path

import pytest
import torch

from sdfeel.core.decide import Decisions
from sdfeel.core.events import Round
from sdfeel.deploy.round_times import Idle, simulated
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.run.checkpoint import load_checkpoint, save_checkpoint
from sdfeel.sim.simulate import Simulation

ROUNDS = 40


def decisions(graph: str, seed: int, *more: str) -> Decisions:
    settings = (
        *("scheme.name=async-sd-feel", "model.name=logistic", f"network.graph={graph}"),
        *("network.clients=10", "network.servers=5", f"seed={seed}", "devices.spread=8"),
        *("latency.server_server_mbps=2", "latency.holds=true", "evaluation.test_examples=1"),
    )
    ready = prepare(load(None, [*settings, *more]))
    ready.engine.close()
    return ready.decisions


@pytest.mark.parametrize(("graph", "seed"), [("ring", 0), ("complete", 1), ("star", 2)])
def test_exchanges_that_share_a_server_come_one_after_the_other(graph: str, seed: int) -> None:
    own = decisions(graph, seed)
    rounds = simulated(own, ROUNDS)
    free = simulated(replace(own, cost=replace(own.cost, holds=False)), ROUNDS)
    one = free[0].phases["mix"]
    assert one > 0
    assert {each.phases["mix"] for each in free} == {one}
    assert rounds[-1].seconds > free[-1].seconds
    for before, after in combinations(rounds, 2):  # in the order in which they ended
        assert after.seconds >= before.seconds + least(before, after) * one - 1e-9
    for each in rounds:  # it reads its neighbours' models one after another
        assert each.phases["mix"] >= (len(each.mixed) - 1) * one - 1e-9


def least(before: Round, after: Round) -> int:
    """Transfers between the ends of two exchanges: the first leader's model reaches the servers
    that both need, and the second reads each of its neighbours after that."""
    shared = set(before.mixed) & set(after.mixed)
    if not shared or before.lane == after.lane:
        return 0
    return max((d not in before.lane) + (d not in after.lane) for d in shared)


def test_what_a_lane_does_takes_the_time_between_its_rounds() -> None:
    last: dict[tuple[int, ...], float] = {}
    for each in simulated(decisions("ring", 3), ROUNDS):
        took = sum(each.phases.values())
        assert each.seconds == pytest.approx(last.get(each.lane, 0.0) + took)
        last[each.lane] = each.seconds


def test_a_resumed_run_waits_as_long(tmp_path: Path) -> None:
    own, engine = decisions("complete", 4), Idle(torch.zeros(1))
    whole = [each.seconds for each in simulated(own, ROUNDS)]
    running = Simulation(own, engine)
    for n in range(1, ROUNDS - 3):
        next(running)
        save_checkpoint(tmp_path, running.state, {})
        saved = load_checkpoint(tmp_path)
        assert saved is not None
        rest = [each.seconds for each in islice(Simulation(own, engine, saved[0]), 3)]
        assert rest == whole[n : n + 3]
