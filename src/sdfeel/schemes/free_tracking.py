"""FreeTracking: SD-FEEL with corrected clients and clusters, without an extra byte. Ours.

Where servers gossip after every averaging, a cluster's corrected direction is how far its model
moved in the last round; its clients see that in the models that they are sent anyway.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import repeated
from sdfeel.core.mixing import broadcast, collect, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.scheme import Facts, Lane, Mix, Setting, View, Work, check_kinds
from sdfeel.core.tolerance import AMONG_SERVERS, Tolerates
from sdfeel.schemes.corrections import (
    EVERYBODY,
    TRACKING,
    TRUST,
    VARIATE,
    Trust,
    calm_gossip,
    check_trust,
    corrected,
    per_gradient,
    per_round,
)
from sdfeel.schemes.d_squared import check_mutual

NOW, LAST = Shelf("now", "client", "client"), Shelf("last", "client", "client")


@dataclass(frozen=True)
class FreeTracking:
    """SD-FEEL whose clients read the correction off the models that they are sent anyway."""

    facts: ClassVar[Facts] = Facts(True, False, "low", True, True, True)
    tolerates: ClassVar[Tolerates] = replace(
        TRACKING,
        drop=EVERYBODY,
        absent_clients=EVERYBODY,
        sampling="reads corrections off the models that every client is sent in every round",
        server_optimizer="reads its corrections off how far models move",
    )

    tau1: Annotated[int, "local iterations between two gossips"] = 5
    alpha: Annotated[int, "exchanges with the neighbours in one gossip", AMONG_SERVERS] = 1
    trust: Trust = TRUST

    def __post_init__(self) -> None:
        check_kinds(self)
        repeated("scheme.tau1", self.tau1, "local iterations")
        repeated("scheme.alpha", self.alpha, "exchanges")
        check_trust(self.trust)

    def adapt(self, net: Network) -> Network:
        check_mutual("free-tracking", net)
        return replace(net, shelves=(VARIATE, NOW, LAST))

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        net, scale = view.net, self._way(view)
        own, now, last = (net.shelf(each.name).tolist() for each in (VARIATE, NOW, LAST))
        rows = {i: {last[i]: scale, now[i]: -scale, own[i]: -1.0} for i in net.clients.tolist()}
        by = of_rows(rows, "client-server")
        return corrected("free-tracking", view, Work(broadcast(net), self.tau1), self.trust, by)

    def _way(self, view: View) -> float:
        """What turns a model's move in the last round, which clients see now, into a gradient."""
        return per_round(view, self.tau1, ago=min(view.k, 1))

    def mix(self, view: View, done: Ints) -> Mix:
        net, who, way = view.net, done.nonzero()[0], self._way(view)
        own, now, last = (net.shelf(each.name).tolist() for each in (VARIATE, NOW, LAST))
        rows = {d: dict(zip(s.tolist(), w.tolist(), strict=True)) for d, s, w in collect(net, who)}
        for i, each in zip(who.tolist(), per_gradient(view, who, done[who]).tolist(), strict=True):
            rows[own[i]] = {i: -each, last[i]: -way, now[i]: way}
        told = {last[i]: {now[i]: 1.0} for i in net.clients.tolist()}
        told |= {now[i]: {int(net.home[i]): 1.0} for i in net.clients.tolist()}
        gossip = (calm_gossip(net, self.alpha),) if len(net.present) > 1 else ()
        return Mix(of_rows(rows, "client-server"), (*gossip, of_rows(told)), "update")
