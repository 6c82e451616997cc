"""One node with a good certificate breaks no other: the attacks that were found, as tests."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme import Scheme
from sdfeel.engine.base import Task
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.server import Edge
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.live.transport.errors import NotTrusted, Refused, Rejected
from sdfeel.live.transport.tensors import digest
from sdfeel.schemes import AsyncSDFeel, FedAvg, FedNova, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.live import timeless
from tests.live.village import COST, RING, SIZE, NoisyEngine, Village, network

HUGE = 3.4e38
HEARSAY = AsyncSDFeel(theta_min=2, staleness="hearsay")
DROP = Policy(dead_edge="drop", edge_deadline=5.0)


def alternating(value: float) -> Callable[[Task], Tensor]:
    """Client 3 sends huge numbers of alternating sign, all of them finite."""
    engine, calls = NoisyEngine(6), [0]

    def train(task: Task) -> Tensor:
        if task.client != 3:
            return next(engine.train([task]))
        calls[0] += 1
        return torch.full((SIZE,), value * (-1) ** calls[0])

    return train


@pytest.mark.parametrize("value", [HUGE, 1e30, 1e6], ids=str)
@pytest.mark.parametrize(
    "scheme", [FedNova(theta_min=1), FedAvg(tau1=2), HEARSAY], ids=["fednova", "fedavg", "async"]
)
def test_huge_finite_numbers_of_a_client_are_kept_out_and_a_restart_works(
    scheme: Scheme, value: float, tmp_path: Path
) -> None:
    few = Policy(quarantine=1)
    village = Village(scheme, network(), tmp_path, 8, few, train=alternating(value))
    model = village.go()
    assert float(model.norm()) < 100
    home = village.ended[0 if isinstance(scheme, FedAvg | FedNova) else 1]
    status = home.status()
    assert status["rejected"] >= 1
    assert status["offences"] == {"client-3": status["offences"]["client-3"]}
    again = Village(scheme, network(), tmp_path, 8, few, train=alternating(value))
    assert torch.equal(again.go(), model)


def test_an_offender_is_left_out_for_some_rounds_named_and_let_in_again(tmp_path: Path) -> None:
    told: list[str] = []
    engine, tries = NoisyEngine(6), []

    def train(task: Task) -> Tensor:
        model = next(engine.train([task]))
        if task.client == 3:
            tries.append(task.first)
            return model * float("nan") if len(tries) == 1 else model
        return model

    village = Village(FedAvg(tau1=2), network(), tmp_path, 12, Policy(quarantine=3), train=train)
    village.tell = told.append
    village.go()
    edge = village.ended[0]
    assert len(tries) == 1 + 3  # rounds 4, 5 and 6
    assert edge.status()["offences"] == {"client-3": 1}
    assert (
        "client-3 is left out until round 4: the tensor 'model' has values that are not"
        in " ".join(told)
    )


def test_a_quarantine_outlives_a_restart(tmp_path: Path) -> None:
    village = Village(FedAvg(tau1=2), network(), tmp_path, 40)

    async def story() -> None:
        village.start(0)
        await asyncio.sleep(0)
        body = village.federation.body(torch.full((SIZE,), float("nan")))
        header = {"round": 0, "steps": 2, "sha256": digest(body), "federation": "f" * 64}
        with pytest.raises(Rejected):
            await village.edges[0].handle(Who("client", 3), "result", header, body)
        village.crash(0)
        village.start(0)
        await asyncio.sleep(0)
        assert village.edges[0].status()["quarantined"] == ["client-3"]
        assert 3 not in village.edges[0].cluster.outstanding(village.edges[0].cluster.turn)  # type: ignore[arg-type]
        with pytest.raises(Refused, match="client-3 is left out until round 21"):
            await village.edges[0].handle(Who("client", 3), "result", header, body)
        village.crash(0)

    timeless.run(story())


def test_where_all_clients_are_rejected_the_round_ends_with_the_model_it_had(
    tmp_path: Path,
) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, 4, train=lambda t: t.start * np.nan)
    assert torch.equal(village.go(), NoisyEngine(6).initial())


async def exchange_with(edge: Edge, leader: int, model: Tensor, **more: Any) -> None:
    """Another server holds this one and has it apply a model."""
    who, stamp = Who("edge", leader), {"federation": "f" * 64}
    await edge.handle(who, "lock", {"round": 0, "wait": 0, **stamp}, None)
    body = edge.federation.body(model)
    header = {"round": 0, "sha256": digest(body), **stamp, **more}
    await edge.handle(who, "apply", header, body)


@pytest.mark.parametrize("weights", [[1000.0, -999.0], [0.0, 1.0], [1e300, 1 - 1e300]])
def test_a_leader_cannot_say_how_much_it_counts(weights: list[float], tmp_path: Path) -> None:
    village = Village(HEARSAY, network(), tmp_path, 40)

    async def story() -> Tensor:
        village.start(1)
        await asyncio.sleep(0)
        quiet = {"heard": [0, 0, 0], "stamp": 0}
        await exchange_with(
            village.edges[1],
            2,
            torch.ones(SIZE),
            sources=[1, 2],
            weights=weights,
            before=quiet,
            heard=[0, 0, 1],
            stamp=1,
        )
        model = village.model(1)
        village.crash(1)
        return model

    (share,) = set(timeless.run(story()).tolist())
    assert 0 < share < 0.5


@pytest.mark.parametrize(
    "claims",
    [
        {"before": {"heard": [0, 2**52, 0], "stamp": 0}, "heard": [2**52] * 3, "stamp": 2**52},
        {"before": {"heard": [2**52, 0, 9], "stamp": 2**52}, "heard": [0, 0, 0], "stamp": 0},
        {"before": {"heard": [5, 5, 5], "stamp": 1}, "heard": [0, 9, 0], "stamp": 3},
    ],
)
def test_wild_claims_of_a_leader_leave_a_server_with_sound_weights(
    claims: Header, tmp_path: Path
) -> None:
    village = Village(HEARSAY, network(), tmp_path, 6, DROP)

    async def story() -> None:
        village.start(1)
        await asyncio.sleep(0)
        edge = village.edges[1]
        await exchange_with(edge, 2, torch.ones(SIZE), **claims)
        assert 0 < float(village.model(1)[0]) < 1
        own = edge.exchange._own  # type: ignore[attr-defined]
        assert own.heard[1] == 0  # nobody knows of rounds that it has not made
        assert own.stamp <= 3000
        village.crash(1)

    timeless.run(story())
    village.go()
    assert all(torch.isfinite(model).all() for model in village.models.values())


@pytest.mark.parametrize(
    ("leader", "k", "told"),
    [(2, 10**6, "no server has a round 1000000"), (2, 2**60, "must be a whole number")],
)
def test_rounds_that_no_server_can_have_are_refused(
    leader: int, k: int, told: str, tmp_path: Path
) -> None:
    village = Village(HEARSAY, network(), tmp_path, 40)

    async def story() -> None:
        village.start(1)
        await asyncio.sleep(0)
        header = {"round": k, "wait": 0, "federation": "f" * 64}
        try:
            await village.edges[1].handle(Who("edge", leader), "lock", header, None)
        finally:
            village.crash(1)

    with pytest.raises(Refused, match=told):
        timeless.run(story())


def test_a_stranger_to_the_graph_cannot_lead(tmp_path: Path) -> None:
    village = Village(HEARSAY, network(), tmp_path, 40)  # a path: 0 and 2 are no neighbours

    async def story() -> None:
        village.start(0)
        await asyncio.sleep(0)
        header = {"round": 0, "wait": 0, "federation": "f" * 64}
        try:
            await village.edges[0].handle(Who("edge", 2), "lock", header, None)
        finally:
            village.crash(0)

    with pytest.raises(Refused, match="edge-2 is not a neighbour of edge-0"):
        timeless.run(story())


def forever(answer: Callable[[str, Header], Answer]) -> Any:
    async def lie(who: Who, kind: str, header: Header, body: bytes | None) -> Answer:
        await asyncio.sleep(0.001)
        return answer(kind, header)

    return lie


def ahead(kind: str, header: Header) -> Answer:
    if kind == "here":
        return {"round": 10**6, "waiting": True}, None
    return {"gone": True, "round": 10**6, "over": True, "k": 10**6, "steps": 1e9, "met": 0}, None


def a_little_ahead(kind: str, header: Header) -> Answer:
    if kind == "here":
        return {"round": 10**6}, None
    return {"gone": True, "round": header["round"] + 1}, None


def says_no(kind: str, header: Header) -> Answer:
    raise Refused("I do not like you")


def says_revoked(kind: str, header: Header) -> Answer:
    raise NotTrusted("your certificate was revoked")


def nonsense(kind: str, header: Header) -> Answer:
    return {"round": "many", "gone": [], "waiting": "yes", "sha256": 5}, b"\0" * 100


LIES = [ahead, a_little_ahead, says_no, says_revoked, nonsense]


@pytest.mark.parametrize("scheme", [SDFeel(tau1=2), HEARSAY], ids=["in step", "out"])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: str(lie.__name__))
def test_a_server_that_lies_about_itself_is_left_out_and_the_rest_trains_to_the_end(
    lie: Callable[[str, Header], Answer], scheme: Scheme, tmp_path: Path
) -> None:
    village = Village(scheme, network(RING), tmp_path, 12, DROP, liars={2: forever(lie)})
    village.away = {"client-4", "client-5"}
    model = village.go()
    for d in (0, 1):
        assert village.ended[d].known.over
        assert village.ended[d].store.directory.exists()
        if scheme is not HEARSAY:
            assert village.ended[d].known.k == 6
            assert [int(n) for n in village.ended[d].known.taken.values()] == [12, 12]
    assert 0.1 < float(model.norm()) < 100


def simulated_server(d: int) -> Tensor:
    engine = NoisyEngine(6)
    decisions = Decisions.of(SDFeel(tau1=2), network(RING), COST, engine.seed)
    simulation = Simulation(decisions, engine)
    for _ in range(6):
        next(simulation)
    return simulation.state.servers[d]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: str(lie.__name__))
def test_where_nobody_may_be_left_out_a_lying_server_stops_the_others_but_does_not_end_them(
    lie: Callable[[str, Header], Answer], tmp_path: Path
) -> None:
    village = Village(SDFeel(tau1=2), network(RING), tmp_path, 12, liars={2: forever(lie)})
    village.away = {"client-4", "client-5"}

    async def story(honest: Awaitable[Tensor]) -> None:
        run = asyncio.ensure_future(honest)
        while not all(
            d in village.edges and "edge-2" in village.edges[d].status()["last_error"]
            for d in (0, 1)
        ):
            assert not run.done()
            await asyncio.sleep(0.01)
        del village.liars[2]  # it comes to its senses
        village.start(2)
        clients = [asyncio.ensure_future(village.client(n).run()) for n in (4, 5)]
        model = await run
        assert torch.isfinite(model).all()
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        village.crash(2)

    timeless.run(story(village.run()))
    assert torch.equal(village.models[0], simulated_server(0))


def test_what_an_old_message_said_is_not_applied_again(tmp_path: Path) -> None:
    village = Village(HEARSAY, network(), tmp_path, 40)

    async def story() -> None:
        village.start(1)
        await asyncio.sleep(0)
        edge, quiet = village.edges[1], {"heard": [0, 0, 0], "stamp": 0}
        body = edge.federation.body(torch.ones(SIZE))
        header = {"round": 0, "sha256": digest(body), "before": quiet, "federation": "f" * 64}
        header |= {"heard": [0, 0, 1], "stamp": 1}
        await edge.handle(Who("edge", 2), "lock", {**header, "wait": 0}, None)
        await edge.handle(Who("edge", 2), "apply", header, body)
        once = village.model(1)
        for _ in range(50):
            answer, _ = await edge.handle(Who("edge", 2), "apply", header, body)
            assert answer == {"known": True}
        assert torch.equal(village.model(1), once)
        village.crash(1)

    timeless.run(story())


def test_only_a_servers_own_clients_get_its_models(tmp_path: Path) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, 40)

    async def story() -> None:
        village.start(0)
        await asyncio.sleep(0)
        header = {"round": 0, "wait": 0, "federation": "f" * 64}
        _, body = await village.edges[0].handle(Who("client", 0), "start", header, None)
        assert body is not None
        for stranger in (4, 99):
            with pytest.raises(Refused, match=f"client {stranger} does not belong to server 0"):
                await village.edges[0].handle(Who("client", stranger), "start", header, None)
        village.crash(0)

    timeless.run(story())


def test_a_client_that_the_network_does_not_know_is_told_so(tmp_path: Path) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path)
    with pytest.raises(SdfeelError, match=r"client 99's, but network\.json has clients 0 to 5"):
        village.federation.member(99)
