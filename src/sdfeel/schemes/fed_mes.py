"""FedMes: clients in overlapping cells carry models between servers.

Han, Choi, Park and Moon, "FedMes: Speeding Up Federated Learning With Multiple Edge Servers",
2021.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, repeated
from sdfeel.core.mixing import average
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds
from sdfeel.core.tolerance import CELLS, Only, Tolerates


@dataclass(frozen=True)
class FedMes:
    """Clients in several cells start from the mean of their servers and report to all of them."""

    facts: ClassVar[Facts] = Facts(False, False, "low", True, False, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CELLS, server_optimizer="has servers that never exchange models"
    )

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    overlap_weight: Annotated[
        float,
        "weight of a client in several cells, relative to one in a single cell",
        Only("network.overlap"),
    ] = 1.0

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        if not self.overlap_weight > 0:
            raise InputError(f"scheme.overlap_weight must be above 0, got {self.overlap_weight:g}")

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        clients, servers = pairs(view)
        return Work(down=average(clients, servers), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        clients, servers = pairs(view)
        cells = np.array([len(own) for own in view.net.reach])
        mass = view.net.samples * np.where(cells > 1, self.overlap_weight, 1.0)
        return Mix(up=average(servers, clients, mass=mass))


def pairs(view: View) -> tuple[Ints, Ints]:
    """Every (client, server) within reach of each other, as two lists."""
    reach = [view.net.reach[i] for i in view.clients.tolist()]
    clients = np.repeat(view.clients, [len(own) for own in reach])
    return clients, np.array([d for own in reach for d in own], dtype=np.int64)
