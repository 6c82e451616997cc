"""FogFL: fog nodes average their clients, and one of them averages the fog nodes.

Saha, Misra and Deb, "FogFL: Fog-Assisted Federated Learning for Resource-Constrained IoT
Devices", 2020.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.mixing import Mixing, Relay, collect, of_matrix
from sdfeel.core.network import Network, fastest_paths
from sdfeel.core.scheme import Facts, Mix, View
from sdfeel.core.tolerance import AMONG_SERVERS, EDGE, IGNORED, Tolerates
from sdfeel.schemes.two_levels import TwoLevels


@dataclass(frozen=True)
class FogFL(TwoLevels):
    """Edge servers average their clients; each time, one of them averages the servers."""

    facts: ClassVar[Facts] = Facts(True, True, "high", False, True, False)
    tolerates: ClassVar[Tolerates] = Tolerates(
        EDGE,
        mixing=IGNORED,
        overlap=IGNORED,
        server_rule="lets one server average for all, so the others judge nothing",
    )

    tau2: Annotated[
        int, "averagings at the edge server between two global averagings", AMONG_SERVERS
    ] = 1

    def mix(self, view: View, done: Ints) -> Mix:
        up = collect(view.net, view.drawn)
        if not self.meets(view) or not view.net.linked.values.size:
            return Mix(up)
        rates = view.link_times.server_rates
        across = averaged_at_a_server(view.net, None if rates is None else rates.tobytes())
        return Mix(up, across)


@lru_cache(maxsize=256)  # where links are constant, every round asks for the same
def averaged_at_a_server(net: Network, rates: bytes | None) -> Mixing:
    """Every server takes the mean, computed by the one that all the others reach soonest.

    The original's greedy choice, where all servers bear the same load. Models travel over the
    fastest paths, and where the graph has come apart, each part has an aggregator of its own.
    """
    each = None if rates is None else np.frombuffer(rates).reshape(net.links.shape)
    times, crossed = fastest_paths(net.links, each)
    weights, rows = np.eye(len(times)), []
    longest, crossings, busy, hub = 0.0, 0, 0.0, None
    for part in _parts(times):
        centre = part[times[np.ix_(part, part)].max(axis=1).argmin()]
        longest = max(longest, float(times[centre, part].max()))
        crossings += int(crossed[centre, part].sum())
        busy += float(times[centre, part].sum())
        whole = len(part) == len(net.present)
        hub = int(centre) if whole else None
        share = net.mass[part] if whole else net.mass[part] / net.mass[part].sum()
        weights[np.ix_(part, part)] = share
        rows += part.tolist()
    relay = Relay(2 * longest, 2 * crossings, 2 * busy, hub)  # there and back
    return of_matrix(weights[rows], rows=rows, relay=relay)


def _parts(times: Floats) -> list[Ints]:
    """The servers of each connected part that has more than one."""
    joined = np.isfinite(times)
    firsts = np.unique(joined.argmax(axis=1))
    return [np.flatnonzero(joined[d]) for d in firsts if joined[d].sum() > 1]
