"""Experiments of all kinds, deployed: the simulator's model, and no node is blamed."""

import random
import warnings

import pytest

from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme_needs import Needs
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from tests.examples import MANY
from tests.live.town import Draw, drawn, tried
from tests.pairs.options import Choice

FEW = 4 * MANY
HONEST: list[tuple[Choice, int, int]] = [
    # What a scheme keeps begins anew with an epoch.
    ({"scheme": "feddyn", "epochs": "moves"}, 4, 3),
    ({"scheme": "scaffold", "epochs": "moves", "personal": "fedper"}, 9, 3),
    # A client of two servers works for the second one alone.
    ({"scheme": "multi-level", "overlap": "one"}, 5, 5),
    ({"scheme": "sd-feel", "overlap": "one", "mixing": "pairwise"}, 5, 2),
]


@pytest.mark.parametrize(("choice", "clients", "servers"), HONEST)
def test_an_honest_deployment_has_the_simulators_bits_and_is_verified(
    choice: Choice, clients: int, servers: int
) -> None:
    more = ("data.classes_per_client=5", "training.iterations=8")
    assert tried(Draw(choice, clients, servers, more, kills=3, seed="honest")) is None


def test_any_other_experiment_has_the_simulators_bits_too() -> None:
    seed, deployed = str(random.randrange(10**9)) if MANY > 1 else "b", 0
    for number in range(60 * MANY):
        try:
            assert tried(drawn(seed, number)) is None, (seed, number)
        except SdfeelError:
            continue  # it cannot be deployed, or not even simulated
        deployed += 1
        if deployed == FEW:
            break
    assert deployed == FEW


@pytest.mark.parametrize("servers", [2, 5, 9])
def test_a_schemes_needs_are_found_without_impossible_ages(servers: int) -> None:
    words = [f"network.servers={servers}", "network.clients=20", "model.name=logistic"]
    words += ["scheme.name=async-sd-feel", "scheme.staleness=global", "training.engine=loop"]
    ready = prepare(load(None, words))
    ready.engine.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Needs.of(ready.decisions).global_clock
