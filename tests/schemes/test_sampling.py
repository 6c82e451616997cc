"""Client sampling: whatever the scheme, those who are drawn take part, and nobody else."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sdfeel.core.arrays import Ints
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.mixing import broadcast, collect
from sdfeel.core.network import Network
from sdfeel.core.outages import Outages
from sdfeel.core.partial_mixing import restricted
from sdfeel.core.scheme import Mix, View, Work
from sdfeel.core.whereabouts import UNCHANGED, Whereabouts
from sdfeel.experiment.build import prepare
from sdfeel.experiment.schema import Experiment
from sdfeel.schemes import SCHEMES, FedAvg, SDFeel
from sdfeel.schemes.sampling import Drawing, Sampling, sampled
from tests.schemes.test_contract import CLIENTS, every_network, networks, rounds
from tests.sim.test_simulate import cost

DRAWING = [name for name, kind in SCHEMES.items() if kind.tolerates.verdict("sampling") == "yes"]
every_drawing = pytest.mark.parametrize("name", DRAWING)
SOME = (Sampling(clients=2), Sampling(share=0.4))


def _fit(sampling: Sampling, net: Network) -> Sampling:
    largest = max(len(net.cluster(d)) for d in net.servers)
    return sampling if sampling.clients is None else Sampling(min(sampling.clients, largest))


@every_drawing
@every_network
def test_those_who_are_drawn_compute_send_and_are_billed_and_nobody_else(
    name: str, net: Network
) -> None:
    plain = SCHEMES[name]()
    for sampling in (_fit(each, plain.adapt(net)) for each in SOME):
        scheme = sampled(plain, sampling)
        decisions = Decisions.of(scheme, net, cost(CLIENTS), seed=3)
        for view, work, mix in rounds(scheme, net):
            who, home = work.down.rows, view.net.home
            assert len(set(who.tolist())) == len(who)
            for d in view.lane:
                size = len(view.net.cluster(d))
                assert (home[who] == d).sum() == sampling.among(size)
            assert set(np.unique(home[who]).tolist()) == set(view.lane)
            assert set(mix.up.sources[mix.up.sources >= 0].tolist()) <= set(who.tolist())
            for part in (work.shift, work.compare):
                assert part is None or set(part.rows.tolist()) == set(who.tolist())
            holders = view.net.holder(mix.up.rows)
            assert {-1 - int(n) for n in holders if n < 0} <= set(who.tolist())
            bill = decisions.cost.bill(work, mix, decisions.cost.done(work))
            assert len(bill.busy) == len(bill.sending) == len(who)
            assert set(decisions.cost.done(work).nonzero()[0].tolist()) <= set(who.tolist())


@every_drawing
@every_network
def test_a_scheme_with_all_clients_drawn_is_the_scheme_itself(name: str, net: Network) -> None:
    plain = SCHEMES[name]()
    assert sampled(plain, Sampling()) is plain
    pairs = zip(rounds(plain, net), rounds(Drawing(plain, Sampling()), net), strict=True)
    for (_, work, mix), (_, same, again) in pairs:
        ours, theirs = (work.down, mix.up, *mix.stages), (same.down, again.up, *again.stages)
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one.rows, other.rows)
            assert np.array_equal(one.sources, other.sources)
            assert one.weights.tobytes() == other.weights.tobytes()
        assert (work.steps, work.deadline, work.clip) == (same.steps, same.deadline, same.clip)


@every_drawing
@every_network
def test_the_drawn_count_as_if_the_others_had_not_come(name: str, net: Network) -> None:
    """A server's model is the mean of theirs by their data, its update that of their updates."""
    plain = SCHEMES[name]()
    for view, work, mix in rounds(sampled(plain, Sampling(share=0.5)), net):
        done = cost(CLIENTS).done(work)
        alone = restricted(plain.mix(view, done).up, done > 0)
        assert np.array_equal(mix.up.rows, alone.rows)
        assert np.array_equal(mix.up.sources, alone.sources)
        assert_allclose(mix.up.weights, alone.weights, rtol=1e-14)
        if mix.payload == "model":
            for _, sources, weights in mix.up:
                own = view.net.samples[sources]
                assert_allclose(weights, own / own.sum())


def test_everybody_is_drawn_equally_often_and_rounds_are_independent() -> None:
    """Chi-square, of single clients and of how often two rounds in a row draw the same one."""
    net, count, rounds_ = networks()[1], 2, 1500
    decisions = Decisions.of(sampled(SDFeel(), Sampling(count)), net, cost(CLIENTS), seed=11)
    took = np.zeros((rounds_, CLIENTS))
    for k in range(rounds_):
        took[k, decisions.work(decisions.view(0, k)).down.rows] = 1
    for d in net.servers:
        own = net.cluster(d)
        share = count / len(own)
        chances = share * (1 - share)
        apart = (took[:, own].sum(0) - rounds_ * share) / np.sqrt(rounds_ * chances)
        assert (apart**2).sum() * (len(own) - 1) / len(own) < 20  # 5 degrees of freedom at most
        again = (took[1:, own] * took[:-1, own]).mean()
        assert abs(again - share**2) < 0.02


def test_draws_depend_on_seed_round_and_server_alone() -> None:
    net = networks()[1]

    def drawn(seed: int, k: int, scheme: str = "sd-feel", only: Network = net) -> list[int]:
        own = sampled(SCHEMES[scheme](), SOME[0])
        decisions = Decisions.of(own, only, cost(CLIENTS), seed=seed)
        return list(decisions.work(decisions.view(0, k)).down.rows)

    assert drawn(1, 7) == drawn(1, 7) == drawn(1, 7, "hierfavg") == drawn(1, 7, "d2")
    assert len({tuple(drawn(seed, k)) for seed in (1, 2) for k in range(8)}) > 12
    # Whoever else is there, a server draws the same of its own.
    other = replace(net, samples=net.samples + 1)
    assert drawn(1, 7) == drawn(1, 7, only=other)


def test_servers_draw_among_the_clients_that_are_there() -> None:
    net, away = networks()[1], [0, 1, 5]
    none, unsaid = np.zeros(3, dtype=np.int64), np.full(3, UNCHANGED)
    where = Whereabouts(np.zeros(3), np.array(away), unsaid, none)
    scheme = sampled(SDFeel(), Sampling(share=0.6))
    decisions = Decisions.of(scheme, net, cost(CLIENTS), seed=3, outages=Outages(clients=where))
    for k in range(5):
        decided = decisions.round(0, k, began=k)
        home = net.home[decided.work.down.rows]
        assert not set(away) & set(decided.work.down.rows.tolist())
        assert np.bincount(home).tolist() == [2, 2, 2]  # of 3, 3 and 3
        assert decided.clients == 6


@dataclass(frozen=True)
class Stubborn(SDFeel):
    """A user's own scheme, which ignores the draw."""

    def work(self, view: View) -> Work:
        rates = np.linspace(0.5, 1, len(view.net.clients))
        return Work(broadcast(view.net), self.tau1, rates=rates)

    def mix(self, view: View, done: Ints) -> Mix:
        return replace(super().mix(view, done), up=collect(view.net))


@every_network
def test_a_scheme_that_ignores_the_draw_is_held_to_it(net: Network) -> None:
    sampling = Sampling(share=0.5)
    both = (rounds(sampled(scheme, sampling), net) for scheme in (SDFeel(), Stubborn()))
    pairs = zip(*both, strict=True)
    for (_, work, mix), (_, held, same) in pairs:
        assert np.array_equal(work.down.rows, held.down.rows)
        assert held.rates is not None
        assert len(held.rates) == len(held.down.rows)
        assert np.array_equal(mix.up.sources, same.up.sources)
        assert_allclose(mix.up.weights, same.up.weights)


def test_draws_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"sampling.clients is 3 and sampling.share is 0.5, but"):
        Sampling(3, 0.5)
    with pytest.raises(InputError, match=r"sampling.clients must be at least 1"):
        Sampling(0)
    with pytest.raises(InputError, match="no server has more than 5 clients: lower it"):
        sampled(SDFeel(), Sampling(6)).adapt(networks()[1])
    with pytest.raises(InputError, match=r"participants is 3 and sampling.share is set, too"):
        sampled(FedAvg(participants=3), Sampling(share=0.5))


@pytest.mark.parametrize("section", [{"participants": 20}, {}])
def test_a_cloud_may_draw_many(section: dict[str, int]) -> None:
    """More than these tests' networks have; by the scheme's own option, or by `sampling`."""
    own = {} if section else {"sampling": {"clients": 20}}
    ready = prepare(
        Experiment(scheme={"name": "fedavg", **section}, data={"name": "digits"}, **own)
    )
    assert ready.decisions.round(0, 0).clients == 20


def test_a_note_says_that_a_rule_over_a_single_client_has_no_effect() -> None:
    few = {"name": "digits"}, {"clients": 12, "servers": 4}
    for clients, silent in ((1, False), (2, True)):
        ready = prepare(
            Experiment(
                data=few[0],
                network=few[1],
                robust={"cluster": "median"},
                sampling={"clients": clients},
            )
        )
        told = [note for note in ready.notes if "robust.cluster has no effect" in note]
        assert (not told) == silent
