"""An asynchronous run, repeated in the simulator in its recorded order, gives the same model."""

import random
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from sdfeel.core.decide import Decisions, mean_iterations
from sdfeel.core.errors import InputError
from sdfeel.core.scheme import Scheme
from sdfeel.deploy.deployable import check_deployable
from sdfeel.deploy.records import Records
from sdfeel.deploy.replay import repeated
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.live.protocol import Who
from sdfeel.live.store import Store
from sdfeel.schemes import AsyncSDFeel, FedAsync
from sdfeel.sim.simulate import Simulation
from tests.live.crashes import Reaper
from tests.live.test_faults import fate
from tests.live.village import COST, PATH, RING, NoisyEngine, Village, network

HEARSAY = AsyncSDFeel(theta_min=2, staleness="hearsay")


def arrivals_of(village: Village) -> list[dict[str, Any]]:
    """What an operator writes down of a run."""
    found: list[dict[str, Any]] = []

    async def follow() -> None:
        edges = {d: village.link(Who("operator", 0), d) for d in village.federation.net.servers}
        records = Records(edges, synchronous=False)
        async for _ in records.in_order():
            pass
        found.extend(records.arrivals)

    village.at_the_end = follow
    return found


def again(scheme: Scheme, links: Any, arrivals: list[dict[str, Any]]) -> torch.Tensor:
    engine = NoisyEngine(6)
    return repeated(
        Simulation(Decisions.of(scheme, network(links), COST, engine.seed), engine), arrivals
    )


@pytest.mark.parametrize("links", [PATH, RING], ids=["path", "ring"])
@pytest.mark.parametrize(
    "scheme",
    [HEARSAY, AsyncSDFeel(theta_min=1, staleness="hearsay", psi="exponential", balanced=True)],
    ids=["paper", "balanced"],
)
def test_the_recorded_order_gives_the_same_model(
    scheme: Scheme, links: Any, tmp_path: Path
) -> None:
    village = Village(scheme, network(links), tmp_path, iterations=8)
    arrivals = arrivals_of(village)
    model = village.go()
    assert len(arrivals) >= 6
    assert torch.equal(model, again(scheme, links, arrivals))


@pytest.mark.parametrize("psi", ["polynomial", "hinge"])
def test_lanes_that_share_a_server_can_be_repeated_in_their_order(
    psi: Literal["polynomial", "hinge"], tmp_path: Path
) -> None:
    scheme = FedAsync(tau1=2, psi=psi, psi_b=1.0)
    village = Village(scheme, network(), tmp_path, iterations=8)
    arrivals = arrivals_of(village)
    model = village.go()
    assert {each["lane"] for each in arrivals} == set(range(6))
    with closing(Store(tmp_path / "edge-0")) as store:
        for each in store.records():  # times by one clock
            assert each["began"] <= each["ended"]
            assert min(each["compute"], each["upload"], each["mix"]) >= 0
    assert torch.equal(model, again(scheme, PATH, arrivals))
    shuffled = [*arrivals[1:], arrivals[0]]
    assert not torch.equal(model, again(scheme, PATH, shuffled))
    expected = Simulation(village.federation.decisions, NoisyEngine(6))
    for _ in arrivals:
        expected_iterations = next(expected).iterations
    assert abs(expected_iterations - 8) <= 1  # both count the mean over lanes


def test_lanes_that_share_a_server_survive_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, killed = FedAsync(tau1=2), 0
    for at in range(3, 30, 5):
        with monkeypatch.context() as own:
            Reaper(own, at, "before" if at % 2 else "after")
            village = Village(scheme, network(), tmp_path / str(at), iterations=4)
            arrivals = arrivals_of(village)
            model = village.go()
            killed += village.restarts
        assert torch.equal(model, again(scheme, PATH, arrivals)), f"killed at write {at}"
    assert killed >= 4


def test_another_order_would_be_noticed(tmp_path: Path) -> None:
    village = Village(HEARSAY, network(), tmp_path, iterations=8)
    arrivals = arrivals_of(village)
    model = village.go()
    orders = [
        sorted(arrivals, key=lambda each: (each["k"], sign * each["server"])) for sign in (1, -1)
    ]
    assert not all(torch.equal(model, again(HEARSAY, PATH, order)) for order in orders)


@pytest.mark.parametrize("seed", range(2))
def test_lost_and_doubled_messages_do_not_spoil_the_record(seed: int, tmp_path: Path) -> None:
    village = Village(HEARSAY, network(), tmp_path, iterations=8, disturb=fate(seed))
    arrivals = arrivals_of(village)
    model = village.go()
    assert torch.equal(model, again(HEARSAY, PATH, arrivals))


def test_a_crash_at_any_write_keeps_the_record_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    for at in random.Random(3).sample(range(4, 70), 8):
        with monkeypatch.context() as own:
            Reaper(own, at, "before" if at % 2 else "after")
            village = Village(HEARSAY, network(), tmp_path / str(at), iterations=6)
            arrivals = arrivals_of(village)
            model = village.go()
            killed += village.restarts
        assert torch.equal(model, again(HEARSAY, PATH, arrivals)), f"killed at write {at}"
    assert killed >= 6


def test_a_counter_that_only_a_simulator_has_is_refused() -> None:
    settings = ["scheme.name=async-sd-feel", "network.servers=2", "model.name=logistic"]
    settings += ["training.engine=loop"]
    with pytest.raises(InputError, match=r"set scheme\.staleness=hearsay"):
        check_deployable(prepare(load(None, settings)))
    check_deployable(prepare(load(None, [*settings, "scheme.staleness=hearsay"])))


@pytest.mark.parametrize("links", [RING, PATH], ids=["ring", "path"])
def test_a_run_ends_when_the_servers_have_done_enough_on_average(
    links: Any, tmp_path: Path
) -> None:
    """As in a simulation: slow servers may do less than asked for, and fast ones do more."""
    village = Village(HEARSAY, network(links), tmp_path, iterations=40)
    village.go()
    steps = [edge.known.steps for edge in village.ended.values()]
    assert mean_iterations(sum(steps), 3) >= 40
    assert min(steps) < 40
    assert sum(steps) / 3 < 40 + 2 * max(village.federation.decisions.first_lengths)
