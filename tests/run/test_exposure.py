"""What a graph reveals to whom, and canaries that find out no more than that."""

from math import log, sqrt

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
