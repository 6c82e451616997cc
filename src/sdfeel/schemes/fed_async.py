"""FedAsync: the cloud mixes in every client's model as soon as it arrives.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, at_least, unknown
from sdfeel.core.mixing import average, broadcast, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, one_server
from sdfeel.core.staleness import PSI, trust
from sdfeel.core.tolerance import CLOUD, IGNORED, Only, Tolerates

ARRIVED = Shelf("arrived", "server")  # the model that has just arrived


@dataclass(frozen=True)
class FedAsync:
    """The cloud mixes in each client's model as soon as it arrives; stale models count less."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD, equalise=IGNORED, drop_unbiased="blends in whole models"
    )

    tau1: Annotated[int, "local iterations before a client sends its model"] = 5
    mixing_rate: Annotated[float, "share of a fresh model in the global one"] = 0.6
    psi: Annotated[
        Literal["constant", "polynomial", "hinge"], "how much less an old model counts"
    ] = "polynomial"
    psi_a: Annotated[
        float, "polynomial: exponent; hinge: slope", Only("scheme.psi", ("polynomial", "hinge"))
    ] = 0.5
    psi_b: Annotated[
        float, "hinge: age up to which a model counts in full", Only("scheme.psi", ("hinge",))
    ] = 4.0

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        if not 0 < self.mixing_rate <= 1:
            raise InputError(
                f"scheme.mixing_rate must be above 0 and at most 1, got {self.mixing_rate:g}"
            )
        if self.psi not in PSI:
            raise unknown("psi", str(self.psi), PSI)
        trust(self.psi, np.zeros(1, dtype=np.int64), self.psi_a, self.psi_b)

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(ARRIVED,))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,) * len(setting.clients)  # clients do not wait for one another

    def work(self, view: View) -> Work:
        who = view.net.clients[[view.lane_number]]
        return Work(down=broadcast(view.net, who, via="client-cloud"), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        age = np.array([view.clocks.number - view.began])
        share = float(self.mixing_rate * trust(self.psi, age, self.psi_a, self.psi_b)[0])
        arrived = int(view.net.shelf(ARRIVED.name)[0])
        up = average([arrived], view.net.clients[[view.lane_number]], via="client-cloud")
        return Mix(up, of_rows({0: {arrived: share, 0: 1 - share}}))
