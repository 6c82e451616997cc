"""FedCS: every edge server trains with the clients that can keep a deadline.

Nishio and Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in
Mobile Edge", 2019.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, at_least
from sdfeel.core.mixing import broadcast, collect, gossip
from sdfeel.core.network import Network
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work
from sdfeel.core.tolerance import EDGE, IGNORED, Tolerates


@dataclass(frozen=True)
class FedCS:
    """Edge servers train with the clients that keep a deadline, and gossip as SD-FEEL does."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(EDGE, overlap=IGNORED)

    tau1: Annotated[int, "local iterations between two averagings at the edge server"] = 5
    alpha: Annotated[int, "exchanges with the neighbours after every averaging"] = 1
    round_seconds: Annotated[
        float | None, "time for computing and sending; slower clients are left out (none: no limit)"
    ] = None

    def __post_init__(self) -> None:
        at_least("scheme.tau1", self.tau1, 1)
        at_least("scheme.alpha", self.alpha, 1)
        if self.round_seconds is not None and not self.round_seconds > 0:
            raise InputError(f"scheme.round_seconds must be above 0, got {self.round_seconds:g}")

    def adapt(self, net: Network) -> Network:
        return net

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        return Work(down=broadcast(view.net, self._fit(view)), steps=self.tau1)

    def mix(self, view: View, done: Ints) -> Mix:
        # A server none of whose clients fits keeps its model, and gossips all the same.
        across = gossip(view.net, self.alpha)
        return Mix(up=collect(view.net, done.nonzero()[0]), across=across)

    def _fit(self, view: View) -> Ints:
        clients = view.net.clients
        if self.round_seconds is None:
            return clients
        needs: Floats = self.tau1 * view.step_seconds + view.link_times.uploads(
            len(view.step_seconds)
        )
        fit = clients[needs[clients] <= self.round_seconds]
        if not fit.size:
            raise InputError(
                f"scheme.round_seconds is {self.round_seconds:g}, but even the fastest client "
                f"needs {needs[clients].min():.3g} seconds: raise it, or lower scheme.tau1"
            )
        return fit
