"""Sums under masks: nobody's update is in one that is too small, whoever is away or late."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Ints, floats, ints
from sdfeel.core.decide import Decisions
from sdfeel.core.masked_sums import threshold_of
from sdfeel.core.mixing import broadcast, collect
from sdfeel.core.outages import Outages
from sdfeel.core.scheme import Mix, View, Work
from sdfeel.core.stragglers import StragglerPolicy
from sdfeel.core.whereabouts import UNCHANGED, Whereabouts
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation
from tests.core.test_stragglers import faded
from tests.examples import examples
from tests.sim.test_simulate import ring_of_four, uneven


class Some(SDFeel):
    """Asks arbitrary clients, different ones in every round."""

    def work(self, view: View) -> Work:
        who = whims(view.seed, view.k)
        return Work(broadcast(view.net, who), 2, rates=np.ones(len(who)))

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(collect(view.net, done.nonzero()[0]))


def whims(seed: int, k: int) -> Ints:
    draws = np.random.default_rng([seed, k])
    return np.flatnonzero(draws.random(12) < draws.random())


@examples(25)
@given(least=st.integers(2, 4), deadline=st.floats(0.2, 0.5), seed=st.integers(0, 999))
def test_every_sum_has_as_many_clients_as_it_needs(least: int, deadline: float, seed: int) -> None:
    """Three clients at each server; some are not asked, and others are late."""
    late = StragglerPolicy("drop", deadline)
    plain = Decisions.of(Some(), ring_of_four(), faded(seed), seed, late=late)
    decisions = replace(plain, least=least)
    for k in range(4):
        asked = np.bincount(plain.net.home[whims(seed, k)], minlength=4).tolist()
        found, usual = decisions.round(0, k), plain.round(0, k)
        sizes = {dst: len(sources) for dst, sources, _ in found.mix.up}
        usually = {dst: len(sources) for dst, sources, _ in usual.mix.up}
        enough = [n >= least and usually.get(d, 0) >= threshold_of(n) for d, n in enumerate(asked)]
        assert sizes == {d: n for d, n in usually.items() if enough[d]}
        assert found.done.astype(bool).sum() == sum(sizes.values()) == found.clients
        assert set(np.flatnonzero(found.done)) == set(found.mix.up.sources.tolist())


def test_a_server_without_a_sum_keeps_its_model() -> None:
    simulation = Simulation(
        Decisions.of(Some(tau2=9), ring_of_four(), faded()).with_masked_sums, uneven()
    )
    asked = np.bincount(ring_of_four().home[whims(0, 0)], minlength=4)
    next(simulation)
    moved = (simulation.state.servers != uneven().initial()).any(dim=1)
    least = simulation.decisions.least
    assert moved.tolist() == torch.tensor(asked >= least).tolist()
    assert 0 < moved.sum() < 4


@examples(10)
@given(seed=st.integers(0, 999))
def test_time_passes_in_a_round_without_any_sum(seed: int) -> None:
    """Clients rest by the clock: in a round that took no time, nobody would ever come back."""
    draws = np.random.default_rng(seed)
    when, who = np.sort(draws.uniform(0, 3, 36)), ints(np.arange(36) % 12)
    there = ints(draws.random(36) < 0.3)  # few
    traced = Whereabouts(floats(when), who, ints(np.full(36, UNCHANGED)), there, period=3.0)
    outages = Outages(clients=traced)
    plain = Decisions.of(SDFeel(tau2=99), ring_of_four(), faded(seed), seed, outages=outages)
    decisions, seconds, alone = replace(plain, least=3), 0.0, 0
    for k in range(40):
        found = decisions.round(0, k, seconds=seconds)
        assert found.bill.seconds > 0
        alone += found.clients == 0
        seconds += found.bill.seconds
    assert alone  # there was such a round
