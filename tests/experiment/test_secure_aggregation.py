"""Which schemes need nothing but sums, and that a sum is what they would compute anyway."""

from pathlib import Path

import pytest
import torch

from sdfeel.core.errors import InputError
from sdfeel.deploy import membership
from sdfeel.deploy.deployable import undeployable
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.schemes import SCHEMES

BASE = (
    *("network.clients=6", "network.servers=2", "model.name=logistic", "data.partition=iid"),
    *("training.iterations=4", "training.engine=loop", "evaluation.train_examples=20"),
)
MASKED = "privacy.secure_aggregation=true"
NOT_BY_SUMS = {
    *("adaptive", "joint", "fedasync", "fedbuff", "fedsa", "safa", "d2", "scaffold", "scaffnew"),
    *("feddyn", "mtgc", "mtgc-gossip", "k-gt", "sd-gt", "free-tracking", "tiers"),
}


def ready(*settings: str) -> Prepared:
    return prepare(load(None, [*BASE, *settings]))


def test_every_scheme_needs_only_sums_or_says_why_not() -> None:
    refused = {}
    for name in SCHEMES:
        more = ("scheme.scheduled=3",) if name == "feel" else ()
        try:
            ready(f"scheme.name={name}", MASKED, *more)
        except InputError as error:
            refused[name] = str(error)
    assert set(refused) == NOT_BY_SUMS
    assert all("privacy.secure_aggregation" in told for told in refused.values())
    assert "fedasync takes its clients' models one at a time" in refused["fedasync"]
    assert "k-gt keeps rows in addition to the models" in refused["k-gt"]
    with pytest.raises(InputError, match=r"server.optimizer = momentum keeps rows"):
        ready(MASKED, "server.optimizer=momentum")
    with pytest.raises(InputError, match=r"sd-feel has a server .* two clients or more"):
        ready(MASKED, "network.servers=4")
    assert undeployable(ready(MASKED)) is None


SLOW = ("latency.operations=10_000_000", "devices.spread=4")
STRICT = ("scheme.name=fedcs", "scheme.round_seconds=0.007")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("network.epochs=['2: client-3=none']",), "network.epochs changes clusters"),
        (("network.whereabouts={}/moves.csv",), "network.whereabouts lets them move to other"),
        (
            ("network.overlap=1", "network.server_up_seconds=9", "network.server_down_seconds=1"),
            "network.overlap lets them move to other clusters",
        ),
        (
            (
                *("latency.late=drop-unbiased", "latency.deadline_seconds=0.02"),
                *("radio.fading=rayleigh", *SLOW),
            ),
            "latency.late = drop-unbiased weights clients by their chances.* set latency.late to",
        ),
        (
            ("latency.late=drop", "latency.deadline_seconds=0.012", *SLOW),
            "latency.late = drop leaves a server at most two thirds .* raise latency.deadline",
        ),
        (STRICT, "fedcs has a server that takes one client's model"),
    ],
)
def test_what_does_not_go_with_sums_is_refused_before_anything_starts(
    more: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    (tmp_path / "moves.csv").write_text("round,client,server\n1,0,0\n1,1,1\n")
    with pytest.raises(InputError, match=rf"privacy.secure_aggregation .*{why}"):
        ready(MASKED, *(each.format(tmp_path) for each in more))


def test_masks_are_so_long_that_fewer_clients_fit_into_a_round() -> None:
    without = ready(*STRICT).decisions
    assert len(without.work(without.view(0)).down.rows) == 6


def test_the_network_of_a_deployment_with_sums_does_not_change(tmp_path: Path) -> None:
    make(ready(MASKED), tmp_path, on_loopback(2), with_data=False)
    with pytest.raises(InputError, match=r"network.epochs changes clusters"):
        membership.change(tmp_path, 5, ["client-0=none"])
    assert membership.versions(tmp_path) == []


@pytest.mark.parametrize("more", [(), ("scheme.name=fedavg", "scheme.participants=4")])
def test_a_run_with_sums_is_the_plain_run_up_to_their_steps_and_pays_for_the_masks(
    more: tuple[str, ...],
) -> None:
    plain, masked = ready(*more).simulation(), ready(*more, MASKED).simulation()
    for _ in range(3):
        one, other = next(plain), next(masked)
    torch.testing.assert_close(masked.model(), plain.model(), rtol=0, atol=2e-6)
    assert not torch.equal(masked.model(), plain.model())
    assert other.bytes > one.bytes
