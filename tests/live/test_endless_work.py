"""A client trains no longer than its servers may ask for: a lie cannot keep it busy for ever."""

from pathlib import Path

import pytest

from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme import Scheme
from sdfeel.live.federation import Turn, most_steps
from sdfeel.live.protocol import Answer, Header, Who
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.tensors import digest
from sdfeel.schemes import (
    AsyncSDFeel,
    FedAsync,
    FedMes,
    FedNova,
    FedSA,
    HierFavg,
    MultiLevelSGD,
    Scaffnew,
    SDFeel,
)
from tests.live import timeless
from tests.live.village import Village, network

ROUNDS = 200
SCHEMES: tuple[Scheme, ...] = (
    SDFeel(tau1=3),
    SDFeel(tau1=50),
    AsyncSDFeel(theta_min=4, staleness="hearsay"),
    FedAsync(tau1=3),
    FedMes(tau1=3),
    FedNova(theta_min=4),
    FedSA(tau1=3, quota=2),
    HierFavg(tau1=3),
    MultiLevelSGD(tau1=6),
    Scaffnew(tau1=20),
)
ITERATIONS = (1, 10, 1000)


@pytest.mark.parametrize("iterations", ITERATIONS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: type(scheme).__name__)
def test_no_honest_server_asks_for_more_than_a_client_takes_on(
    scheme: Scheme, iterations: int, tmp_path: Path
) -> None:
    net = network(overlap=isinstance(scheme, FedMes))
    village = Village(scheme, net, tmp_path, iterations)
    federation = village.federation
    for k in range(ROUNDS if iterations == 10 else 5):
        for d in federation.net.servers:
            turn = Turn.of(federation, d, k, {})
            for client in turn.clients:
                most = federation.member(client).most if k < 2 else most_of(village, d)
                assert most is not None
                assert turn.planned[client] <= most
                assert turn.most(iterations) <= most


def most_of(village: Village, server: int) -> int:
    return most_steps(village.federation.decisions, village.iterations, (server,))


@pytest.mark.parametrize("steps", [11, 2**31, 2**53 - 1])
@pytest.mark.parametrize("scheme", [SDFeel(tau1=3), AsyncSDFeel(theta_min=4, staleness="hearsay")])
def test_a_client_of_one_server_declines_an_endless_round(
    scheme: Scheme, steps: int, tmp_path: Path
) -> None:
    """It used to train until somebody killed it, even when that server had long been replaced."""
    village = Village(scheme, network(), tmp_path, iterations=10)
    body = village.federation.body(village.federation.initial)
    work: Header = {"round": 0, "steps": steps, "first": 0, "rate": 1.0, "sha256": digest(body)}
    work |= {"sources": [0], "weights": [1.0]}

    async def lying(who: Who, kind: str, header: Header, content: bytes | None) -> Answer:
        return work, body

    village.liars = {0: lying}
    with pytest.raises(Refused, match=rf"asks for {steps} steps in one round; .* allows 10"):
        timeless.run(village.client(0).run())


def test_a_client_that_joins_later_has_a_bound_as_well(tmp_path: Path) -> None:
    federation = Village(SDFeel(tau1=3), network(), tmp_path, iterations=10).federation
    assert federation.member(99, joins=True).most == 10
    with pytest.raises(SdfeelError, match=r"network\.json has clients 0 to 5"):
        federation.member(99)
