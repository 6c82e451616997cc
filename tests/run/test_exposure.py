"""What a graph reveals to whom, and canaries that find out no more than that."""

from math import log, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from sdfeel.engine.base import Task
from sdfeel.engine.messages import Clip, Noise, Packing
from sdfeel.engine.privacy import INSTALLED, epsilon
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.run.exposure import distances, exposure

BASE = (
    *("network.clients=12", "network.servers=4", "model.name=logistic", "data.partition=iid"),
    *("training.iterations=20", "training.engine=loop", "privacy.protects=clients"),
    "privacy.noise=4",
)


def losses(*settings: str) -> dict[str, float]:
    ready = prepare(load(None, [*BASE, *settings]))
    return {each.who: float(each.losses.max()) for each in exposure(ready)}


def test_those_further_away_never_learn_more() -> None:
    found = losses("network.graph=ring")
    assert list(found) == [
        *("its own edge server", "clients of the same server", "edge servers at distance 1"),
        *("edge servers at distance 2", "readers of the final model"),
    ]
    values = list(found.values())
    assert values[0] == pytest.approx(4 * 4**-2)  # four rounds
    assert values[1] == pytest.approx(values[0] / 3, rel=0.1)  # three clients hide one another
    assert values[2] >= values[3] - 1e-12


def test_a_cloud_that_averages_all_hides_clients_from_readers_and_sees_more_itself() -> None:
    found = losses("scheme.name=hierfavg")
    assert found["the cloud"] > found["readers of the final model"]
    hidden = losses("privacy.noise_in=sum")
    assert hidden["its own edge server"] > hidden["edge servers at distance 1"]


def test_distances_count_links() -> None:
    path = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=float)
    assert distances(path).tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]


SLOW = ("devices.spread=6", "devices.gflops=0.01")
DROP = ("latency.late=drop", "latency.deadline_seconds=0.0049")


@pytest.mark.parametrize(
    "settings",
    [
        ("scheme.name=async-sd-feel", *SLOW),
        ("scheme.name=async-sd-feel", "privacy.protects=examples", *SLOW),
        ("scheme.name=sd-feel", *SLOW, *DROP),
        ("scheme.name=sd-feel", "privacy.protects=examples", *SLOW, *DROP),
        ("attack.kind=scaling", "attack.clients=4"),
    ],
    ids=lambda settings: " ".join(settings),
)
def test_a_run_never_reveals_more_than_was_foretold(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message is counted, that of a late client, too, and has noise of its own."""
    ready = prepare(load(None, [*BASE, "network.servers=3", "network.clients=8", *settings]))
    budget, sent, plain = ready.budget, [], Packing.upload
    assert budget is not None

    def noted(own: Packing, owed: Any, task: Task, trained: torch.Tensor, k: int) -> torch.Tensor:
        sent.append((task.client, k))
        return plain(own, owed, task, trained, k)

    monkeypatch.setattr(Packing, "upload", noted)
    simulation = ready.simulation()
    while simulation.state.iterations < ready.experiment.training.iterations:
        next(simulation)
    assert len(set(sent)) == len(sent)
    state, foretold = simulation.state, exposure(ready)
    assert max(each.losses.max() for each in foretold) >= state.spent.max(initial=0) - 1e-9
    if budget.protects == "examples":
        late = state.spent[0] if state.spent.size else 0.0
        seen = budget.steps(state.taken) + late
        assert (foretold[0].losses >= seen - 1e-9).all()
        return
    single = (budget.clip / budget.deviation) ** 2
    for client in range(8):
        honest = [each for each in sent if each[0] == client and client not in budget.liars]
        assert state.spent[0, client] >= single * len(honest) - 1e-9
    if "latency.late=drop" in settings:  # all were asked in each round, and some came too late
        assert (state.spent[0] == single * state.number).all()
        assert len(sent) < 8 * state.number


TRIALS = 400


def lower_bound(weights: list[float], deviation: float) -> float:
    """An epsilon that a canary proves, with 99.9 % confidence: client 0 sends 1 or nothing."""
    packing = Packing((1,), 5, (Clip(1.0), Noise(deviation)))
    seen: dict[int, list[float]] = {0: [], 1: []}
    for k in range(2 * TRIALS):
        sums = 0.0
        for client, weight in enumerate(weights):
            sent = torch.tensor([float(k % 2 and client == 0)])
            task = Task(client, torch.zeros(1), 1, 0)
            sums += weight * float(packing.upload({}, task, sent, k))
        seen[k % 2].append(sums)
    without, having = np.array(seen[0]), np.array(seen[1])
    slack = sqrt(log(1e3) / (2 * TRIALS))  # Hoeffding
    best = 0.0
    for threshold in np.quantile(without, [0.5, 0.8, 0.9, 0.95]):
        caught, false = (having > threshold).mean() - slack, (without > threshold).mean() + slack
        best = max(best, log(max(caught - 1e-5, 1e-9) / false))
    return best


@pytest.mark.skipif(not INSTALLED, reason="dp-accounting is not installed")
@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.3, 0.2]])
def test_a_canary_never_proves_more_than_was_promised(weights: list[float]) -> None:
    deviation = 1.0
    share = weights[0] ** 2 / sum(w * w for w in weights)
    promised = epsilon(share / deviation**2, 1e-5)
    assert lower_bound(weights, deviation) <= promised
    less = deviation / 40  # with too little noise it would prove more
    assert lower_bound(weights, less) > min(promised, 1.5)
