"""What servers do when clients or other servers are slow, away or wrong."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.errors import InputError
from sdfeel.core.scheme import Scheme
from sdfeel.engine.base import Task
from sdfeel.engine.combine import weighted
from sdfeel.engine.messages import Packing, Uniform
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.quarantine import Bounds
from sdfeel.live.protocol import Who
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.schemes import AsyncSDFeel, DSquared, FedAsync, FedAvg, FedSA, Feel, SDFeel
from tests.examples import MANY
from tests.live import timeless
from tests.live.parties import until
from tests.live.village import SIZE, NoisyEngine, Village, network
from tests.waiting import within

HASTY = Policy(dead_client="drop", client_deadline=0.5, dead_edge="drop", edge_deadline=0.5)


def trained(client: int, steps: int) -> Tensor:
    engine = NoisyEngine(6)
    return next(engine.train([Task(client, engine.initial(), steps, 0)]))


def test_a_dead_client_costs_one_deadline_and_its_weight_goes_to_the_others(
    tmp_path: Path,
) -> None:
    village = Village(FedAvg(tau1=2), network(), tmp_path, 2, HASTY, away={"client-3"})
    model = village.go()
    samples = network().samples
    others = [n for n in range(6) if n != 3]
    share = samples[others] / samples[others].sum()
    expected = weighted((float(w), trained(n, 2)) for w, n in zip(share, others, strict=True))
    torch.testing.assert_close(model, expected)


def test_a_scheme_that_counts_on_everyone_has_the_weights_of_a_dead_client_shared(
    tmp_path: Path,
) -> None:
    scheme, net = SDFeel(tau1=2, tau2=9), network()  # no exchange between servers
    model = Village(scheme, net, tmp_path, 2, HASTY, away={"client-3"}).go()
    clusters = [(0, 1), (2,), (4, 5)]
    parts = []
    for own in clusters:
        share = net.samples[list(own)] / net.samples[list(own)].sum()
        parts.append(weighted((float(w), trained(n, 2)) for w, n in zip(share, own, strict=True)))
    expected = weighted((float(m), part) for m, part in zip(net.mass, parts, strict=True))
    torch.testing.assert_close(model, expected)


def test_a_dead_client_is_waited_for_only_once(tmp_path: Path) -> None:
    village = Village(FedAvg(tau1=2), network(), tmp_path, 8, HASTY, away={"client-3"})
    village.go()
    assert village.ended[0].cluster.counts.dropped == 1
    store = Store(tmp_path / "edge-0")
    assert [record["missing"] for record in store.records()] == [[3]] * 4
    store.close()


async def worked_on(village: Village, past: dict[int, str], working: set[int]) -> int:
    """Clients of which some were left out before, some work, and some are silent.

    The round that is open as soon as three are over, or after 40 seconds.
    """
    village.start(0)
    edge = village.edges[0]
    for n, before in past.items():
        cluster = edge._cluster_of(n)
        if before == "left out":
            cluster.quarantine.add(f"client-{n}", 0, "it lied")
        if before == "late":
            for _ in range(4):
                cluster._drop([n], 0)
    await asyncio.sleep(0.1)
    for n in past.keys() - working:  # it is there, and then no more
        question = {"federation": "f" * 64, "wait": 0, "taken": 0}
        question["samples"] = int(village.net.samples[n])
        await edge.handle(Who("client", n), "work", question, None)
    lives = [asyncio.ensure_future(village.client_life(n)) for n in sorted(working)]
    with suppress(TimeoutError):
        async with asyncio.timeout(40.0):
            await until(lambda: edge.known.k >= 3)
    for life in lives:
        life.cancel()
    village.crash(0)
    return edge.known.k


@pytest.mark.parametrize("scheme", [FedAvg(tau1=2), FedAsync(tau1=2)], ids=["in step", "lanes"])
def test_a_round_never_waits_for_silent_clients_alone(scheme: Scheme, tmp_path: Path) -> None:
    policy = Policy(dead_client="drop", client_deadline=2.0, quarantine=50)
    for seed in range(6 * MANY):
        draw = random.Random(seed)
        village = Village(scheme, network(), tmp_path / str(seed), 50, policy)
        past = {n: draw.choice(("left out", "late", "good")) for n in range(6)}
        working = set(draw.sample(range(6), draw.choice((1, 1, 3))))
        assert timeless.run(worked_on(village, past, working)) >= 3, (seed, past, working)


def test_a_quarantined_client_that_may_try_again_cannot_end_a_round_by_nonsense(
    tmp_path: Path,
) -> None:
    policy = Policy(dead_client="drop", client_deadline=2.0, quarantine=50)
    village = Village(FedAvg(tau1=2), network(), tmp_path, 50, policy)
    village.train = lambda task: torch.full((SIZE,), float("nan"))

    async def story() -> None:
        village.start(0)
        edge = village.edges[0]
        edge.cluster.quarantine.add("client-3", 0, "it lied")
        life = asyncio.ensure_future(village.client_life(3))
        await asyncio.sleep(60)
        assert edge.known.k == 0
        assert 3 <= edge.cluster.quarantine.offences()["client-3"] <= 31  # a deadline apart
        life.cancel()
        engine = NoisyEngine(6)
        village.train = lambda task: next(engine.train([task]))  # it is mended
        life = asyncio.ensure_future(village.client_life(3))
        await within(40.0, until(lambda: edge.known.k > 0))
        life.cancel()
        village.crash(0)

    timeless.run(story())


def test_a_client_that_brings_a_model_back_to_the_initial_one_is_not_rejected() -> None:
    bounds, far = Bounds.of(torch.zeros(4), 1000.0), torch.full((4,), 1e7)
    bounds.check(torch.ones(4), far)
    bounds.check(far - 900, far)
    with pytest.raises(Rejected, match="away from where it started"):
        bounds.check(far / 2, far)


def test_synchronous_records_are_bounded_and_asynchronous_ones_complete(tmp_path: Path) -> None:
    few = Policy(keep_records=3)
    Village(SDFeel(tau1=2), network(), tmp_path / "in", 16, few).go()
    hearsay = AsyncSDFeel(theta_min=2, staleness="hearsay")
    Village(hearsay, network(), tmp_path / "out", 16, few).go()
    kept = {}
    for name in ("in", "out"):
        store = Store(tmp_path / name / "edge-0")
        kept[name] = [record["number"] for record in store.records()]
        store.close()
    assert kept["in"] == [6, 7, 8]
    assert kept["out"] == list(range(1, len(kept["out"]) + 1))  # a replay needs them all
    assert len(kept["out"]) > 3


def test_models_that_are_not_finite_are_rejected_and_the_round_completes(tmp_path: Path) -> None:
    engine = NoisyEngine(6)

    def poisoned(task: Task) -> Tensor:
        model = next(engine.train([task]))
        return model * float("nan") if task.client == 3 else model

    village = Village(FedAvg(tau1=2), network(), tmp_path, 4, train=poisoned)
    assert torch.isfinite(village.go()).all()


def test_another_nodes_model_needs_its_hash(tmp_path: Path) -> None:
    federation = Village(FedAvg(tau1=2), network(), tmp_path).federation
    model = NoisyEngine(6).initial()
    body = federation.body(model)
    assert torch.equal(federation.own_model(body), model)
    for missing in (None, "", 0):
        with pytest.raises(Rejected, match="SHA-256"):
            federation.model(body, missing)


def test_a_norm_bound_keeps_a_huge_model_out(tmp_path: Path) -> None:
    engine = NoisyEngine(6)

    def huge(task: Task) -> Tensor:
        return next(engine.train([task])) * (1e6 if task.client == 3 else 1)

    policy = Policy(max_norm=100.0)
    village = Village(FedAvg(tau1=2), network(), tmp_path, 4, policy, train=huge)
    assert village.go().norm() < 100


@pytest.mark.parametrize(
    "scheme",
    [SDFeel(tau1=2), AsyncSDFeel(theta_min=2, staleness="hearsay")],
    ids=["in step", "out"],
)
def test_a_norm_bound_keeps_a_huge_model_of_another_server_out(
    scheme: Scheme, tmp_path: Path
) -> None:
    engine = NoisyEngine(6)

    def huge(task: Task) -> Tensor:
        return next(engine.train([task])) + (1e6 if task.client in (4, 5) else 0)

    bounded = Policy(max_server_norm=100.0, max_change=1e9, dead_edge="drop", edge_deadline=90.0)
    village = Village(scheme, network(), tmp_path, 6, bounded, train=huge)
    village.go()
    models = {d: torch.linalg.vector_norm(model) for d, model in village.models.items()}
    assert models[2] > 1e5
    assert max(models[0], models[1]) < 100
    assert village.ended[1].status()["rejected"] > 0
    assert "exceeds the bound of 100" in village.ended[1].status()["last_error"]


def test_a_server_that_must_not_be_left_out_and_sends_nonsense_is_named_and_waited_for(
    tmp_path: Path,
) -> None:
    village = Village(SDFeel(tau1=2), network(), tmp_path, 4)
    village.policies = {0: Policy(max_server_norm=1e-3)}

    async def story() -> None:
        run = asyncio.ensure_future(village.run())
        await until(lambda: 0 in village.edges and bool(village.edges[0].status()["last_error"]))
        edge = village.edges[0]
        assert "edge-1: the tensors' norm" in edge.status()["last_error"]
        assert edge.status()["waiting_for"] == ["edge-1"]
        answer, _ = await edge.handle(Who("client", 0), "here", {"federation": "f" * 64}, None)
        assert answer["round"] == 0
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        for d in (0, 1, 2):
            village.crash(d)

    timeless.run(asyncio.wait_for(story(), 60))


def test_a_dead_server_is_left_out_and_the_weighted_mean_of_the_rest_is_kept(
    tmp_path: Path,
) -> None:
    away = {"edge-2", "client-4", "client-5"}
    scheme = SDFeel(tau1=2, alpha=2)
    village = Village(scheme, network(), tmp_path, 2, HASTY, away=away)
    mixed = village.go()  # of servers 0 and 1
    net = network()
    parts = []
    for d in (0, 1):
        own = np.flatnonzero(net.home == d)
        share = net.samples[own] / net.samples[own].sum()
        parts.append(
            weighted((float(w), trained(int(n), 2)) for w, n in zip(share, own, strict=True))
        )
    mass = net.mass[:2] / net.mass[:2].sum()
    expected = weighted((float(m), part) for m, part in zip(mass, parts, strict=True))
    torch.testing.assert_close(mixed, expected)


def test_a_server_that_comes_back_continues_in_the_round_of_the_others(tmp_path: Path) -> None:
    late = {"edge-2", "client-4", "client-5"}
    village = Village(SDFeel(tau1=2), network(), tmp_path, 30, HASTY, away=late)

    async def run() -> list[int]:
        enough = asyncio.Event()

        def look(caller: str, kind: str) -> str:
            if 0 in village.edges and village.edges[0].known.k >= 3:
                enough.set()
            return "deliver"

        village.disturb = look
        others = asyncio.ensure_future(village.run())
        await enough.wait()
        village.start(2)
        clients = [asyncio.ensure_future(village.client(n).run()) for n in (4, 5)]
        await others
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        rounds = [record["k"] for record in village.edges[2].store.records()]
        village.crash(2)
        return rounds

    rounds = timeless.run(run())
    assert rounds[0] >= 3  # what the others did without it is left out
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))


def test_a_node_of_another_experiment_is_refused_with_both_names(tmp_path: Path) -> None:
    village = Village(SDFeel(), network(), tmp_path)

    async def run() -> None:
        village.start(0)
        edge = village.edges[0]
        try:
            header = {"federation": "0" * 64, "samples": 30}
            await edge.handle(Who("client", 0), "work", header, None)
        finally:
            village.crash(0)

    with pytest.raises(Refused, match=r"ffffffffffff, yours is 000000000000: give all nodes"):
        timeless.run(run())


@pytest.mark.parametrize(
    ("who", "kind", "header", "told"),
    [
        (Who("client", 0), "work", {"samples": 29}, "holds 29 examples, but network.json says 30"),
        (Who("client", 4), "work", {"samples": 25}, "client-4 does not belong to edge-0"),
        (Who("client", 99), "work", {"samples": 1}, "there is no client 99"),
        (Who("client", 0), "model", {"round": 0, "hop": 0}, "client-0 may not ask for 'model'"),
        (
            Who("client", 0),
            "work",
            {"samples": "many"},
            "must be a whole number from 0, got 'many'",
        ),
        (Who("client", 0), "result", {"round": 7, "steps": 5}, "has no work in round 8"),
        (Who("edge", 1), "lock", {"round": 0}, "synchronous server does not answer 'lock'"),
        (Who("operator", 0), "dance", {}, "cannot ask for 'dance'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    who: Who, kind: str, header: dict[str, object], told: str, tmp_path: Path
) -> None:
    village = Village(SDFeel(), network(), tmp_path)

    async def run() -> None:
        village.start(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        try:
            stamped = {**header, "federation": "f" * 64}
            await village.edges[0].handle(who, kind, stamped, None)
        finally:
            village.crash(0)

    with pytest.raises(Refused, match=told):
        timeless.run(run())


def test_servers_are_not_dropped_where_the_scheme_or_the_compression_needs_them_all(
    tmp_path: Path,
) -> None:
    drop = Policy(dead_edge="drop")
    with pytest.raises(InputError, match=r"needs a constant mixing matrix: set dead_edge=wait"):
        Village(DSquared(), network(), tmp_path / "d2", policy=drop).go()
    packing = Packing((SIZE,), 7, (), Uniform(width=6))
    with pytest.raises(InputError, match=r"must all arrive .*: set dead_edge=wait"):
        Village(SDFeel(), network(), tmp_path / "sd", policy=drop, packing=packing).go()
    Village(FedAvg(tau1=2), network(), tmp_path / "one", 2, drop, packing=packing).go()


def test_a_round_whose_clients_are_all_dead_makes_way_for_the_next(tmp_path: Path) -> None:
    """FEEL asks two clients at a time; whom it asks is drawn afresh in every round."""
    policy, dead = Policy(dead_client="drop", client_deadline=0.5), {"client-0", "client-3"}
    scheme = Feel(tau1=2, scheduled=1)
    village = Village(scheme, network(), tmp_path, iterations=40, policy=policy, away=dead)
    asked: list[dict[str, int]] = []

    async def look() -> None:
        asked.extend(record["steps"] for record in village.edges[0].store.records())

    village.at_the_end = look
    model = village.go()
    assert {} in asked
    assert any(asked)
    assert bool(model.abs().sum() > 0)


@pytest.mark.parametrize("quota", [1, 3])
def test_a_dead_client_does_not_keep_the_places_of_a_quota(quota: int, tmp_path: Path) -> None:
    village = Village(FedSA(tau1=2, quota=quota), network(), tmp_path, 40, HASTY, away={"client-0"})
    village.go()
    (edge,) = village.ended.values()
    assert edge.status()["results"] > 0.8 * 20 * quota
