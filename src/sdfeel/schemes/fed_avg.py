"""FedAvg: the cloud averages the clients directly, all of them or a random few.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, at_least, repeated
from sdfeel.core.mixing import broadcast, collect
from sdfeel.core.network import Network
from sdfeel.core.scheme import (
    Facts,
    Lane,
    Mix,
    Setting,
    Terms,
    View,
    Work,
    check_kinds,
    one_server,
    some_of,
)
from sdfeel.core.tolerance import CLOUD, Tolerates


@dataclass(frozen=True)
class FedAvg:
    """The cloud averages the clients directly, all of them or a random few per round."""

    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(CLOUD)

    tau1: Annotated[int, "local iterations between two averagings in the cloud"] = 5
    participants: Annotated[int | None, "clients drawn for each round (none: all)"] = None

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        if self.participants is not None:
            at_least("scheme.participants", self.participants, 1)

    @property
    def terms(self) -> Terms | None:
        return Terms(1, self.tau1) if self.participants is None else None

    def adapt(self, net: Network) -> Network:
        if self.participants is not None and self.participants > len(net.samples):
            raise InputError(
                f"scheme.participants is {self.participants}, but the network has only "
                f"{len(net.samples)} clients: lower it"
            )
        return one_server(net)

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        who = some_of(view.clients, self.participants, view.rng())
        return Work(down=broadcast(view.net, who, via="client-cloud"), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(up=collect(view.net, done.nonzero()[0], via="client-cloud"))
