"""What schemes of two levels share: clients report to a server, then servers exchange models."""

from dataclasses import dataclass
from typing import Annotated

from sdfeel.core.errors import at_least, repeated
from sdfeel.core.mixing import broadcast
from sdfeel.core.network import Network
from sdfeel.core.scheme import Lane, Setting, View, Work, check_kinds
from sdfeel.core.tolerance import AMONG_SERVERS


@dataclass(frozen=True)
class TwoLevels:
    """All servers advance together from round to round; in every `tau2`-th round they meet."""

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    tau2: Annotated[int, "averagings at the edge server between two meetings of the servers"] = 1

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        at_least("scheme.tau2", self.tau2, 1)

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        return Work(down=broadcast(view.net, view.drawn), steps=self.tau1)

    def meets(self, view: View) -> bool:
        """Whether the servers meet at the end of this round."""
        return (view.k + 1) % self.tau2 == 0


@dataclass(frozen=True)
class Gossiping(TwoLevels):
    """Two levels whose servers meet by exchanging models with their neighbours."""

    tau2: Annotated[int, "averagings at the edge server between two gossips", AMONG_SERVERS] = 1
    alpha: Annotated[int, "exchanges with the neighbours in one gossip", AMONG_SERVERS] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        repeated("scheme.alpha", self.alpha, "exchanges")
