"""What every scheme promises. A new scheme adds a line to SCHEMES and inherits this suite."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sdfeel.core.arrays import Bools, Ints
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network, clustered
from sdfeel.core.partial_mixing import NOBODY
from sdfeel.core.scheme import Memory, Mix, Scheme, View, Work, meanings
from sdfeel.schemes import SCHEMES, AsyncSDFeel, FedAvg, Feel, SDFeel, find
from sdfeel.sim.simulate import Simulation
from tests.quadratic import quadratic
from tests.sim.test_simulate import cost

CLIENTS = 12


def networks() -> list[Network]:
    samples = np.arange(1.0, CLIENTS + 1)
    return [
        clustered(samples, [i % 4 for i in range(CLIENTS)], links("ring", 4)),
        clustered(samples, [0] * 5 + [1] * 4 + [2] * 3, links("star", 3)),
        clustered(samples, [0] * CLIENTS, links("ring", 1)),
        clustered(samples, list(range(CLIENTS)), links("complete", CLIENTS)),
    ]


# Printed as in the paper, its mixing keeps the plain mean; the repair keeps the weighted one.
REPAIRED: dict[str, dict[str, Any]] = {"async-sd-feel": {"balanced": True}}


def rounds(scheme: Scheme, net: Network, count: int = 4) -> list[tuple[View, Work, Mix]]:
    decisions = Decisions.of(scheme, net, cost(CLIENTS), seed=3)
    found = []
    for number in range(len(decisions.lanes)):
        memory: Memory = {}
        for k in range(count):
            view = decisions.view(number, k, memory=memory)
            work = decisions.work(view)
            mix = decisions.mix(view, decisions.cost.done(work))
            found.append((view, work, mix))
            memory = mix.memory
    return found


every_scheme = pytest.mark.parametrize("name", SCHEMES)
every_network = pytest.mark.parametrize("net", networks(), ids=["ring", "star", "one", "single"])


@every_scheme
@every_network
def test_every_server_has_a_lane(name: str, net: Network) -> None:
    scheme = SCHEMES[name]()
    decisions = Decisions.of(scheme, net, cost(CLIENTS))
    assert {d for lane in decisions.lanes for d in lane} == set(decisions.net.servers)


@every_scheme
@every_network
def test_every_client_takes_part_sooner_or_later(name: str, net: Network) -> None:
    scheme = SCHEMES[name]()
    seen = {i for _, work, _ in rounds(scheme, net, 60) for i in work.down.rows.tolist()}
    assert seen == set(scheme.adapt(net).clients.tolist())


@every_scheme
@every_network
def test_models_are_made_of_models_and_differences_of_differences(name: str, net: Network) -> None:
    """The weights of a model's models sum to one, those of a difference to zero.

    What a shelf that begins at zero holds is a difference, and so is an update.
    """
    for view, work, mix in rounds(SCHEMES[name](), net):
        begun = [each for each in view.net.shelves if each.start == "zero"]
        zero = np.concatenate([NOBODY, *(view.net.shelf(each.name) for each in begun)])
        for mixing in (work.down, *mix.stages):
            assert_allclose(_models_in(mixing, zero), ~np.isin(mixing.rows, zero), atol=1e-12)
        if mix.payload == "update":
            zero = np.concatenate([zero, np.arange(CLIENTS)])
        assert_allclose(_models_in(mix.up, zero), ~np.isin(mix.up.rows, zero), atol=1e-12)
        if work.shift is not None:
            assert_allclose(_models_in(work.shift, zero), 0, atol=1e-12)


def _models_in(mixing: Mixing, zero: Ints) -> list[float]:
    """The total weight of models in each row; `zero` are the rows that hold differences."""
    return [float(weights[~np.isin(sources, zero)].sum()) for _, sources, weights in mixing]


@every_scheme
@every_network
def test_mixing_across_keeps_the_weighted_mean(name: str, net: Network) -> None:
    for view, _, mix in rounds(SCHEMES[name](**REPAIRED.get(name, {})), net):
        for stage in mix.stages:
            if (stage.rows >= 0).all() and (stage.sources >= 0).all():
                matrix = np.eye(len(view.net.servers))  # who is not named keeps its model
                matrix[stage.rows] = stage.dense(len(view.net.servers))
                assert_allclose(view.net.mass @ matrix, view.net.mass, atol=1e-12)


@every_scheme
@every_network
def test_only_clients_that_trained_are_averaged(name: str, net: Network) -> None:
    for _, work, mix in rounds(SCHEMES[name](), net):
        came = mix.up.sources[mix.up.sources >= 0]
        assert set(came.tolist()) <= set(work.down.rows.tolist())


@every_scheme
@every_network
def test_whoever_holds_a_row_decides_from_its_own_clients_alone(name: str, net: Network) -> None:
    scheme = SCHEMES[name]()
    for view, work, mix in rounds(scheme, net):
        for row, holder in zip(mix.up.rows, view.net.holder(mix.up.rows), strict=True):
            done, who = cost(CLIENTS).done(work), work.down.rows.tolist()
            if holder >= 0:
                strangers = [i for i in who if holder not in work.down.senders(i)]
            else:
                strangers = [i for i in who if holder != -1 - i]
            done[strangers] += 1
            assert scheme.mix(view, done).up.row(row) == mix.up.row(row)


@every_scheme
@every_network
def test_a_client_that_does_not_arrive_counts_as_absent(name: str, net: Network) -> None:
    """What is remembered and weighed of a client depends on whether it came, not on the plan."""
    scheme = SCHEMES[name]()
    draws = np.random.default_rng(7)
    decisions = Decisions.of(scheme, net, cost(CLIENTS))
    memory: Memory = {}
    for k in range(6):
        view = decisions.view(0, k, memory=memory)
        work = decisions.work(view)
        all_in = decisions.cost.done(work)
        came = np.where(draws.random(CLIENTS) < 0.5, all_in, 0)
        mix, empty = decisions.mix(view, came), decisions.mix(view, np.zeros_like(all_in))
        absent = came == 0
        for key, kept in mix.memory.items():
            if kept.shape == (CLIENTS,):
                assert np.array_equal(kept[absent], empty.memory[key][absent])
        each = [key for key, kept in mix.memory.items() if kept.shape == (CLIENTS,)]
        for i in np.flatnonzero(came).tolist() if each else ():
            assert any(mix.memory[key][i] != empty.memory[key][i] for key in each)
        assert _taken(mix, view.net, absent) == _taken(empty, view.net, absent)
        memory = mix.memory


def _taken(mix: Mix, net: Network, who: Bools) -> dict[tuple[int, int, int], float]:
    """What servers take of what is kept of these clients, by stage, row and source."""
    rows = [net.shelf(shelf.name)[who] for shelf in net.shelves if shelf.per == "client"]
    theirs = set(np.concatenate([NOBODY, *rows]).tolist())
    return {
        (stage, dst, source): weight
        for stage, mixing in enumerate(mix.stages)
        for dst, sources, weights in mixing
        for source, weight in zip(sources.tolist(), weights.tolist(), strict=True)
        if source in theirs and dst not in theirs and weight
    }


@every_scheme
@every_network
def test_the_same_view_gives_the_same_decision(name: str, net: Network) -> None:
    first, second = rounds(SCHEMES[name](), net), rounds(SCHEMES[name](), net)
    for (_, work, mix), (_, again, mix_again) in zip(first, second, strict=True):
        assert np.array_equal(work.down.rows, again.down.rows)
        assert np.array_equal(mix.up.weights, mix_again.up.weights)
        assert mix.memory.keys() == mix_again.memory.keys()
        assert all(np.array_equal(mix.memory[name], mix_again.memory[name]) for name in mix.memory)


@every_scheme
@every_network
def test_it_learns_and_time_goes_forward(name: str, net: Network) -> None:
    draws = np.random.default_rng(0)
    engine = quadratic(3 + 0.1 * draws.normal(size=(CLIENTS, 2)), net.samples.tolist(), 0.1)
    simulation = Simulation(Decisions.of(SCHEMES[name](), net, cost(CLIENTS)), engine)
    first = engine.evaluate(simulation.model()).loss
    times = [0.0]
    while simulation.state.iterations < 75:
        times.append(next(simulation).seconds)
    assert times == sorted(times)
    assert len(set(times)) > len(times) / (1 + len(simulation.state.lanes)) / 2
    assert engine.evaluate(simulation.model()).loss < 0.01 * first


@every_scheme
def test_every_option_is_explained_and_checked(name: str) -> None:
    kind: Any = SCHEMES[name]
    for field in dataclasses.fields(kind):
        assert len(meanings(kind)[field.name]) > 10
        annotation: Any = field.type
        if annotation.__origin__ not in (int, int | None):
            continue
        with pytest.raises(InputError, match=rf"scheme.{field.name} must be at least [01], got -1"):
            kind(**{field.name: -1})
    assert kind.__doc__


@every_scheme
def test_an_option_of_another_kind_is_refused_when_the_scheme_is_made(name: str) -> None:
    kind: Any = SCHEMES[name]
    for field in dataclasses.fields(kind):
        wrong: list[Any] = ["x" if not isinstance(field.default, str) else 3, ["x"], float("nan")]
        wrong += [2.5, True] if type(field.default) is int else []
        for value in wrong:
            with pytest.raises(InputError, match=rf"scheme\.{field.name} must be .*, got "):
                kind(**{field.name: value})


def test_options_of_their_kind_are_taken_as_numpy_gives_them() -> None:
    made = SDFeel(tau1=np.int64(3), tau2=2, alpha=1)  # type: ignore[arg-type]
    assert made == SDFeel(tau1=3, tau2=2, alpha=1)
    with pytest.raises(InputError, match=r"scheme.tau1 must be a whole number, got 1.5"):
        SDFeel(tau1=1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"scheme.deadline must be a number or several of them or"):
        AsyncSDFeel(deadline="soon")  # type: ignore[arg-type]


def test_an_unknown_scheme_is_guessed() -> None:
    assert find("sd-feel") is SCHEMES["sd-feel"]
    with pytest.raises(InputError, match="unknown scheme 'sdfeel': did you mean 'sd-feel'"):
        find("sdfeel")


def test_more_participants_than_clients_are_refused() -> None:
    with pytest.raises(InputError, match="participants is 13, but the network has only 12"):
        FedAvg(participants=13).adapt(networks()[0])
    with pytest.raises(InputError, match="the server reaches only 3 clients"):
        Feel(scheduled=4, pool_size=3).adapt(networks()[0])


@every_scheme
@every_network
def test_a_round_can_end_without_anybodys_model(name: str, net: Network) -> None:
    scheme = SCHEMES[name]()
    for view, _, _ in rounds(scheme, net, 3):
        ending = scheme.mix(view, np.zeros(CLIENTS, dtype=np.int64))
        assert np.isfinite(ending.up.weights).all()
