"""Which schemes can do with sums alone, and that a sum is what they would compute anyway."""

import pytest
import torch

from sdfeel.core.errors import InputError
from sdfeel.deploy.check import undeployable
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


def test_every_scheme_does_with_sums_or_says_why_not() -> None:
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
    assert "k-gt keeps rows beside the models" in refused["k-gt"]
    with pytest.raises(InputError, match=r"server.optimizer = momentum keeps rows"):
        ready(MASKED, "server.optimizer=momentum")
    with pytest.raises(InputError, match=r"sd-feel has a server .* give every server two clients"):
        ready(MASKED, "network.servers=4")
    assert undeployable(ready(MASKED)) is None
    with pytest.raises(InputError, match=r"secure_aggregation .* network.epochs changes clusters"):
        ready(MASKED, "network.epochs=['2: client-3=none']")


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
