"""One node with a good certificate breaks no other: the attacks that were found, as tests."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme import Scheme
from sdfeel.engine.base import Task
from sdfeel.live.client import Client
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.server import Edge
from sdfeel.live.failover import Failover
from sdfeel.live.protocol import About, Answer, Header, Link, Reception, Who
from sdfeel.live.statements import work_hash
from sdfeel.live.transport import Reply
from sdfeel.live.transport.envelope import Envelope, decode
from sdfeel.live.transport.errors import NotTrusted, Refused, Rejected
from sdfeel.live.transport.tensors import Schema, digest
from sdfeel.schemes import AsyncSDFeel, FedAvg, FedMes, FedNova, SDFeel
from sdfeel.sim.simulate import Simulation
from sdfeel.version import __version__
from tests.live import timeless
from tests.live.village import COST, RING, SIZE, Answering, NoisyEngine, Village, network

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


def test_a_client_is_not_left_out_for_a_bad_model_of_another_of_its_servers(
    tmp_path: Path,
) -> None:
    """Its work starts from the models of several servers, and one of them may be absurd."""
    tries: dict[int, int] = {}

    def train(task: Task) -> Tensor:
        tries[task.client] = tries.get(task.client, 0) + 1
        return task.start + (HUGE if task.client == 3 else 0.1)

    village = Village(FedMes(tau1=2), network(RING, overlap=True), tmp_path, 8, train=train)
    model = village.go()
    assert float(model.norm()) < 100
    told = [edge.status() for edge in village.ended.values()]
    assert sum(each["rejected"] for each in told) >= 2 * 4  # by both, in every round
    assert all(each["offences"] == {} for each in told)
    assert tries[3] >= 4


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


def test_if_all_clients_are_rejected_the_round_keeps_its_model(
    tmp_path: Path,
) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, 4, train=lambda t: t.start * np.nan)
    assert torch.equal(village.go(), NoisyEngine(6).initial())


async def exchange_with(edge: Edge, leader: int, model: Tensor, **more: Any) -> None:
    """Another server locks this one and has it apply a model."""
    who, stamp = Who("edge", leader), {"federation": "f" * 64}
    await edge.handle(who, "lock", {"round": 0, "wait": 0, **stamp}, None)
    body = edge.federation.body(model)
    header = {"round": 0, "sha256": digest(body), **stamp, **more}
    await edge.handle(who, "apply", header, body)


def nested(depth: int) -> Any:
    found: Any = "end"
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    "more",
    [
        *({"x": nested(600)}, {"rows": nested(900)}, {"got": {"0": {}}}, {"work": ["a"]}),
        *({"rows": {"certificate": "0" * 64}}, {"rows": {"0": "certificate"}}),
        *({"first": 3}, {"first": 2**60}, {"epoch": 1}, {"before": "\x1b[2J"}),
        *({"work": "0" * 64}, {"got": {"0": "0" * 64}}),
    ],
)
def test_a_client_cannot_sign_a_statement_that_breaks_its_server_later(
    more: dict[str, Any], tmp_path: Path
) -> None:
    """What is kept with a result is read again at every restart: it must have its form, and say
    what was handed out, even if that was before the server was killed."""
    village = Village(FedAvg(tau1=2), network(), tmp_path, 4, signed=True)

    async def story() -> None:
        village.start(0)
        await asyncio.sleep(0)
        edge, who = village.edges[0], Who("client", 3)
        question = {"samples": 40, "wait": 0, "taken": 0, "federation": "f" * 64}
        told, start = await edge.handle(who, "work", question, None)
        desk = village.client(3).desk
        assert desk is not None
        assert start is not None
        desk.begin()
        desk.given(0, 0, told, work_hash(told))
        header = desk.result(0, 0, 0, 2, {}, digest(start))
        statement = {**header["statement"], **more}
        signed = {"statement": statement, "signed": desk.notary.sign(statement)}
        stamp = {"round": 0, "steps": 2, "sha256": digest(start), "federation": "f" * 64}
        village.crash(0)
        village.start(0)
        await asyncio.sleep(0)
        with pytest.raises(Rejected, match="client-3's statement"):
            await village.edges[0].handle(who, "result", {**stamp, **signed}, start)
        village.crash(0)

    timeless.run(story())


@pytest.mark.parametrize("scheme", [FedNova(theta_min=1), HEARSAY], ids=["fednova", "async"])
def test_a_client_cannot_claim_more_steps_than_a_run_has(scheme: Scheme, tmp_path: Path) -> None:
    """Where clients take as many steps as they can: schemes may make lists of that many numbers."""
    village = Village(scheme, network(), tmp_path, 40, Policy(pace="measured"))

    async def story() -> None:
        village.start(0)
        await asyncio.sleep(0)
        body = village.federation.body(village.federation.initial)
        stamp = {"round": 0, "sha256": digest(body), "federation": "f" * 64}
        for steps in (41, 2**31, 2**52):
            claim = {**stamp, "steps": steps}
            with pytest.raises(Refused, match="asks client-1 for"):
                await village.edges[0].handle(Who("client", 1), "result", claim, body)
        village.crash(0)

    timeless.run(story())


@pytest.mark.parametrize("pace", ["experiment", "measured"])
def test_where_there_is_no_deadline_a_client_takes_the_steps_that_it_was_given(
    pace: Literal["experiment", "measured"], tmp_path: Path
) -> None:
    """Whatever the policy: with fewer steps it would do less work than honest clients."""
    village = Village(SDFeel(tau1=3), network(), tmp_path, 40, Policy(pace=pace))

    async def story() -> None:
        village.start(0)
        await asyncio.sleep(0)
        body = village.federation.body(village.federation.initial)
        stamp = {"round": 0, "sha256": digest(body), "federation": "f" * 64}
        for steps in (0, 1, 2, 4, 40):
            claim = {**stamp, "steps": steps}
            with pytest.raises(Refused, match="asks client-1 for 3 steps"):
                await village.edges[0].handle(Who("client", 1), "result", claim, body)
        village.crash(0)

    timeless.run(story())


def test_messages_are_nested_only_so_deeply() -> None:
    for depth in (10, 17, 5000):
        message = Envelope("work", {"a": nested(min(depth, 12))}).encode()
        if depth > 12:
            message = message.replace(b'"end"', b"[" * depth + b"]" * depth)
            with pytest.raises(Refused, match="not JSON of plain text"):
                decode(message, 1 << 20)
        else:
            assert decode(message, 1 << 20).header["a"] == nested(10)


def test_a_leader_that_asks_again_and_again_does_not_hold_a_server_for_ever(tmp_path: Path) -> None:
    policy = Policy(dead_edge="drop", edge_deadline=5.0)
    village = Village(HEARSAY, network(RING), tmp_path, 400, policy)

    async def story() -> None:
        village.start(1)
        await asyncio.sleep(0)
        own = village.edges[1].exchange._own  # type: ignore[attr-defined]
        for k in range(40):
            question = {"round": k, "wait": 0, "federation": "f" * 64}
            await village.edges[1].handle(Who("edge", 0), "lock", question, None)
            await asyncio.sleep(0.5)
        own._give_up()
        assert own.lock is None or own.lock[0] != 0
        village.crash(1)

    timeless.run(story())


@pytest.mark.parametrize("proof", [None, b"", b"[" * 100_000, b'{"document": "{}"}'])
def test_a_server_that_says_we_have_left_without_proof_is_left_out(
    proof: bytes | None, tmp_path: Path
) -> None:
    async def lie(who: Who, kind: str, header: Header, body: bytes | None) -> Answer:
        await asyncio.sleep(0)
        return ({}, proof) if kind == "epoch" else ({"left": True}, None)

    away = {"client-4", "client-5"}
    village = Village(SDFeel(tau1=2), network(RING), tmp_path, 8, DROP, away=away)
    village.liars = {2: lie}
    village.go()
    assert village.ended[0].status()["offences"] == {"edge-2": 1}


def test_a_server_that_answers_at_once_is_not_asked_in_a_loop(tmp_path: Path) -> None:
    """A server with nothing to answer should wait; one that does not costs us nothing."""
    asked: list[str] = []

    async def hasty(who: Who, kind: str, header: Header, body: bytes | None) -> Answer:
        asked.append(kind)
        return {"early": True, "idle": True, "waiting": False}, None

    away = {"client-4", "client-5"}
    village = Village(SDFeel(tau1=2), network(RING), tmp_path, 8, DROP, away=away)
    village.liars = {2: hasty}
    village.go()
    assert village.ended[0].known.over
    assert 10 < len(asked) < 2000


def test_a_client_does_not_race_round_a_server_that_answers_at_once() -> None:
    asked: list[str] = []

    def hasty(kind: str, header: Header) -> Reply:
        asked.append(kind)
        return Reply({"idle": True})

    link = Link("edge-0", Answering(hasty), "")
    client = Client(Schema(()), 0, 1, Failover({0: link}), lambda task: task.start)
    with pytest.raises(TimeoutError):
        timeless.run(client.run(), seconds=10)
    assert len(asked) < 400


def test_a_flood_of_new_versions_is_logged_only_a_few_times() -> None:
    """Versions of a caller, and of a server that asks us again and again to introduce ourselves."""
    told: list[str] = []
    series = __version__.rpartition(".")[0]
    reception = Reception("edge-0", About(), told.append)
    for n in range(1000):
        reception.meet(Who("client", 1), {"about": {"sdfeel": f"{series}.{100 + n}"}})
    assert 0 < len(told) <= 10
    told.clear()
    calls = iter(range(100, 10_000))

    def new_every_time(kind: str, header: Header) -> Reply:
        return Reply({"introduce": True, "about": {"sdfeel": f"{series}.{next(calls)}"}})

    link = Link("edge-0", Answering(new_every_time), "", About(), "client-1", told.append)

    async def story() -> None:
        for _ in range(500):
            await link.ask("work", {})

    timeless.run(story())
    assert 0 < len(told) <= 10


@pytest.mark.parametrize("deadline", [1e308, 2**52, 0, -1e308])
def test_a_deadline_of_any_size_leaves_a_client_with_steps_that_it_can_take(
    deadline: float,
) -> None:
    client = Client(Schema(()), 0, 1, Failover({}), lambda task: task.start, pace=1e-300)
    header = {"steps": 7, "deadline": deadline, "first": 0, "rate": 0.1}
    assert client.task(header, np.zeros(2), {}).steps in (1, 7)


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
    [(2, 10**6, "no server has a round 1000001"), (2, 2**60, "must be a whole number")],
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
    village = Village(HEARSAY, network(), tmp_path, 40)  # a path: 0 and 2 are not neighbours

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


def test_an_old_message_is_not_applied_again(tmp_path: Path) -> None:
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
            with pytest.raises(Refused, match=f"client-{stranger} does not belong to edge-0"):
                await village.edges[0].handle(Who("client", stranger), "start", header, None)
        village.crash(0)

    timeless.run(story())


def test_a_client_that_the_network_does_not_know_is_told_so(tmp_path: Path) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path)
    with pytest.raises(SdfeelError, match=r"client-99's, but network\.json has clients 0 to 5"):
        village.federation.member(99)
