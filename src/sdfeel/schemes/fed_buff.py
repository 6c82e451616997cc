"""FedBuff: the cloud collects updates in a buffer and takes a step whenever that is full.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, at_least, unknown
from sdfeel.core.mixing import Mixing, broadcast, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, one_server
from sdfeel.core.staleness import PSI, trust
from sdfeel.core.tolerance import CLOUD, IGNORED, Only, Tolerates

BUFFER = Shelf("buffer", "server", start="zero")  # the updates since the cloud's last step


@dataclass(frozen=True)
class FedBuff:
    """The cloud takes a step with the mean of every few updates; stale updates count less."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD, equalise=IGNORED, server_optimizer="takes a step of its own when its buffer is full"
    )

    tau1: Annotated[int, "local iterations before a client sends its update"] = 5
    buffer: Annotated[int, "updates that the cloud collects for one step"] = 10
    server_rate: Annotated[float, "factor on the mean update that the cloud adds to its model"] = (
        1.0
    )
    psi: Annotated[
        Literal["constant", "polynomial", "hinge"], "how much less an old update counts"
    ] = "polynomial"
    psi_a: Annotated[
        float, "polynomial: exponent; hinge: slope", Only("scheme.psi", ("polynomial", "hinge"))
    ] = 0.5
    psi_b: Annotated[
        float, "hinge: age up to which an update counts in full", Only("scheme.psi", ("hinge",))
    ] = 4.0

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.buffer", self.buffer, 1)
        if not self.server_rate > 0:
            raise InputError(f"scheme.server_rate must be above 0, got {self.server_rate:g}")
        if self.psi not in PSI:
            raise unknown("psi", str(self.psi), PSI)
        trust(self.psi, np.zeros(1, dtype=np.int64), self.psi_a, self.psi_b)

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(BUFFER,))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,) * len(setting.clients)  # clients do not wait for one another

    def work(self, view: View) -> Work:
        who = view.net.clients[[view.lane_number]]
        return Work(down=broadcast(view.net, who, via="client-cloud"), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        came, began = view.clocks.number, view.began
        age = np.array([came // self.buffer - began // self.buffer])  # in steps of the cloud
        into, who = int(view.net.shelf(BUFFER.name)[0]), view.net.clients[[view.lane_number]]
        counts = trust(self.psi, age, self.psi_a, self.psi_b)
        up = Mixing(np.array([into]), np.array([0, 1]), who, counts, "client-cloud", votes=counts)
        if (came + 1) % self.buffer:
            return Mix(up, payload="update")
        step = {0: {0: 1.0, into: self.server_rate / self.buffer}, into: {into: 0.0}}
        return Mix(up, of_rows(step), payload="update")
