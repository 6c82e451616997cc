"""Compressed messages: what is saved, what is lost, and what must not change."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.core.errors import InputError
from sdfeel.core.events import Finished
from sdfeel.core.mixing import gossip, of_rows
from sdfeel.engine.messages import Codec, Compress, Packing, TopK, Uniform
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.run.session import resume, start
from sdfeel.schemes import SDFeel
from sdfeel.sim.simulate import Simulation
from tests.quadratic import QuadraticEngine, quadratic
from tests.sim.test_simulate import cost, ring_of_four


def engine() -> QuadraticEngine:
    draws = np.random.default_rng(1)
    own = quadratic(draws.normal(size=(12, 20)), np.arange(1, 13), 0.05)
    own.curvature = torch.from_numpy(draws.uniform(0.2, 2, size=(12, 20)))
    return own


def minimum(own: QuadraticEngine) -> Tensor:
    weights = own.weights[:, None] * torch.as_tensor(own.curvature)
    return (weights * own.centres).sum(dim=0) / weights.sum(dim=0)


def run(rounds: int, up: Codec | None = None, across: Codec | None = None) -> Simulation:
    packing = Packing((15, 5), 3, () if up is None else (Compress(up),), across)
    simulation = Simulation(
        Decisions.of(SDFeel(tau1=1), ring_of_four(), cost(12)), engine(), packing=packing
    )
    for _ in islice(simulation, rounds):
        pass
    return simulation


@pytest.mark.parametrize("codec", [Uniform(2), Uniform(4), TopK(share=0.2)])
def test_what_messages_lose_is_sent_later(codec: Codec) -> None:
    """Training comes as near to the minimum as with whole models; one message does not."""
    least = minimum(engine())
    whole, packed = run(250), run(250, codec, codec)
    first = float((packed.engine.initial() - least).norm())
    assert float((whole.model() - least).norm()) < 0.02 * first
    assert float((packed.model() - least).norm()) < 0.12 * first
    assert not torch.equal(whole.model(), packed.model())


def test_what_clients_owe_adds_up() -> None:
    """Everything that a client computed is in its messages or in its debt."""
    simulation = run(3, TopK(k=2))
    assert set(simulation.state.owed) == set(range(12))
    assert all(int((debt != 0).sum()) >= 16 for debt in simulation.state.owed.values())


def test_exchanges_keep_the_weighted_mean_whatever_is_lost() -> None:
    simulation = run(5)
    packing = Packing((15, 5), 3, (), TopK(k=1))
    state, net = simulation.state, simulation.net
    state.public = state.servers.clone() + 0.1
    before = simulation.model()
    moved = packing.exchange(state.servers, state.public, gossip(net, 1), state.number, 0)
    assert not torch.equal(moved, state.servers)
    state.servers[:] = moved
    torch.testing.assert_close(simulation.model(), before, rtol=0, atol=1e-13)


def test_a_scheme_that_sends_more_than_models_is_refused() -> None:
    packing, servers = Packing((15, 5), 3, (), TopK(k=1)), torch.zeros(4, 20)
    with pytest.raises(InputError, match=r"set compression\.backhaul=none"):
        packing.exchange(servers, servers.clone(), of_rows({-1: {1: 1.0}}), 0, 0)


def test_a_server_that_sends_nothing_reveals_nothing() -> None:
    """Its public copy stays what its neighbours know, whatever becomes of its model."""
    packing = Packing((15, 5), 3, (), TopK(k=3))
    simulation = Simulation(
        Decisions.of(SDFeel(), ring_of_four(), cost(12)), engine(), packing=packing
    )
    next(simulation)
    state = simulation.state
    assert state.public is not None
    before = state.public.clone()
    state.rows.servers += 1.0
    mixing = of_rows({0: {0: 0.5, 1: 0.5}, 1: {1: 0.5, 2: 0.5}})
    packing.exchange(state.servers, state.public, mixing, state.number, 0)
    changed = (state.public != before).any(dim=1).tolist()
    assert changed == [False, True, True, False]


def small(*settings: str) -> Experiment:
    return load(
        None,
        [
            "network.clients=6",
            "network.servers=3",
            "training.iterations=30",
            "model.name=logistic",
            *settings,
        ],
    )


def ending(experiment: Experiment, directory: Path) -> Finished:
    *_, last = start(experiment, directory)
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize(
    "settings",
    [
        ["compression.uplink=uniform", "compression.backhaul=uniform", "compression.bits=32"],
        ["compression.uplink=top-k", "compression.backhaul=top-k", "compression.share=1.0"],
    ],
)
def test_codecs_that_lose_nothing_change_nothing(settings: list[str], tmp_path: Path) -> None:
    plain = ending(small(), tmp_path / "plain")
    assert ending(small(*settings), tmp_path / "whole") == plain


def test_bytes_and_seconds_are_counted_exactly() -> None:
    """650 numbers in two tensors, digits' logistic model; a round of 6 clients, 3 servers, ring."""
    settings = ["compression.uplink=uniform", "compression.backhaul=top-k", "compression.share=0.1"]
    ready = prepare(small(*settings))
    up, across = 8 * 650 + 32 * 2, 65 * (32 + 10)
    assert ready.cost.packed == {"client-server": up, "client-cloud": up, "server-server": across}
    done = next(ready.simulation())
    assert done.bytes == 6 * (up // 8) + 3 * 650 * 4 + 6 * -(-across // 8)
    assert done.phases["upload"] == pytest.approx(up / 5e6)
    assert done.phases["mix"] == pytest.approx(across / 50e6)


@pytest.mark.parametrize("scheme", ["sd-feel", "async-sd-feel", "fedsa"])
def test_debts_survive_a_stop(scheme: str, tmp_path: Path) -> None:
    experiment = small(
        f"scheme.name={scheme}",
        "compression.uplink=top-k",
        "compression.backhaul=uniform",
        "checkpoint.every_seconds=0",
    )
    whole = ending(experiment, tmp_path / "whole")
    session = start(experiment, tmp_path / "parts")
    for count, _ in enumerate(session):
        if count == 4:
            session.stop()
    *_, last = resume(tmp_path / "parts")
    assert last == whole
