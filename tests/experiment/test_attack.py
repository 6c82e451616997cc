"""Who lies in an experiment, what a lie does to a run, and what cannot go together."""

import pytest
import torch

from sdfeel.core.errors import InputError
from sdfeel.deploy.deployable import undeployable
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load

BASE = (
    *("network.clients=9", "network.servers=3", "model.name=logistic", "data.partition=iid"),
    *("training.iterations=4", "training.engine=loop", "evaluation.train_examples=20"),
    *("network.graph=complete", "network.mixing=metropolis", "scheme.tau1=2"),
)


def ready(*settings: str) -> Prepared:
    return prepare(load(None, [*BASE, *settings]))


def after(prepared: Prepared, rounds: int = 2) -> torch.Tensor:
    simulation = prepared.simulation()
    for _ in range(rounds):
        next(simulation)
    return simulation.model()


def test_liars_are_named_in_the_experiment_that_is_kept() -> None:
    made = ready("attack.kind=sign-flip", "attack.clients=3").experiment
    assert len(made.attack.who) == 3
    again = prepare(made)
    assert again.experiment.attack.who == made.attack.who
    assert again.attack is not None
    assert {f"client-{n}" for n in again.attack.clients} == set(made.attack.who)


@pytest.mark.parametrize(
    "kind", ["sign-flip", "scaling", "little-is-enough", "inner-product", "label-flip", "backdoor"]
)
def test_each_lie_changes_the_model_and_a_median_withstands_it_better(kind: str) -> None:
    honest = after(ready())
    lie = (f"attack.kind={kind}", "attack.clients=3", "attack.strength=5")
    assert not torch.equal(after(ready(*lie)), honest)
    if kind in ("sign-flip", "scaling", "inner-product"):
        judged = (after(ready(*lie, "robust.cluster=median")) - honest).norm()
        assert judged < (after(ready(*lie)) - honest).norm() / 2


def test_a_server_that_lies_moves_its_neighbours_and_keeps_its_own_model() -> None:
    settings = ("attack.kind=scaling", "attack.strength=4", "attack.who=edge-1")
    honest, false = ready("scheme.tau2=9").simulation(), ready(*settings).simulation()
    start = false.state.servers.clone()
    next(honest)
    next(false)
    trained = honest.state.servers  # tau2: no exchange yet
    lie = start[1] + 4 * (trained[1] - start[1])
    said = torch.stack([trained[0], lie, trained[2]])
    for server, heard in ((0, said), (1, trained), (2, said)):
        row = torch.tensor(false.net.mixing[server], dtype=torch.float32)
        torch.testing.assert_close(false.state.servers[server], row @ heard)


def test_a_rule_withstands_a_server_that_lies() -> None:
    lie = ("attack.kind=sign-flip", "attack.strength=20", "attack.servers=1")
    honest = after(ready())
    moved = [(after(ready(*lie, *more)) - honest).norm() for more in ((), ("robust.servers=cs+",))]
    assert moved[1] < moved[0] / 2


def test_a_liar_neither_clips_nor_adds_noise() -> None:
    lie = ("attack.kind=scaling", "attack.strength=1000", "attack.who=client-2")
    private = ("privacy.protects=clients", "privacy.clip=0.001", "privacy.noise=0.001")
    assert (after(ready(*lie, *private)) - after(ready(*private))).norm() > 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ("attack.kind=label-flip", "attack.servers=1"),
            "a client's lie, but attack.servers makes",
        ),
        (("attack.kind=scaling", "attack.who=client-9"), "client-9, which is not in the network"),
        (
            ("attack.kind=scaling", "attack.servers=1", "scheme.name=fedavg"),
            "attack.servers makes edge servers lie, but fedavg leaves only one",
        ),
        (
            ("attack.kind=scaling", "attack.servers=1", "scheme.name=fedmes"),
            "attack.servers makes edge servers lie, but fedmes has servers that never exchange",
        ),
        (
            ("attack.kind=scaling", "attack.servers=1", "scheme.name=async-sd-feel"),
            "attack.servers makes edge servers lie, but async-sd-feel lets servers",
        ),
        (
            ("attack.kind=scaling", "attack.servers=1", "compression.backhaul=uniform"),
            "attack.servers makes .* compression.backhaul = uniform",
        ),
        (
            ("attack.kind=backdoor", "attack.clients=1", "personal.method=ditto"),
            "attack.kind = backdoor is measured on one model .* personal.method is ditto",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(settings: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ready(*settings)


def test_lies_that_depend_on_others_are_only_simulated() -> None:
    why = undeployable(ready("attack.kind=little-is-enough", "attack.clients=3"))
    assert why is not None
    assert "no client sees" in why
    assert undeployable(ready("attack.kind=backdoor", "attack.clients=3")) is None
