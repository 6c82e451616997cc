"""FedAsync: the cloud mixes in every client's model as soon as it arrives.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.errors import InputError, repeated
from sdfeel.core.mixing import Mixing, average, broadcast, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds, one_server
from sdfeel.core.staleness import trust
from sdfeel.core.tolerance import CLOUD, IGNORED, Only, Tolerates

ARRIVED = Shelf("arrived", "server")  # the model that has just arrived


LANES = "gives every client a lane of its own, which would stand still"


@dataclass(frozen=True)
class OneByOne:
    """What the schemes share in which clients report to the cloud one by one and never wait.

    Each client has a lane of its own. The older what it sends is, the less it counts.
    """

    repeats: ClassVar[bool] = True  # a client sends its model, and that is all

    tau1: Annotated[int, "local iterations before a client reports to the cloud"] = 5
    psi: Annotated[
        Literal["constant", "polynomial", "hinge"], "how much less an old model or update counts"
    ] = "polynomial"
    psi_a: Annotated[
        float, "polynomial: exponent; hinge: slope", Only("scheme.psi", ("polynomial", "hinge"))
    ] = 0.5
    psi_b: Annotated[
        float, "hinge: age up to which it counts in full", Only("scheme.psi", ("hinge",))
    ] = 4.0

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        self.counts(0)

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,) * len(setting.clients)

    def work(self, view: View) -> Work:
        key = "one by one", view.lane_number, self.tau1
        if key not in view.net.memo:
            down = broadcast(view.net, self.client(view), via="client-cloud")
            view.net.memo[key] = Work(down=down, steps=self.tau1)
        found: Work = view.net.memo[key]
        return found

    def client(self, view: View) -> Ints:
        """(1,) the client whose lane this is."""
        return view.net.clients[[view.lane_number]]

    def counts(self, age: int) -> Floats:
        """(1,) how much a model or update of this age counts."""
        return _counts(self.psi, age, self.psi_a, self.psi_b)


@lru_cache(maxsize=1 << 12)
def _counts(psi: str, age: int, a: float, b: float) -> Floats:
    return floats(trust(psi, np.array([age]), a, b))


@dataclass(frozen=True)
class FedAsync(OneByOne):
    """The cloud mixes in each client's model as soon as it arrives; stale models count less."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(
        CLOUD,
        equalise=IGNORED,
        absent_clients=LANES,
        sampling=LANES,
        drop_unbiased="blends in whole models",
        cluster_rule="takes models one at a time, so that none can be compared",
    )

    mixing_rate: Annotated[float, "share of a fresh model in the global one"] = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mixing_rate <= 1:
            raise InputError(
                f"scheme.mixing_rate must be above 0 and at most 1, got {self.mixing_rate:g}"
            )

    def adapt(self, net: Network) -> Network:
        return replace(one_server(net), shelves=(ARRIVED,))

    def mix(self, view: View, done: Ints) -> Mix:
        net, key = view.net, ("arrives", view.lane_number)
        if key not in net.memo:
            arrived = int(net.shelf(ARRIVED.name)[0])
            net.memo[key] = average([arrived], self.client(view), via="client-cloud")
        age = view.clocks.number - view.began
        across = net.recent(("blended", self, age), lambda: _blended(net, self, age))
        return Mix(net.memo[key], across)


def _blended(net: Network, scheme: FedAsync, age: int) -> Mixing:
    """The cloud takes a share of a model of this age that has arrived, and keeps the rest."""
    share = float(scheme.mixing_rate * scheme.counts(age)[0])
    if "blended" not in net.memo:
        net.memo["blended"] = of_rows({0: {int(net.shelf(ARRIVED.name)[0]): 0.5, 0: 0.5}})
    places: Mixing = net.memo["blended"]
    return places.weighing(floats([share, 1 - share]))
