"""Who is where, and who takes part: clients that move between servers, come and go.

Where clients are is a pure function of rounds and seconds, read from a trace. When a round begins,
the executor asks for it, and the scheme sees a network like any other. A client that moves belongs
to its new server from the next round on, and its data count there: clusters' sizes and the servers'
mixing follow. A client that is away (not charging, say) does nothing, but its data still count at
its server. A server without clients rests. When a client arrives there, the server continues as a
copy of the nearest server that had clients.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats, ints
from sdfeel.core.gossip_weights import laplacian_weights, weights_of
from sdfeel.core.membership import nearest
from sdfeel.core.network import Network, parts
from sdfeel.core.sparse import Sparse

Rule = Callable[[Floats, Floats], Floats]  # weights of links and masses
NOWHERE, UNCHANGED = -1, -2


@dataclass(frozen=True, eq=False)
class Whereabouts:
    """Events in chronological order; before its first one, a client is at home and takes part."""

    when: Floats  # (E,) ascending
    who: Ints  # (E,) a client
    server: Ints  # (E,) where it is from then on: NOWHERE, or UNCHANGED
    there: Ints  # (E,) does it take part from then on: 1, 0 or UNCHANGED
    unit: Literal["round", "second"] = "second"
    period: float | None = None  # after which the trace starts again; None: its last state stays
    rule: Rule = laplacian_weights  # how servers mix
    moving: bool = True  # False: no client changes its server, but one NOWHERE is away
    metres: Floats | None = None  # (E,) how far it is from its server; nan: as before
    lines: Ints | None = None  # (E,) where each event is in its file

    @property
    def moves(self) -> bool:
        """Does anybody change its server?"""
        return self.moving and bool((self.server >= 0).any())

    @property
    def absences(self) -> bool:
        """Is anybody away at times?"""
        return bool((self.there == 0).any() or (self.server == NOWHERE).any())

    def at(self, net: Network, number: int, seconds: float) -> Network:
        """The network of a round that begins when `number` rounds of all lanes are over."""
        count = self._begun(number, seconds)
        home, there = net.home.copy(), np.ones(len(net.samples), dtype=np.int64)
        who, server, takes = self.who[:count], self.server[:count], self.there[:count]
        # Of several values for one place, the last is kept.
        home[who[server != UNCHANGED]] = server[server != UNCHANGED]
        there[who[takes != UNCHANGED]] = takes[takes != UNCHANGED]
        there[(home < 0) | (net.home < 0)] = 0
        if not self.moving or len(net.linked) == 1:
            home = net.home
        return _network(net, ints(home).tobytes(), there.tobytes(), self.rule)

    def distances(self, first: Floats, number: float, seconds: float) -> Floats:
        """(C,) metres from each client to its server; `first` where no place is known yet."""
        assert self.metres is not None
        count, far = self._begun(number, seconds), first.copy()
        known = np.flatnonzero(~np.isnan(self.metres[:count]))
        far[self.who[known]] = self.metres[known]
        return floats(far)

    def will_change(self, number: int, seconds: float) -> bool:
        """Does anything still happen?"""
        return self.period is not None or self._begun(number, seconds) < len(self.when)

    def _begun(self, number: float, seconds: float) -> int:
        """How many events have happened."""
        now = float(number) if self.unit == "round" else seconds
        if self.period is not None:
            now %= self.period
        return int(np.searchsorted(self.when, now, side="right"))


@lru_cache(maxsize=256)  # mixings are remembered by network: the same state is the same object
def _network(net: Network, servers: bytes, present: bytes, rule: Rule) -> Network:
    home = np.frombuffer(servers, dtype=np.int64)
    there = np.frombuffer(present, dtype=np.int64) > 0
    stays = home == net.home
    if stays.all() and there[net.clients].all():
        return net
    # A client that is at its own server may reach other servers, too.
    reach = tuple(
        (own if same else (at,)) if takes_part else ()
        for own, at, same, takes_part in zip(
            net.reach, home.tolist(), stays.tolist(), there.tolist(), strict=True
        )
    )
    counted = home >= 0
    sizes = np.bincount(home[counted], net.samples[counted], minlength=len(net.linked))
    if stays.all() or not sizes.any():
        return replace(net, reach=reach, sizes=net.mass, graph=net.linked, weights=net.shares)
    mass = floats(sizes / sizes.sum())
    weights = _weights(rule, net.linked, mass)
    return replace(net, reach=reach, sizes=floats(sizes), graph=net.linked, weights=weights)


def _weights(rule: Rule, links: Sparse, mass: Floats) -> Sparse:
    """How servers that have clients mix, each with those that a path of such servers joins to it.

    >>> path = Sparse.of([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> _weights(laplacian_weights, path, np.array([0.5, 0.0, 0.5])).dense.tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    some, alone = np.flatnonzero(mass > 0), np.ones(len(mass), dtype=bool)
    rows, columns, values = [], [], []
    for part in parts(links.among(some)):
        own = some[part]
        if len(own) > 1:
            found = weights_of(rule, links.among(own), mass[own])
            rows.append(own[found.rows])
            columns.append(own[found.columns])
            values.append(found.values)
            alone[own] = False
    left = np.flatnonzero(alone)
    places = np.concatenate([*rows, left]), np.concatenate([*columns, left])
    return Sparse.at(*places, np.concatenate([*values, np.ones(len(left))]), links.shape)


def handovers(before: Network, now: Network) -> int:
    """How many clients have gone from one server to another."""
    there = (before.home >= 0) & (now.home >= 0)
    return int((there & (before.home != now.home)).sum())


def woken(before: Network, now: Network) -> dict[int, int]:
    """Servers that had no clients and have some now, each with the server that it copies."""
    if before is now:
        return {}
    came = np.flatnonzero((now.mass > 0) & (before.mass == 0)).tolist()
    had = np.flatnonzero(before.mass > 0).tolist()
    return nearest(came, had, now.linked if now.graph is None else now.graph)
