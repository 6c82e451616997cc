"""Servers and links come and go: the weighted mean survives, and training continues."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES, weights_of
from sdfeel.core.graphs import links
from sdfeel.core.mixing import (
    Mixing,
    Relay,
    broadcast,
    cloud_average,
    collect,
    everyones_mean,
    gossip,
)
from sdfeel.core.network import Network, clustered, parts
from sdfeel.core.outages import Change, NetworkState, Outages, schedule
from sdfeel.core.scheme import Mix, Scheme, View, Work
from sdfeel.core.stragglers import StragglerPolicy
from sdfeel.radio.channel import Fading
from sdfeel.run.checkpoint import load_checkpoint, save_checkpoint
from sdfeel.schemes import SCHEMES, AsyncSDFeel, FedAvg, FogFL, HierFavg, SDFeel
from sdfeel.sim.simulate import Simulation
from tests.examples import examples
from tests.quadratic import QuadraticEngine
from tests.sim.test_simulate import cost, ring_of_four, uneven


def changing(text: str = "", **options: Any) -> Outages:
    return Outages(schedule(text, "f"), **options)


def run(
    scheme: Scheme, how: Outages, rounds: int, engine: QuadraticEngine | None = None
) -> Simulation:
    own = uneven() if engine is None else engine
    simulation = Simulation(Decisions.of(scheme, ring_of_four(), cost(12), outages=how), own)
    for _ in islice(simulation, rounds):
        pass
    return simulation


@examples(30)
@given(
    rule=st.sampled_from(sorted(GOSSIP_RULES)),
    graph=st.sampled_from(["ring", "star", "complete", "path"]),
    chance=st.floats(0.05, 0.95),
    up=st.floats(0.5, 5.0),
    number=st.integers(0, 1000),
    seed=st.integers(0, 99),
)
def test_every_moment_keeps_the_weighted_mean(
    rule: str, graph: str, chance: float, up: float, number: int, seed: int
) -> None:
    net = clustered(np.arange(1.0, 15.0), [i % 7 for i in range(14)], links(graph, 7))
    net = replace(net, weights=weights_of(GOSSIP_RULES[rule], net.linked, net.mass))
    how = Outages((), chance, up, 1.0, seed)
    moment = how.at(net, number, number / 10)
    weights, there = mixing_of(moment, gossip(moment.net, 1)), moment.there
    assert (weights >= 0).all() or (net.mixing < 0).any()
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(net.mass @ weights, net.mass, atol=1e-12)
    np.testing.assert_array_equal(moment.net.mass, net.mass)
    assert not (moment.net.links > net.links).any()
    assert (weights[~there] == np.eye(7)[~there]).all()
    for part in parts(moment.net.links):
        outside = np.setdiff1d(np.arange(7), part)
        assert not weights[np.ix_(part, outside)].any()
    assert set(moment.net.home[moment.net.clients].tolist()) == set(np.flatnonzero(there).tolist())


def mixing_of(state: NetworkState, mixing: Mixing) -> Floats:
    """(D, D) the effect of an exchange; a server without a row keeps its model."""
    left, weights = state.across(mixing), np.eye(len(state.there))
    if left is not None:
        weights[left.rows] = left.dense(len(weights))
    return weights


@examples(30)
@given(
    chance=st.floats(0.05, 0.95),
    number=st.integers(0, 1000),
    seed=st.integers(0, 99),
    relayed=st.booleans(),
)
def test_a_mean_made_in_one_place_is_that_of_the_models_that_arrived(
    chance: float, number: int, seed: int, relayed: bool
) -> None:
    net = clustered(np.arange(1.0, 15.0), [i % 7 for i in range(14)], links("ring", 7))
    state = Outages((), chance, 1.0, 1.0, seed).at(net, number, number / 10)
    how = everyones_mean(net, "server-server", Relay(2, 12)) if relayed else cloud_average(net)
    weights = mixing_of(state, how)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(net.mass @ weights, net.mass, atol=1e-12)
    groups = list(parts(state.net.links)) if relayed else [np.flatnonzero(state.there)]
    for group in groups:
        if len(group) > 1 and state.there[group].all():
            share = np.zeros(7)
            share[group] = net.mass[group] / net.mass[group].sum()
            np.testing.assert_allclose(weights[group], np.tile(share, (len(group), 1)))


def test_the_same_state_is_the_same_network() -> None:
    net, how = ring_of_four(), changing("round 3 link 0 1 down\nround 6 link 0 1 up")
    assert how.at(net, 0, 0.0).net is how.at(net, 6, 0.0).net is net
    assert how.at(net, 3, 0.0).net is how.at(net, 5, 9.0).net is not net


def test_chances_are_kept_in_the_long_run() -> None:
    net = clustered(np.ones(10), range(10), links("complete", 10))
    how = Outages((), 0.3, 6.0, 2.0, seed=1)
    moments = [how.at(net, n, n * 0.5) for n in range(4000)]
    up = np.mean([moment.there for moment in moments])
    assert up == pytest.approx(6 / 8, abs=0.03)
    linked = np.mean([moment.net.links.sum() for moment in moments]) / 90
    both = np.mean([moment.there.sum() * (moment.there.sum() - 1) for moment in moments]) / 90
    assert linked == pytest.approx(0.3 * both, abs=0.01)


def test_a_server_that_is_away_keeps_its_model_and_comes_back_with_it() -> None:
    how = changing("round 2 server 1 down\nround 5 server 1 up")
    simulation = run(SDFeel(tau1=2), how, 2)
    before, taken = simulation.state.servers[1].clone(), simulation.state.taken.copy()
    for _ in range(3):
        done = next(simulation)
        assert done.clients == 9
        assert 1 not in done.mixed
        assert torch.equal(simulation.state.servers[1], before)
    assert (simulation.state.taken - taken)[[1, 5, 9]].tolist() == [0, 0, 0]
    assert (simulation.state.taken - taken)[[0, 2, 3]].tolist() == [6, 6, 6]
    assert next(simulation).clients == 12
    assert not torch.equal(simulation.state.servers[1], before)


@pytest.mark.parametrize("scheme", [SDFeel(tau1=2), AsyncSDFeel(), HierFavg()])
def test_each_outage_is_reported_once(scheme: Scheme) -> None:
    how = changing("round 2 server 1 down\nround 5 cloud down\nround 6 server 1 up")
    simulation = Simulation(Decisions.of(scheme, ring_of_four(), cost(12), outages=how), uneven())
    heard = []
    for done in islice(simulation, 12):
        heard += [(done.number, text) for text in simulation.news()]
    assert heard == [
        (2, "server 1 went down after round 2"),
        (5, "the cloud went down after round 5"),
        (6, "server 1 is back with the model it had after round 6"),
    ]


def test_gossip_on_what_is_left_keeps_the_mean_of_all() -> None:
    engine = uneven()
    engine.rate = 0.0  # nothing but mixing
    how = changing("round 1 server 2 down", link_chance=0.6, seed=4)
    simulation = Simulation(Decisions.of(SDFeel(), ring_of_four(), cost(12), outages=how), engine)
    draws = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3)))
    simulation.state.servers[:] = draws
    mean = simulation.model()
    for _ in islice(simulation, 40):
        torch.testing.assert_close(simulation.model(), mean, rtol=0, atol=1e-12)
    others = simulation.state.servers[[0, 1, 3]]
    assert float((others - others.mean(dim=0)).norm()) < 1e-3 * float(draws.norm())
    torch.testing.assert_close(
        simulation.state.servers[2], model_when_it_went_down(draws, simulation, how)
    )


def model_when_it_went_down(models: Tensor, simulation: Simulation, how: Outages) -> Tensor:
    """Server 2's model when it went down: after the first exchange."""
    first = mixing_of(how.at(simulation.net, 0, 0.0), gossip(simulation.net, 1))
    return torch.tensor(first[2]) @ models


def alternating(rounds: int) -> tuple[Change, ...]:
    """Links 0-1 and 2-3 in even rounds, 1-2 and 3-0 in odd ones: never connected, but jointly."""
    first, second = ((0, 1), (2, 3)), ((1, 2), (0, 3))
    lines = []
    for k in range(rounds):
        on, off = (first, second) if k % 2 == 0 else (second, first)
        lines += [Change(k, "round", link, True) for link in on]
        lines += [Change(k, "round", link, False) for link in off]
    return tuple(lines)


@pytest.mark.parametrize(
    "scheme",
    [
        SDFeel(tau1=1),
        pytest.param(AsyncSDFeel(theta_min=1, balanced=True), marks=pytest.mark.slow),
    ],
)
def test_a_graph_that_is_only_jointly_connected_is_enough(scheme: Scheme) -> None:
    engine, rounds = uneven(), 400 if isinstance(scheme, SDFeel) else 800
    how = Outages(alternating(rounds))
    net = ring_of_four()
    assert all(len(list(parts(how.at(net, k, 0.0).net.links))) == 2 for k in (0, 1, 7))
    weights = engine.weights[:, None] * torch.as_tensor(engine.curvature)
    least = (weights * engine.centres).sum(dim=0) / weights.sum(dim=0)
    first = float((engine.initial() - least).norm())
    together = run(scheme, how, rounds, engine)
    split = run(scheme, Outages(alternating(1)), rounds, engine)
    assert float((together.model() - least).norm()) < 0.05 * first
    assert together.spread() < 0.2 * split.spread()
    assert together.distances().max() < 0.5 * split.distances().max()


def test_hierfavg_without_its_cloud_is_a_federation_per_server() -> None:
    simulation = run(HierFavg(tau1=3), changing("round 0 cloud down"), 6)
    for d in range(4):
        mine = [i for i in range(12) if i % 4 == d]
        own = uneven()
        alone = QuadraticEngine(
            own.centres[mine],
            own.rate,
            own.weights[mine],
            torch.as_tensor(own.curvature)[mine],
        )
        net = clustered(np.array(mine) + 1.0, [0] * 3, links("ring", 1))
        theirs = Simulation(Decisions.of(FedAvg(tau1=3), net, cost(3)), alone)
        for _ in islice(theirs, 6):
            pass
        torch.testing.assert_close(simulation.state.servers[d], theirs.model())


def test_the_cloud_averages_those_who_are_there() -> None:
    engine = uneven()
    engine.rate = 0.0
    how = changing("round 0 server 3 down")
    simulation = Simulation(Decisions.of(HierFavg(), ring_of_four(), cost(12), outages=how), engine)
    draws = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3)))
    simulation.state.servers[:] = draws
    mean, whole = (
        simulation.model(),
        Simulation(Decisions.of(HierFavg(), ring_of_four(), cost(12)), engine),
    )
    next(simulation)
    torch.testing.assert_close(simulation.model(), mean)
    torch.testing.assert_close(simulation.state.servers[3], draws[3])
    assert simulation.spread() > 0
    torch.testing.assert_close(simulation.state.servers[0], simulation.state.servers[1])
    assert simulation.state.bytes < next(whole).bytes


def test_an_asynchronous_server_that_is_away_waits_and_nobody_mixes_with_it() -> None:
    how = changing("second 0 server 1 down\nsecond 2 server 1 up")
    simulation = Simulation(
        Decisions.of(AsyncSDFeel(), ring_of_four(), cost(12), outages=how), uneven()
    )
    away = back = 0
    for done in islice(simulation, 60):
        if done.lane == (1,):
            idle = done.clients == 0
            away, back = away + idle, back + (not idle)
            assert (not idle) or (done.energy["computing"] == 0 and done.phases["mix"] == 0)
            assert not (idle and back)
        elif done.seconds < 2:
            assert 1 not in done.mixed
            assert torch.equal(simulation.state.servers[1], uneven().initial())
    assert away >= 1
    assert back >= 1


def test_time_passes_in_a_round_in_which_nobody_trains() -> None:
    text = "\n".join(f"round 1 server {d} down\nround 3 server {d} up" for d in range(4))
    simulation = Simulation(
        Decisions.of(SDFeel(), ring_of_four(), cost(12), outages=changing(text)), uneven()
    )
    rounds = list(islice(simulation, 4))
    assert [done.clients for done in rounds] == [12, 0, 0, 12]
    assert rounds[1].bytes == rounds[2].bytes == rounds[0].bytes
    np.testing.assert_allclose(np.diff([done.seconds for done in rounds]), rounds[0].seconds)


class Insistent(SDFeel):
    """Every server takes everyone's mean, whatever the graph is."""

    def mix(self, view: View, done: Ints) -> Mix:
        net = view.net
        return Mix(collect(net), everyones_mean(net, "server-server", Relay(2, 6)))


def test_everyones_mean_becomes_that_of_the_servers_that_paths_join() -> None:
    simulation = run(Insistent(), changing("round 2 server 1 down"), 4)
    left = simulation.state.servers[[0, 2, 3]]
    torch.testing.assert_close(left, left[:1].expand(3, -1))


def test_fogfl_averages_within_each_part_of_a_graph_that_has_come_apart() -> None:
    """A ring of four without server 0: 1-2-3. Then without the link 2-3, too: 1-2 and 3."""
    how = changing("round 0 server 0 down\nround 1 link 2 3 down")
    simulation = Simulation(Decisions.of(FogFL(1), ring_of_four(), cost(12), outages=how), uneven())
    first = simulation.state.servers[0].clone()
    next(simulation)
    servers = simulation.state.servers
    assert torch.equal(servers[0], first)
    assert torch.equal(servers[1], servers[2])
    assert torch.equal(servers[2], servers[3])
    next(simulation)
    servers = simulation.state.servers
    assert torch.equal(servers[1], servers[2])
    assert not torch.equal(servers[2], servers[3])


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_lives_with_failures(name: str) -> None:
    """Schemes without edge servers make one server of them, which never fails."""
    scheme = SCHEMES[name]()
    how = changing("", link_chance=0.7, up_seconds=1.0, down_seconds=0.5, seed=2)
    if len(scheme.adapt(ring_of_four()).servers) == 1:
        how = changing("", link_chance=0.7)
    simulation = run(scheme, how, 30)
    assert torch.isfinite(simulation.model()).all()
    assert simulation.state.iterations > 0


@pytest.mark.parametrize("scheme", [SDFeel(tau1=2), AsyncSDFeel()])
def test_a_resumed_run_has_the_same_bits(scheme: Scheme, tmp_path: Path) -> None:
    """Fading, dropped clients, failing servers and links, saved and loaded in the middle."""
    net = ring_of_four()

    def simulation(**more: Any) -> Simulation:
        channel = Fading(np.ones(12), np.full(12, 30.0), 1.5, 0.8, seed=3)
        how = changing("", link_chance=0.6, up_seconds=1.5, down_seconds=0.7, seed=3)
        prices = replace(cost(12), channel=channel)
        return Simulation(
            Decisions.of(scheme, net, prices, late=StragglerPolicy("drop", 0.5), outages=how),
            uneven(),
            **more,
        )

    whole = simulation()
    events = list(islice(whole, 40))
    first = simulation()
    list(islice(first, 17))
    save_checkpoint(tmp_path, first.state, {})
    saved = load_checkpoint(tmp_path)
    assert saved is not None
    second = simulation(state=saved[0])
    assert list(islice(second, 23)) == events[17:]
    assert torch.equal(second.state.models, whole.state.models)
    assert len({done.clients for done in events}) > 2


def test_every_link_has_its_own_rate() -> None:
    """The slowest link in use decides: a hop over 0-1 takes twice as long as any other."""
    rates: Floats = links("ring", 4).copy()
    rates[0, 1] = rates[1, 0] = 0.5
    net: Network = ring_of_four()
    whole = replace(cost(12), server_rates=rates)
    hop, upload, step = 1e6 / 50e6, 1e6 / 5e6, 0.01
    both = Simulation(
        Decisions.of(SDFeel(1), net, whole, outages=changing("round 1 link 0 1 down")), uneven()
    )
    seconds = [done.phases["mix"] for done in islice(both, 2)]
    assert seconds == pytest.approx([2 * hop, hop])
    clouds = replace(cost(12), cloud_rates=np.array([1, 1, 0.25, 1]))
    done = next(Simulation(Decisions.of(HierFavg(1), net, clouds), uneven()))
    assert done.seconds == pytest.approx(step + upload + 4 * upload)
    away = changing("round 0 server 2 down")
    done = next(Simulation(Decisions.of(HierFavg(1), net, clouds, outages=away), uneven()))
    assert done.seconds == pytest.approx(step + upload + upload)
    full = clustered(np.ones(12), [i % 4 for i in range(12)], links("complete", 4))
    slow = replace(cost(12), server_rates=np.where(links("complete", 4) > 0, 0.25, 0))
    done = next(Simulation(Decisions.of(FogFL(1), full, slow), uneven()))
    assert done.phases["mix"] == pytest.approx(2 * 4 * hop)


@examples(10)
@given(
    name=st.sampled_from(["async-sd-feel", "sd-feel", "fedmes", "hierfavg"]),
    up=st.floats(0.05, 0.5),
    seed=st.integers(0, 999),
)
def test_nobody_works_for_two_servers_at_a_time_while_one_is_away(
    name: str, up: float, seed: int
) -> None:
    net = ring_of_four()
    reach = tuple((d, (d + 1) % 4) if n % 2 else (d,) for n, (d,) in enumerate(net.reach))
    speeds = np.random.default_rng(seed).uniform(0.005, 0.05, 12)
    how = Outages((), 1.0, up, up / 2, seed)
    decisions = Decisions.of(
        SCHEMES[name](),
        replace(net, reach=reach),
        replace(cost(12), step_seconds=speeds),
        outages=how,
    )
    simulation = Simulation(decisions, uneven())
    free = np.zeros(12)  # when each client has finished what it was given
    seen: set[tuple[int, int]] = set()
    for _ in islice(simulation, 60):
        for each in simulation.state.lanes:
            if (each.number, each.k) in seen:
                continue
            seen.add((each.number, each.k))
            plan = simulation._decided(each)
            who = plan.work.down.rows
            assert (free[who] <= each.since * (1 + 1e-9)).all()
            free[who] = each.since + plan.bill.busy + plan.bill.sending


class Careless(SDFeel):
    """Gives work to clients of servers that are down, too."""

    def work(self, view: View) -> Work:
        return Work(broadcast(view.net, np.arange(len(view.net.home))), self.tau1)


def test_a_scheme_that_gives_work_to_clients_without_a_server_is_refused() -> None:
    told = "Careless gives work to client [0-9]+, which reaches no server in this round"
    with pytest.raises(InputError, match=told):
        run(Careless(), changing("round 1 server 2 down"), 3)
    assert run(Careless(), changing(), 3).state.number == 3
