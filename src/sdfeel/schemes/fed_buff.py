"""FedBuff: the cloud collects updates in a buffer and takes a step whenever it is full.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, at_least
from sdfeel.core.mixing import average, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Mix, View, one_server
from sdfeel.core.tolerance import CLOUD, IGNORED, Tolerates
from sdfeel.schemes.fed_async import LANES, OneByOne

BUFFER = Shelf("buffer", "server", start="zero")  # the updates since the cloud's last step


@dataclass(frozen=True)
class FedBuff(OneByOne):
    """The cloud takes a step with the mean of every few updates; stale updates count less."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD,
        equalise=IGNORED,
        absent_clients=LANES,
        sampling=LANES,
        server_optimizer="takes a step of its own when its buffer is full",
        cluster_rule="adds updates to its buffer one at a time, so that none can be compared",
    )

    buffer: Annotated[int, "updates that the cloud collects for one step"] = 10
    server_rate: Annotated[float, "factor on the mean update that the cloud adds to its model"] = (
        1.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("scheme.buffer", self.buffer, 1)
        if not self.server_rate > 0:
            raise InputError(f"scheme.server_rate must be above 0, got {self.server_rate:g}")

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(BUFFER,))

    def mix(self, view: View, done: Ints) -> Mix:
        came, began = view.clocks.number, view.began
        counts = self.counts(came // self.buffer - began // self.buffer)  # age in the cloud's steps
        net, key = view.net, ("buffered", view.lane_number)
        into = int(net.shelf(BUFFER.name)[0])
        if key not in net.memo:
            net.memo[key] = average([into], self.client(view), via="client-cloud")
        up = net.memo[key].weighing(counts, votes=counts)
        if (came + 1) % self.buffer:
            return Mix(up, payload="update")
        rate = self.server_rate / self.buffer
        if ("step", rate) not in net.memo:
            net.memo["step", rate] = of_rows({0: {0: 1.0, into: rate}, into: {into: 0.0}})
        return Mix(up, net.memo["step", rate], payload="update")
