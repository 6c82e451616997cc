"""What is reused from an earlier round is what would be computed anew."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core import graphs
from sdfeel.core.cost import Bill, Cost, Overheads
from sdfeel.core.decide import Begun, Decisions, uses_hearsay
from sdfeel.core.mixing import Mixing, star_among
from sdfeel.core.network import RECENT, Network, clustered
from sdfeel.core.outages import Outages
from sdfeel.core.scheme import Scheme
from sdfeel.core.staleness import PSI, Clocks, trust
from sdfeel.core.stragglers import StragglerPolicy
from sdfeel.radio.channel import Fading
from sdfeel.schemes import AsyncSDFeel, FedAsync, FedBuff
from sdfeel.schemes.sampling import Sampling, sampled
from tests.examples import examples

CLIENTS, SERVERS = 12, 4
ONE_BY_ONE: list[Scheme] = [
    FedAsync(tau1=2),
    FedAsync(psi="hinge", psi_b=1.0),
    FedBuff(tau1=3),
    FedBuff(tau1=3, buffer=2),  # its lanes end in two ways again and again
]
BY_SERVER: list[Scheme] = [
    AsyncSDFeel(theta_min=2),
    AsyncSDFeel(staleness="touched", psi="exponential", balanced=True),
    AsyncSDFeel(staleness="hearsay"),
]


@examples(60)
@given(
    scheme=st.sampled_from(ONE_BY_ONE + BY_SERVER),
    graph=st.sampled_from(["ring", "star", "complete"]),
    disturbed=st.sampled_from(["not", "links", "servers", "late", "fading", "drawn", "connecting"]),
    seed=st.integers(0, 99),
)
def test_a_reused_round_is_what_a_new_network_would_decide(
    scheme: Scheme, graph: str, disturbed: str, seed: int
) -> None:
    kept, anew = (decisions(scheme, graph, disturbed, seed) for _ in range(2))
    draws = np.random.default_rng(seed)
    clocks = Clocks.fresh(len(kept.net.servers), uses_hearsay(kept))
    begun: list[Begun | None] = [None] * len(kept.lanes)
    ks, began = [0] * len(kept.lanes), [0] * len(kept.lanes)
    for number in draws.integers(0, len(kept.lanes), 40).tolist():
        before = begun[number]
        where = number, ks[number]
        if before is not None:
            known: Any = about(began[number])
            ended = kept.ended(before, *where, clocks, **known)
            same(ended, Begun.of(renewed(anew).round(*where, clocks, **known), anew.net))
            lane = kept.lanes[number]
            met = {d for stage in ended.mix.stages for d in stage.places[0] if d >= 0}
            clocks = clocks.after(lane, sorted(met | set(lane)))
            ks[number] += 1
        where, began[number] = (number, ks[number]), clocks.number
        known = about(began[number])
        begun[number] = found = kept.begun(before, *where, clocks, **known)
        anew_begun = Begun.of(renewed(anew).round(*where, clocks, **known), anew.net)
        same(found, anew_begun, weighed=not kept._asks_only_at_end)


def decisions(scheme: Scheme, graph: str, disturbed: str, seed: int) -> Decisions:
    draws = np.random.default_rng(seed)
    net = network(graph, draws)
    kinds = ("client-server", "server-server", "server-cloud", "client-cloud")
    rates = dict.fromkeys(kinds, 1e3)
    cost = Cost(draws.uniform(1, 3, CLIENTS), 700.0, rates)  # type: ignore[arg-type]
    out, late = None, None
    one_by_one = scheme in ONE_BY_ONE
    if disturbed == "links" and not one_by_one:
        out = Outages(link_chance=0.6, seed=seed)
    elif disturbed == "servers" and not one_by_one:
        out = Outages(up_seconds=3.0, seed=seed)
    elif disturbed == "late":
        late = StragglerPolicy("drop", 30.0)
    elif disturbed == "fading":
        cost = replace(cost, channel=Fading(np.ones(CLIENTS), np.full(CLIENTS, 9.0), seed=seed))
    elif disturbed == "connecting":
        cost = replace(cost, overheads=Overheads(connect=5.0))
    elif disturbed == "drawn" and not one_by_one:
        scheme = sampled(scheme, Sampling(share=0.5))
    return Decisions.of(scheme, net, cost, seed, late=late, outages=out)


def network(graph: str, draws: np.random.Generator) -> Network:
    home = np.arange(CLIENTS) % SERVERS
    return clustered(
        draws.integers(1, 9, CLIENTS).astype(float), home, graphs.links(graph, SERVERS)
    )


def renewed(anew: Decisions) -> Decisions:
    """The same, with a network and prices about which nothing has been worked out."""
    return replace(anew, net=replace(anew.net), cost=replace(anew.cost))


def about(began: int) -> dict[str, Any]:
    return {"began": began, "seconds": 2.0 * began, "memory": {}, "measured": None}


def same(one: Begun, other: Begun, weighed: bool = True) -> None:
    assert one.clients == other.clients
    assert one.length == other.length
    assert np.array_equal(one.steps, other.steps)
    assert_same(one.work.down, other.work.down)
    assert (one.work.copies, one.work.broadcasts) == (other.work.copies, other.work.broadcasts)
    assert one.mix.payload == other.mix.payload
    assert priced(one.bill) == priced(other.bill)
    for left, right in zip(mixings(one, weighed), mixings(other, weighed), strict=True):
        assert_same(left, right, weighed)


def mixings(begun: Begun, weighed: bool) -> list[Mixing]:
    """A round's mixings: all, or without weights only those in which models travel."""
    found = [begun.mix.up, *begun.mix.stages]
    return found if weighed else [each for each in found if each.crossings or each.messages]


def assert_same(one: Mixing, other: Mixing, weighed: bool = True) -> None:
    for name in ("rows", "starts", "sources", "weights")[: 4 if weighed else 3]:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert (one.via, one.hops, one.relay) == (other.via, other.hops, other.relay)
    assert (one.crossings, one.messages, one.places) == (
        (other.crossings, other.messages, other.places)
    )


def priced(bill: Bill) -> tuple[object, ...]:
    lists = bill.busy.tolist(), bill.sending.tolist()
    return bill.compute, bill.upload, bill.mix, bill.bytes, dict(bill.energy), *lists


@examples(200)
@given(age=st.integers(0, 2**40), psi=st.sampled_from(sorted(PSI)), a=st.floats(0.01, 500.0))
def test_a_scheme_repeats_its_messages_only_if_all_neighbours_always_count(
    age: int, psi: Any, a: float
) -> None:
    scheme, ages = AsyncSDFeel(psi=psi, psi_a=a), np.array([age, age // 2, 0])
    net = clustered([1, 1, 1], [0, 1, 2], graphs.links("ring", 3))
    whole = star_among(net, 0, np.ones(3))
    if scheme.repeats:
        found = star_among(net, 0, trust(psi, ages, a, scheme.psi_b))
        assert found.places == whole.places
    else:
        assert psi in ("exponential", "polynomial"), "only these come down to nothing"


def test_a_network_keeps_a_limited_number_of_recent_results() -> None:
    net = network("ring", np.random.default_rng(0))
    made: list[int] = []
    for n in (*range(3), *range(3), *range(2 * RECENT)):
        net.recent(n, partial(made.append, n))
    assert made == list(range(2 * RECENT)), "each once, while it is kept"
    assert len(net.memo["recent"]) <= RECENT
