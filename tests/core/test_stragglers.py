"""Late clients: whatever is done about them, weighted sums stay weighted means."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import Floats
from sdfeel.core.cost import Cost
from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import broadcast, of_rows
from sdfeel.core.network import Network, clustered
from sdfeel.core.partial_mixing import restricted
from sdfeel.core.scheme import Scheme
from sdfeel.core.stragglers import Policy, RoundPlan, StragglerPolicy
from sdfeel.radio.channel import Fading
from sdfeel.schemes import (
    SCHEMES,
    Adaptive,
    AsyncSDFeel,
    FedAsync,
    FedMes,
    FedSA,
    JointScheduling,
    SDFeel,
)
from sdfeel.sim.simulate import Simulation
from tests.examples import examples
from tests.sim.test_simulate import RATES, ring_of_four, uneven

UPLOAD = 0.2  # seconds, of a client whose radio is 1
STEPS = np.linspace(0.01, 0.12, 12)


def price(radio: Floats | None = None, **changes: Any) -> Cost:
    return Cost(STEPS, 1e6, RATES, client_rates=radio, **changes)  # type: ignore[arg-type]


def faded(seed: int = 1) -> Cost:
    return price(channel=Fading(np.ones(12), np.full(12, 30.0), seed=seed))


def decided(
    late: StragglerPolicy, cost: Cost, scheme: Scheme | None = None, net: Network | None = None
) -> Decisions:
    own = SDFeel(tau1=2) if scheme is None else scheme
    return Decisions.of(own, ring_of_four() if net is None else net, cost, late=late)


def settled(late: StragglerPolicy, cost: Cost, scheme: Scheme | None = None) -> RoundPlan:
    decisions = decided(late, cost, scheme)
    return decisions.plan(decisions.view(0))


def run(late: StragglerPolicy | None, cost: Cost, scheme: Scheme, rounds: int = 8) -> Simulation:
    simulation = Simulation(Decisions.of(scheme, ring_of_four(), cost, late=late), uneven())
    for _ in islice(simulation, rounds):
        pass
    return simulation


@pytest.mark.parametrize("policy", ["drop", "drop-unbiased"])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_deadline_that_all_meet_is_the_same_as_waiting(name: str, policy: Policy) -> None:
    patient, strict = (
        run(late, price(), SCHEMES[name]()) for late in (None, StragglerPolicy(policy, 1e6))
    )
    assert torch.equal(patient.state.models, strict.state.models)
    assert patient.state.seconds == strict.state.seconds
    assert patient.state.joules == strict.state.joules


def test_those_who_arrive_share_the_weight_of_those_who_do_not() -> None:
    """Client 11 is late; its server 3 averages clients 3 and 7 by their samples 4 and 8."""
    found = settled(StragglerPolicy("drop", 2 * STEPS[10] + UPLOAD), price())
    assert found.mix.up.row(3) == pytest.approx({3: 1 / 3, 7: 2 / 3})
    assert found.mix.up.row(2) == pytest.approx({2: 3 / 21, 6: 7 / 21, 10: 11 / 21})
    assert found.done.tolist() == [2] * 11 + [0]
    assert found.lost == 1


@examples(25)
@given(deadline=st.floats(0.23, 0.5), tau1=st.integers(1, 3), seed=st.integers(0, 99))
def test_sums_sum_to_one_and_a_round_never_outlasts_its_deadline(
    deadline: float, tau1: int, seed: int
) -> None:
    channel = faded(seed).at((0, 1, 2, 3), seed, 0.0)
    found = settled(StragglerPolicy("drop", deadline), channel, SDFeel(tau1=tau1))
    for _, sources, weights in found.mix.up:
        assert weights.sum() == pytest.approx(1)
        assert (found.done[sources] == tau1).all()
    bill = channel.bill(found.work, found.mix, found.spent)
    assert bill.compute + bill.upload <= deadline * (1 + 1e-9)
    assert (bill.busy <= deadline * (1 + 1e-9)).all()


def test_a_server_to_which_nobody_comes_keeps_its_model_and_gossips() -> None:
    radio = np.where(np.arange(12) % 4 == 2, 1e-3, 1.0)
    scheme = SDFeel(tau1=1, tau2=5)
    simulation = run(StragglerPolicy("drop", 1.0), price(radio), scheme, rounds=1)
    assert torch.equal(simulation.state.servers[2], uneven().initial())
    assert not torch.equal(simulation.state.servers[1], uneven().initial())
    for _ in range(4):
        done = next(simulation)
    assert done.clients == 9
    assert not torch.equal(simulation.state.servers[2], uneven().initial())


def test_a_late_clients_message_costs_nothing_and_its_lost_steps_are_not_counted() -> None:
    radio = np.where(np.arange(12) == 5, 1e-3, 1.0)
    strict = run(StragglerPolicy("drop", 1.0), price(radio), SDFeel(), rounds=1)
    patient = run(None, price(radio), SDFeel(), rounds=1)
    assert strict.state.bytes == patient.state.bytes - 1e6 / 8
    assert strict.state.taken[5] == 0
    assert strict.state.taken[6] == 5
    assert strict.state.seconds == pytest.approx(1.0 + 1e6 / 50e6)


def test_when_nobody_comes_nothing_is_learned_and_time_passes() -> None:
    late = StragglerPolicy("drop", 1e-3)
    for scheme in (SDFeel(), FedAsync(), AsyncSDFeel()):
        simulation = run(late, faded(), scheme, rounds=3)
        assert torch.equal(simulation.model(), uneven().initial())
        assert simulation.state.seconds > 0
        assert simulation.state.iterations == 0


def test_a_deadline_that_nobody_keeps_is_refused() -> None:
    late, scheme = StragglerPolicy("drop", 0.2), SDFeel(tau1=1)
    with pytest.raises(InputError, match=r"even the fastest client needs 0\.21 seconds: raise it"):
        decided(late, price(), scheme).check_deadline()
    # A channel may be better another time; computing takes as long as it takes.
    decided(late, faded(), scheme).check_deadline()
    short = StragglerPolicy("drop", 0.009)
    with pytest.raises(InputError, match=r"even the fastest client needs 0\.01 seconds"):
        decided(short, faded(), scheme).check_deadline()
    decided(StragglerPolicy(), price(), scheme).check_deadline()


def test_a_deadline_that_channels_hardly_ever_let_anybody_keep_is_refused() -> None:
    hopeless, hard = StragglerPolicy("drop", 0.08), StragglerPolicy("drop", 0.15)
    with pytest.raises(InputError, match=r"radio\.fading.* of the rounds: raise it"):
        decided(hopeless, faded(), SDFeel(tau1=1)).check_deadline()
    decided(hard, faded(), SDFeel(tau1=1)).check_deadline()


def test_a_scheme_learns_when_no_model_arrived() -> None:
    """What a scheme remembers must be what happened."""
    impatient = StragglerPolicy("drop", 0.05)
    found = settled(impatient, price(), JointScheduling(tau1=1))
    waited = np.ones(12)
    waited[found.work.down.rows] = -1.0  # asked in vain: the others come first
    assert 0 < len(found.work.down.rows) < 12
    assert found.mix.memory["waited"].tolist() == waited.tolist()
    later = settled(impatient, price(), Adaptive(tau_max=10))
    assert later.mix.memory["choice"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("scheme", [SDFeel(tau1=1), AsyncSDFeel(theta_min=1)])
def test_unbiased_weights_are_right_on_average(scheme: Scheme) -> None:
    late, cost = StragglerPolicy("drop-unbiased", 0.4), faded()
    own = decided(late, cost, scheme)
    wanted = settled(StragglerPolicy(), price(), scheme).mix.up
    total = np.zeros(12)
    rounds = 1500
    for k in range(rounds):
        mix = own.plan(own.view(0), cost.at((0,), k, 0.0)).mix
        assert mix.payload == "update"
        np.add.at(total, mix.up.sources, mix.up.weights)
    expected = np.zeros(12)
    np.add.at(expected, wanted.sources, wanted.weights)
    np.testing.assert_allclose(total / rounds, expected, rtol=0.08)


def test_unbiased_needs_clients_that_start_at_home() -> None:
    overlapping = replace(ring_of_four(), reach=((0, 1), *ring_of_four().reach[1:]))
    late, cost = StragglerPolicy("drop-unbiased", 0.4), faded()
    for scheme, net in ((FedMes(), overlapping), (JointScheduling(), ring_of_four())):
        decisions = decided(late, cost, scheme, net)
        with pytest.raises(InputError, match=r"network\.overlap .* set latency\.late to drop"):
            decisions.check_deadline()
        with pytest.raises(InputError, match=r"set latency\.late to drop"):
            decisions.plan(decisions.view(0), cost.at((0,), 0, 0.0))


@pytest.mark.parametrize("scheme", [SDFeel(tau1=1), AsyncSDFeel(theta_min=1)])
def test_equalised_clients_of_a_cell_end_at_once_and_sooner(scheme: Scheme) -> None:
    cost = price(np.linspace(0.5, 2.0, 12))
    patient, fair = (
        settled(StragglerPolicy(policy), cost, scheme) for policy in ("wait", "equalise")
    )
    before, after = (cost.bill(found.work, found.mix, found.spent) for found in (patient, fair))
    assert after.seconds < before.seconds
    who = fair.work.down.rows
    begins = after.busy if np.isinf(fair.work.deadline) else np.full(len(who), fair.work.deadline)
    assert fair.work.share is not None
    for d in range(4):
        cell = who % 4 == d
        if cell.any():
            np.testing.assert_allclose(
                (begins + after.sending)[cell], (begins + after.sending)[cell][0]
            )
            assert fair.work.share[cell].sum() == pytest.approx(3)


def test_equal_clients_have_equal_shares_and_a_schemes_own_shares_stand() -> None:
    cost = replace(price(), step_seconds=np.full(12, 0.01))
    assert settled(StragglerPolicy("equalise"), cost).work.share == pytest.approx(np.ones(12))
    own = settled(StragglerPolicy(), price(), JointScheduling()).work.share
    np.testing.assert_array_equal(
        settled(StragglerPolicy("equalise"), price(), JointScheduling()).work.share, own
    )


@pytest.mark.parametrize("policy", ["drop", "equalise"])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_gets_along_with_late_clients(name: str, policy: Policy) -> None:
    simulation = Simulation(
        Decisions.of(
            SCHEMES[name](),
            ring_of_four(),
            faded(),
            late=StragglerPolicy(policy, 0.9 if policy == "drop" else None),
        ),
        uneven(),
    )
    rounds = list(islice(simulation, 12))
    assert torch.isfinite(simulation.model()).all()
    assert any(done.clients for done in rounds)
    assert (np.diff([done.seconds for done in rounds]) >= 0).all()


@pytest.mark.parametrize(
    ("policy", "seconds", "message"),
    [
        ("drop", None, "needs a deadline: set latency.deadline_seconds"),
        ("wait", 3.0, "latency.deadline_seconds is 3, but latency.late is 'wait'"),
        ("equalise", 3.0, "has no deadline"),
        ("drop", 0.0, "must be above 0, got 0"),
    ],
)
def test_policies_and_deadlines_must_fit(
    policy: Policy, seconds: float | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        StragglerPolicy(policy, seconds)


def test_what_is_left_of_a_mixing() -> None:
    mixing = of_rows({0: {0: 0.5, 1: 0.5}, 1: {1: 1.0}, -1: {-2: 1.0}})
    there = np.array([True, False])
    assert restricted(mixing, np.array([True, True])) is mixing
    left = restricted(mixing, there)
    assert left.rows.tolist() == [0, -1]
    assert left.row(0) == {0: 1.0}
    assert restricted(mixing, there, whole=False).row(0) == {0: 0.5}
    assert restricted(mixing, np.array([True, True]), there).rows.tolist() == [0, -1]
    net = clustered([1, 1], [0, 0], links("ring", 1))
    assert len(restricted(broadcast(net), np.array([False])).rows) == 0


def test_a_client_that_began_in_an_earlier_round_needs_only_the_rest_of_its_time() -> None:
    """FedSA: a cycle of client i takes 0.4 + 5 (i + 1) / 100 seconds, 0.45 to 1.0; half of them
    are waited for, but no longer than 0.5."""
    late, scheme = StragglerPolicy("drop", 0.5), FedSA()
    simulation = run(late, price(), scheme, rounds=0)
    rounds = list(islice(simulation, 24))
    assert rounds[0].clients == 2  # 0.45 and 0.5 seconds; the sixth client's 0.7 is too long
    assert rounds[0].seconds == pytest.approx(0.5)
    assert all(done.phases["compute"] + done.phases["upload"] <= 0.5 + 1e-9 for done in rounds)
    joined = simulation.state.lanes[0].memory["joined"]
    assert (joined > 0).all()  # the slowest need two rounds, and come
    assert simulation.state.taken.tolist() == (5 * joined).tolist()


def test_a_model_that_has_not_come_yet_does_not_count() -> None:
    late = StragglerPolicy("drop", 0.5)
    decisions = decided(late, price(), FedSA())
    plan = decisions.plan(decisions.view(0))
    assert plan.work.down.rows.tolist() == [0, 1]
    began = decisions.net.shelf("began")
    (blend,) = plan.mix.stages
    assert set(blend.sources.tolist()) == {0, *began[:2].tolist()}
    assert plan.lost == 0
    left = plan.mix.memory["left"]
    np.testing.assert_allclose(left, [0.45, 0.5, *(0.05 * np.arange(1, 11))], atol=1e-12)


def test_a_round_in_which_nobody_arrives_brings_late_models_nearer() -> None:
    simulation = run(StragglerPolicy("drop", 0.2), price(), FedSA(), rounds=0)
    rounds = list(islice(simulation, 12))
    assert [done.clients for done in rounds[:3]] == [0, 0, 4]  # whose cycles take up to 0.6
    assert simulation.state.iterations > 0
