"""A deployed synchronous run reaches the simulator's model, to the last bit."""

import asyncio
import random
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdfeel.core.cost import Overheads
from sdfeel.core.decide import Decisions
from sdfeel.core.events import Finished, Round
from sdfeel.core.learning_rates import schedule
from sdfeel.core.rules import Clipped, Geometric, Median, Trimmed
from sdfeel.core.scheme import Scheme
from sdfeel.core.scheme_needs import Needs
from sdfeel.deploy.deployable import REASONS
from sdfeel.engine.messages import Clip, Codec, Compress, Noise, Packing, TopK, Uniform, UpdateStage
from sdfeel.live.client_rows import MOST_SPANS, ClientRows
from sdfeel.live.edge.journal import Journal
from sdfeel.live.protocol import Header, Who
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.tensors import MODEL, pack
from sdfeel.run.store import read_events
from sdfeel.schemes import (
    KGT,
    SDGT,
    DSquared,
    FedAvg,
    FedCS,
    FedDyn,
    FedMes,
    FedNova,
    FedSA,
    Feel,
    FogFL,
    FreeTracking,
    GossipMtgc,
    HierFavg,
    JointScheduling,
    Mtgc,
    MultiLevelSGD,
    Safa,
    Scaffnew,
    Scaffold,
    SDFeel,
    Tiers,
)
from sdfeel.schemes import SCHEMES as ALL
from sdfeel.schemes.sampling import Sampling, sampled
from sdfeel.sim.simulate import Simulation
from tests.examples import MANY
from tests.live.parity import CASES, deployed
from tests.live.village import COST, LOCAL, RING, SIZE, NoisyEngine, Village, network, simulated
from tests.sim.variants import Ending, Momentum, Robust, SlowlyFollowing

HALF = Sampling(share=0.5)
SCHEMES: dict[str, tuple[Scheme, int]] = {
    "tiers": (Tiers(theta_min=2, tier=100.0), 2),  # one tier: the others are refused
    "sd-feel": (SDFeel(tau1=2, tau2=1, alpha=1), 2),
    "sd-feel, several hops now and then": (SDFeel(tau1=2, tau2=2, alpha=3), 2),
    "hierfavg": (HierFavg(tau1=2, tau2=2), 2),
    "fogfl": (FogFL(tau1=2, tau2=1), 2),
    "fedavg": (FedAvg(tau1=2), 2),
    "fedavg, a few clients": (FedAvg(tau1=2, participants=3), 2),
    "feel": (Feel(tau1=2, scheduled=2), 2),
    "fedcs": (FedCS(tau1=2, alpha=2), 2),
    "fedcs, the slow left out": (FedCS(tau1=2, round_seconds=5.5), 2),
    "fednova": (FedNova(theta_min=1), 1),
    "multi-level": (MultiLevelSGD(tau1=3, tau2=1), 3),
    "d2": (DSquared(), 1),
    "d2, several steps": (DSquared(tau1=2), 2),
    "fedsa": (FedSA(tau1=2), 2),
    "fedsa, two at a time": (FedSA(tau1=2, quota=2), 2),
    "safa": (Safa(tau1=2), 2),
    "safa, many crash": (Safa(tau1=2, crash_chance=0.3, fraction=0.3, tolerance=1), 2),
    "joint": (JointScheduling(tau1=2, divergence=0.05), 2),
    "median": (Robust(SDFeel(tau1=2), up=Median()), 2),
    "trimmed": (Robust(FedAvg(tau1=2), up=Trimmed(0.2)), 2),
    "votes": (Robust(FedNova(theta_min=1), up=Geometric()), 1),
    "clipped gossip": (Robust(SDFeel(tau1=2, alpha=2), across=Clipped(0.1)), 2),
    "momentum": (Momentum(SDFeel(tau1=2, alpha=2)), 2),
    "momentum on d2": (Momentum(DSquared()), 1),
    "scaffold": (Scaffold(tau1=2), 2),
    "scaffold, a few clients": (Scaffold(tau1=2, participants=3), 2),
    "sd-feel, drawn": (sampled(SDFeel(tau1=2, alpha=2), HALF), 2),
    "fedmes, drawn": (sampled(FedMes(tau1=2), HALF), 2),
    "mtgc, drawn": (sampled(Mtgc(tau1=2, tau2=2), HALF), 2),
    "k-gt, drawn": (sampled(KGT(tau1=2), HALF), 2),
    "scaffnew": (Scaffnew(tau1=2), 2),
    "mtgc": (Mtgc(tau1=2, tau2=2), 2),
    "mtgc-gossip": (GossipMtgc(tau1=2, tau2=2, alpha=2), 2),
    "k-gt": (KGT(tau1=2, alpha=2), 2),
    "k-gt, hardly trusted": (KGT(tau1=2, trust=0.01), 2),
    "sd-gt": (SDGT(tau1=2), 2),
    "feddyn": (FedDyn(tau1=2, participants=4), 2),
    "free-tracking": (FreeTracking(tau1=2, alpha=2), 2),
    "server momentum": (FedNova(theta_min=1, server_momentum=0.5), 1),
    "an average over time": (SlowlyFollowing(SDFeel(tau1=2, alpha=2)), 2),
}


BLANK = np.zeros(SIZE, dtype=np.float32)
OVERHEAD = len(pack({MODEL: BLANK})) - 4 * SIZE  # bytes of a message in addition to the model


def saved(along: int) -> int:
    """The bytes saved by rows that share a message with a model."""
    rows = {f"row{n + 1}": BLANK for n in range(along)}
    return (1 + along) * (OVERHEAD + 4 * SIZE) - len(pack({MODEL: BLANK, **rows}))


@pytest.mark.parametrize("name", SCHEMES)
def test_a_deployed_run_has_the_bits_and_the_bytes_of_a_simulated_one(
    name: str, tmp_path: Path
) -> None:
    """The same messages in both worlds; rows that come with a model share its header."""
    scheme, tau = SCHEMES[name]
    village, told = Village(scheme, network(), tmp_path, iterations=5 * tau), list[int]()

    async def look() -> None:
        records = [edge.store.last_record() for edge in village.ended.values()]
        told.extend(record["total"] for record in records if record is not None)

    village.at_the_end = look
    model = village.go()
    rounds = village.ended[0].known.k
    assert rounds > 1
    assert torch.equal(model, simulated(scheme, network(), rounds))
    cost = replace(COST, calls=True, overheads=Overheads(header_bytes=OVERHEAD))
    decisions = replace(village.federation.decisions, cost=cost)
    *_, done = islice(Simulation(decisions, NoisyEngine(6)), rounds)
    less = done.bytes - sum(told)
    given = sum(shelf.held == "client" for shelf in decisions.net.shelves)
    assert less == 0 if not given else less % saved(1) == 0 or less % saved(2) == 0
    assert 0 <= less <= done.number * 6 * saved(2)


@pytest.mark.parametrize("scheme", [SDFeel(tau1=2), Scaffold(tau1=2)], ids=["sd-feel", "scaffold"])
def test_a_schedule_reaches_deployed_clients(
    scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = simulated(scheme, network(), 5)
    falling = schedule("step", {"every": 4, "factor": 0.5}, 2, "iteration", 10)
    monkeypatch.setattr("tests.live.village.LOCAL", replace(LOCAL, schedule=falling))
    model = Village(scheme, network(), tmp_path, iterations=10).go()
    assert torch.equal(model, simulated(scheme, network(), 5))
    assert not torch.equal(model, steady)


def test_a_scheme_ends_a_deployed_run_too_and_its_figures_are_in_the_log(tmp_path: Path) -> None:
    scheme = Ending(SlowlyFollowing(SDFeel(tau1=2)), rounds=3)
    village = Village(scheme, network(), tmp_path, iterations=1000)
    assert torch.equal(village.go(), simulated(scheme, network(), rounds=3))
    assert {edge.known.k for edge in village.ended.values()} == {3}
    with closing(Store(tmp_path / "edge-1")) as store:
        records = list(store.records())
        measured = store.get("measured", 3)
        journal = Journal(tmp_path, village.federation, 1, records)
    journal.finish("f" * 64)
    *rounds, last = [e for e in read_events(tmp_path) if isinstance(e, Round | Finished)]
    assert [each.figures["round"] for each in rounds if isinstance(each, Round)] == [1, 2, 3]
    assert isinstance(last, Finished)
    assert last.reason == "enough"
    assert measured is not None
    assert torch.equal(village.federation.own_model(measured.body), village.models[1])


@pytest.mark.parametrize("weight", [1.0, 2.5])
def test_clients_of_several_servers_serve_them_all(weight: float, tmp_path: Path) -> None:
    scheme, net = FedMes(tau1=2, overlap_weight=weight), network(RING, overlap=True)
    model = Village(scheme, net, tmp_path, iterations=10).go()
    assert torch.equal(model, simulated(scheme, net, rounds=5))


CODECS: dict[str, Codec] = {"uniform": Uniform(width=5), "top-k": TopK(share=0.25)}
PACKED: dict[str, tuple[Scheme, int]] = {
    "sd-feel": (SDFeel(tau1=2, tau2=2), 2),
    "fednova": (FedNova(theta_min=1), 1),
    "fedsa": (FedSA(tau1=2, quota=2), 2),
    "d2": (DSquared(), 1),
    "feel": (Feel(tau1=2, scheduled=2), 2),
    "scaffold": (Scaffold(tau1=2), 2),
}


def test_a_client_of_several_servers_fetches_each_model_once(tmp_path: Path) -> None:
    """Side by side, as the simulator charges it."""
    village = Village(FedMes(tau1=2), network(RING, overlap=True), tmp_path, 16)
    deliver, fetched = village.deliver, Counter[tuple[str, int, int]]()

    async def counted(who: Who, target: int, kind: str, header: Header, body: bytes | None) -> Any:
        told, model = await deliver(who, target, kind, header, body)
        if who.role == "client" and model is not None:
            held = told.get("next", told if "round" in told else header)
            fetched[str(who), target, int(held["round"])] += 1
            await asyncio.sleep(0.05 * target)  # links are not equally fast
        return told, model

    village.deliver = counted  # type: ignore[method-assign]
    village.go()
    shared = [n for n, reach in enumerate(village.federation.net.reach) if len(reach) > 1]
    assert shared
    assert set(fetched.values()) == {1}
    assert len(fetched) == 8 * sum(map(len, village.federation.net.reach))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", PACKED)
def test_compressed_updates_have_the_counted_bytes_and_the_simulators_bits(
    name: str, codec: str, tmp_path: Path
) -> None:
    scheme, tau = PACKED[name]
    packing = Packing((SIZE - 2, 2), 7, (Compress(CODECS[codec]),))
    village = Village(scheme, network(), tmp_path, iterations=5 * tau, packing=packing)
    model = village.go()
    rounds = village.ended[0].known.k
    assert torch.equal(model, simulated(scheme, network(), rounds, packing))
    assert not torch.equal(model, simulated(scheme, network(), rounds))
    received = sum(edge.cluster.counts.received for edge in village.ended.values())
    messages = sum(edge.cluster.counts.results for edge in village.ended.values())
    header = len(pack({"code": np.zeros(0, dtype=np.uint8)}))
    counted = -(-packing.bits(packing.sizes) // 8)
    assert counted <= received / messages - header <= counted + 8  # safetensors counts in eights


@pytest.mark.parametrize("name", ["sd-feel", "fednova", "scaffold"])
@pytest.mark.parametrize("stages", [(), (Compress(Uniform(width=6)),)], ids=["whole", "few bits"])
def test_clipped_and_noisy_updates_have_the_simulators_bits_for_a_given_secret(
    name: str, stages: tuple[UpdateStage, ...], tmp_path: Path
) -> None:
    scheme, tau = PACKED[name]
    packing = Packing((SIZE - 2, 2), 7, (Clip(0.5), Noise(0.05), *stages))
    village = Village(scheme, network(), tmp_path, iterations=4 * tau, packing=packing)
    model = village.go()
    rounds = village.ended[0].known.k
    assert torch.equal(model, simulated(scheme, network(), rounds, packing))
    assert not torch.equal(model, simulated(scheme, network(), rounds, replace(packing, seed=8)))


def test_no_update_is_given_away_twice(tmp_path: Path) -> None:
    """The difference of two updates with the same noise would be without any."""
    with closing(Store(tmp_path)) as store:
        rows = ClientRows(store, {})
        rows.release(3, "a", 5, "update")
        rows.release(3, "a", 5, "update")  # a client that was killed says the same again
        for k, start, content in ((3, "b", "update"), (3, "c", "update"), (3, "a", "longer")):
            with pytest.raises(Refused, match="no update is given away twice"):
                rows.release(k, start, 5, content)
        assert (rows.released(3), rows.released(4)) == (5, None)
        rows.release(4, "b", 2, "update")


@pytest.mark.parametrize("seed", range(3 * MANY))
def test_in_whatever_order_servers_ask_every_round_is_given_away_once(
    seed: int, tmp_path: Path
) -> None:
    """A round far ahead does not block earlier ones, even after a restart."""
    draws, first = random.Random(seed), dict[int, str]()
    for _ in range(4):  # of the client
        with closing(Store(tmp_path)) as store:
            rows = ClientRows(store, {})
            for _ in range(40):
                k = draws.choice([draws.randrange(12), draws.randrange(60), 10**9])
                content = draws.choice("ab")
                if k in first and first[k] != content:
                    with pytest.raises(Refused, match="no update is given away twice"):
                        rows.release(k, "start", 5, content)
                elif k not in first or rows.released(k) is not None:
                    rows.release(k, "start", 5, content)
                    assert rows.released(k) == 5
                    first[k] = content
            assert rows.released(10**9 + 1) is None


def test_after_too_many_skipped_rounds_only_adjacent_ones_are_worked_for(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        rows = ClientRows(store, {})
        for k in range(7, 7 + 2 * MOST_SPANS, 2):
            rows.promise(k, {"n": k})
        with pytest.raises(Refused, match="a round must follow one in which this client worked"):
            rows.promise(10**9, {})
        rows.promise(8, {"n": 8})
        assert (rows.promised(8), rows.promised(6)) == ({"n": 8}, {})
        with pytest.raises(Refused, match="no update is given away twice"):
            rows.promised(7)


def test_no_noisy_step_is_given_away_twice(tmp_path: Path) -> None:
    """In no round: a step's noise is drawn from its number and the round's first model."""
    with closing(Store(tmp_path)) as store:
        rows, a, b = ClientRows(store, {}), "a" * 64, "b" * 64
        for k, start in enumerate((a, b, a)):
            rows.release(k, start, 2, "model", 4)
        rows.release(4, a, 3, "later", 6)
        for first, steps in ((4, 2), (5, 1), (3, 2), (0, 9)):
            with pytest.raises(Refused, match="no step is given away twice"):
                rows.release(5, a, steps, "otherwise", first)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "scheme",
    [SDFeel(tau1=2, tau2=2, alpha=3), FogFL(tau1=2), MultiLevelSGD(tau1=2, tau2=1)],
    ids=["sd-feel", "fogfl", "multi-level"],
)
def test_compressed_exchanges_have_the_simulators_bits(
    scheme: Scheme, codec: str, tmp_path: Path
) -> None:
    packing = Packing((SIZE - 2, 2), 7, (Compress(Uniform(width=6)),), CODECS[codec])
    village = Village(scheme, network(), tmp_path, iterations=10, packing=packing)
    model = village.go()
    rounds = village.ended[0].known.k
    assert torch.equal(model, simulated(scheme, network(), rounds, packing))
    assert not torch.equal(
        model, simulated(scheme, network(), rounds, replace(packing, across=None))
    )


def test_another_path_through_the_rounds_would_be_noticed(tmp_path: Path) -> None:
    scheme = SDFeel(tau1=2)
    model = Village(scheme, network(), tmp_path, iterations=10).go()
    assert not torch.equal(model, simulated(scheme, network(RING), rounds=5))


REFUSED = {"adaptive": "measures", "tiers": "kept_out_of_step"}
OUT_OF_STEP = {"async-sd-feel", "fedasync", "fedbuff"}  # repeated in order: test_asynchronous.py


@pytest.mark.parametrize("name", ALL)
def test_every_scheme_deploys_and_is_tried_or_says_why_not(name: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "feel": {"scheduled": 2},
        "async-sd-feel": {"staleness": "hearsay"},
    }
    scheme = ALL[name](**options.get(name, {}))
    needs = Needs.of(Decisions.of(scheme, network(), COST, local=LOCAL))
    reason = next((each for each in REASONS if getattr(needs, each)), None)
    assert reason == REFUSED.get(name)
    tried = {type(each) for each, _ in SCHEMES.values()} | {FedMes}
    assert reason is not None or name in OUT_OF_STEP or ALL[name] in tried


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d2", "safa", "fedasync", "sd-feel, everything of 6 bits"])
def test_real_processes_keep_the_bits_when_some_are_killed(name: str) -> None:
    """A part of `python -m tests.live.parity --kills 8`."""
    case = next(each for each in CASES if each.name == name)
    for seed in range(5):  # on a busy machine, a short run may be over before the killer looks
        outcome, same = deployed(case, kills=3, seed=seed)
        assert same
        if sum(outcome.kills.values()):
            return
    pytest.fail("nobody was killed in any of five runs")
