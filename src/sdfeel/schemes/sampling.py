"""Client sampling: who takes part in a round, around any scheme whose servers wait for clients.

Every server draws among its own clients that are there, without replacement and all with the same
chance. The draw is addressed by the server and its round, so everybody who knows the run's seed
gets the same one: the simulator, and every node of a deployment.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017
(a fraction of the clients); Liu et al., "Client-Edge-Cloud Hierarchical Federated Learning", 2020,
and their successors draw within each cluster.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np

from sdfeel.core.arrays import Ints, ints
from sdfeel.core.errors import InputError, at_least
from sdfeel.core.network import Network
from sdfeel.core.partial_mixing import restricted
from sdfeel.core.scheme import Around, Lane, Mix, Scheme, View, Work, only, some_of
from sdfeel.core.seeds import rng


@dataclass(frozen=True)
class Sampling:
    """How many clients of a cluster take part in a round.

    >>> [Sampling(share=0.1).among(size) for size in (3, 24, 25)], Sampling(clients=5).among(3)
    ([1, 2, 3], 3)
    """

    clients: Annotated[int | None, "of each cluster; where it has fewer, all of them"] = None
    share: Annotated[float, "of each cluster, to the nearest whole number, at least 1"] = 1.0

    def __post_init__(self) -> None:
        if self.clients is not None:
            at_least("sampling.clients", self.clients, 1)
        if not 0 < self.share <= 1:
            raise InputError(f"sampling.share must be above 0 and at most 1, got {self.share:g}")
        if self.clients is not None and self.share < 1:
            raise InputError(
                f"sampling.clients is {self.clients} and sampling.share is {self.share:g}, but a "
                f"round can draw by one of them only: leave the other out"
            )

    @property
    def key(self) -> str:
        """The experiment's key that sets it."""
        return "sampling.share" if self.clients is None else "sampling.clients"

    @property
    def everybody(self) -> bool:
        """Do all clients take part?"""
        return self.clients is None and self.share == 1

    def draws(self, net: Network) -> bool:
        """Does some server leave out some of its clients?"""
        sizes = np.bincount(net.home[net.clients]).tolist()
        return any(self.among(size) < size for size in sizes)

    def among(self, size: int) -> int:
        """How many of `size` clients are drawn."""
        if self.clients is not None:
            return min(self.clients, size)
        return max(int(self.share * size + 0.5), min(size, 1))


@dataclass(frozen=True)
class Drawing(Around):
    """A scheme whose servers train with some of their clients in each round.

    The scheme sees which clients are drawn (`View.drawn`). Whatever it says, no other client
    computes or sends, and those that do are weighted as if the others did not exist.
    """

    sampling: Sampling

    def adapt(self, net: Network) -> Network:
        own, asked = self.inner.adapt(net), self.sampling.clients
        largest = int(np.bincount(own.home[own.clients]).max())
        if asked is not None and asked > largest:
            raise InputError(
                f"sampling.clients is {asked}, but no server has more than {largest} clients: "
                f"lower it, or leave it out"
            )
        return own

    def work(self, view: View) -> Work:
        view = self._with_draw(view)
        return only(self.inner.work(view), view.clients)

    def mix(self, view: View, done: Ints) -> Mix:
        mix = self.inner.mix(self._with_draw(view), done)
        return replace(mix, up=restricted(mix.up, done > 0))

    def _with_draw(self, view: View) -> View:
        return replace(view, drawn=_drawn(view.net, view.lane, self.sampling, view.seed, view.k))


@lru_cache(maxsize=8)  # a round asks when it begins and when it ends
def _drawn(net: Network, lane: Lane, sampling: Sampling, seed: int, k: int) -> Ints:
    """The clients that take part in round `k` of these servers, in ascending order."""
    found = [np.zeros(0, dtype=np.int64)]
    for server in lane:
        own = net.cluster(server)
        if len(own):
            count = sampling.among(len(own))
            found.append(some_of(own, count, rng(seed, "sampling", server, k)))
    return ints(np.sort(np.concatenate(found)))


def sampled(scheme: Scheme, sampling: Sampling) -> Scheme:
    """A scheme that draws its clients; the scheme itself if everybody takes part."""
    if sampling.everybody:
        return scheme
    own = getattr(scheme, "participants", None)
    if own is not None:
        raise InputError(
            f"scheme.participants is {own} and {sampling.key} is set, too, but a round can draw "
            f"its clients by one of them only: leave the other out"
        )
    return Drawing(scheme, sampling)
