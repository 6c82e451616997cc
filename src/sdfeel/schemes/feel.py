"""FEEL: one edge server trains with a few clients at a time.

Lim et al., "Federated Learning in Mobile Edge Networks: A Comprehensive Survey", 2020.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import broadcast, collect
from sdfeel.core.network import Network
from sdfeel.core.scheme import (
    Facts,
    Lane,
    Mix,
    Setting,
    View,
    Work,
    check_kinds,
    one_server,
    some_of,
)
from sdfeel.core.tolerance import CELLS, IGNORED, Tolerates


@dataclass(frozen=True)
class Feel:
    """One edge server trains with a few randomly scheduled clients per round."""

    facts: ClassVar[Facts] = Facts(False, False, "low", True, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CELLS,
        changing_servers=IGNORED,
        moving_clients=IGNORED,
        overlap=IGNORED,
        sampling="draws the clients of each round itself, by scheme.scheduled",
    )

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    scheduled: Annotated[int, "clients scheduled in each round (uplink channels)"] = 5
    pool_size: Annotated[
        int | None, "clients within the server's reach, cell by cell from server 0 (none: all)"
    ] = None

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        at_least("scheme.scheduled", self.scheduled, 1)
        if self.pool_size is not None:
            at_least("scheme.pool_size", self.pool_size, 1)

    def adapt(self, net: Network) -> Network:
        by_cell = net.clients[np.argsort(net.home[net.clients], kind="stable")]
        pool = by_cell[: self.pool_size]
        if self.scheduled > len(pool):
            raise InputError(
                f"scheme.scheduled is {self.scheduled}, but the server reaches only "
                f"{len(pool)} clients: lower it, or raise scheme.pool_size"
            )
        return one_server(net, pool)

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        who = some_of(view.net.clients, self.scheduled, view.rng())
        return Work(down=broadcast(view.net, who), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(up=collect(view.net, done.nonzero()[0]))
