"""Who belongs to which server, and from which round on: the epochs of a network.

An epoch begins with a round, everywhere. Clients and servers join and leave, clients move, links
change; numbers stay. A server that joins starts from the model of the nearest server that was there
before, and whatever a scheme keeps in addition to the models starts afresh.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.errors import InputError
from sdfeel.core.network import Network
from sdfeel.core.sparse import Sparse

_CLIENT = re.compile(r"client-(\d{1,9})=(?:edge-(\d{1,9})|(none)|(\d{1,15}))", re.ASCII)
_SERVER = re.compile(r"edge-(\d{1,9})=(?:(none)|(edge-\d{1,9}(?:\+edge-\d{1,9})*))", re.ASCII)
_RULE = (
    "write client-3=none, client-4=edge-1, client-5=80 for its number of examples, edge-2=none, "
    "or edge-2=edge-0+edge-1 for a server and its links"
)
MOST_SERVERS = 10_000  # a matrix of links has this many rows at most
MOST_CLIENTS = 1_000_000  # numbers have no gaps: a mistyped one would be a list of that length


@dataclass(frozen=True)
class Epoch:
    """What changes before round `begins`, counted from 0."""

    begins: int
    moves: tuple[tuple[int, int | None], ...] = ()  # client, its server from now on or None
    counts: tuple[tuple[int, int], ...] = ()  # client, its examples from now on
    servers: tuple[tuple[int, tuple[int, ...] | None], ...] = ()  # its links from now on, or None

    @classmethod
    def parse(cls, begins: int, words: Iterable[str]) -> "Epoch":
        """An epoch from words such as `client-4=edge-1`.

        >>> Epoch.parse(9, ["client-3=none", "client-4=edge-1", "client-5=80"])
        Epoch(begins=9, moves=((3, None), (4, 1)), counts=((5, 80),), servers=())
        >>> Epoch.parse(9, ["edge-2=none", "edge-3=edge-0+edge-1"]).servers
        ((2, None), (3, (0, 1)))
        """
        moves: list[tuple[int, int | None]] = []
        counts: list[tuple[int, int]] = []
        servers: list[tuple[int, tuple[int, ...] | None]] = []
        for word in map(str.strip, words):
            if match := _CLIENT.fullmatch(word):
                client, server, none, count = match.groups()
                if count is not None:
                    counts.append((int(client), int(count)))
                else:
                    moves.append((int(client), None if none else int(server)))
            elif match := _SERVER.fullmatch(word):
                number, none, links = match.groups()
                near = None if none else tuple(int(d) for d in re.findall(r"\d+", links))
                servers.append((int(number), near))
            else:
                raise InputError(f"'{word}' is not a change to the network: {_RULE}")
        for kind, named in (
            ("client", [client for client, _ in moves]),
            ("client", [client for client, _ in counts]),
            ("server", [server for server, _ in servers]),
        ):
            twice = next((number for number in named if named.count(number) > 1), None)
            if twice is not None:
                raise InputError(f"{kind} {twice} is named twice in one change: name it once")
        if begins < 0 or not (moves or counts or servers):
            raise InputError(f"an epoch has a first round and at least one change: {_RULE}")
        return cls(begins, tuple(moves), tuple(counts), tuple(servers))

    def applied(self, net: Network) -> Network:
        """The network from this epoch on, mixed by the paper's matrix; it may have new members."""
        links, out = self._linked(net)
        samples, reach = net.samples.tolist(), list(net.reach)
        # Clients of a server that leaves go with it, unless they reach another or are moved.
        reach = [tuple(d for d in servers if d not in out) for servers in reach]
        for client, server in self.moves:
            if client >= len(reach) and server is None:
                raise InputError(f"there is no client {client}, so it cannot leave")
            if client >= MOST_CLIENTS:
                most = MOST_CLIENTS - 1
                raise InputError(f"client-{client} has too high a number: the highest is {most}")
            while client >= len(reach):  # no gaps in numbers; without a server, no weight
                reach.append(())
                samples.append(1.0)
            reach[client] = () if server is None else (server,)
        for client, count in self.counts:
            if client >= len(reach):
                raise InputError(f"there is no client {client} yet: name its server, too")
            samples[client] = float(count)
        return Network(np.array(samples), tuple(reach), Sparse.of(links), out=out)

    def _linked(self, net: Network) -> tuple[Floats, tuple[int, ...]]:
        """The links and the servers that are out."""
        named = [d for server, near in self.servers for d in (server, *(near or ()))]
        size = max([len(net.linked), *(d + 1 for d in named)])
        if size > MOST_SERVERS:
            raise InputError(f"edge-{size - 1} has too high a number: the highest is 9999")
        links, out = np.zeros((size, size)), set(net.out) | set(range(len(net.linked), size))
        links[: len(net.linked), : len(net.linked)] = net.links
        for server, near in self.servers:
            if server >= len(net.linked) and near is None:
                raise InputError(f"there is no server {server}, so it cannot leave")
            links[server] = links[:, server] = 0
            out.add(server) if near is None else out.discard(server)
        for server, near in self.servers:
            for other in near or ():
                if other in out:
                    raise InputError(
                        f"edge-{server} cannot link to edge-{other}, which is out: name another"
                    )
                links[server, other] = links[other, server] = 1
        return links, tuple(sorted(out))


def heirs(before: Network, now: Network) -> dict[int, int]:
    """The servers that join, each with the one whose model it starts from.

    That is the nearest of those that stay, counted in links; of several, the one with the lowest
    number.

    >>> from sdfeel.core.network import clustered
    >>> line = clustered([1, 1, 1], [0, 1, 2], np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    >>> first = Epoch.parse(0, ["edge-1=none", "edge-2=none"]).applied(line)
    >>> heirs(first, line)
    {1: 0, 2: 0}
    """
    stay = set(before.present.tolist()) & set(now.present.tolist())
    if not stay:
        raise InputError(
            "no server stays, so the models would be lost: replace servers one at a time"
        )
    return nearest(set(now.present.tolist()) - stay, stay, now.linked)


def nearest(joining: Iterable[int], there: Iterable[int], links: Sparse) -> dict[int, int]:
    """For each of the joining servers the nearest of those that are there, counted in links; of
    several, the one with the lowest number."""
    found, known = {}, set(there)
    for server in joining:
        front, seen = {server}, {server}
        while front and not front & known:
            front = {int(d) for each in front for d in links.row(each)} - seen
            seen |= front
        if front:
            found[server] = min(front & known)
    return dict(sorted(found.items()))


def schedule(texts: Sequence[str]) -> tuple[Epoch, ...]:
    """Epochs of lines such as `10: client-3=none, client-4=edge-1`; rounds count from 1.

    >>> schedule(["10: client-4=edge-1"])[0].begins
    9
    """
    found = []
    for text in texts:
        number, colon, rest = text.partition(":")
        if not colon or not number.strip().isdigit() or int(number) < 1:
            raise InputError(
                f"'{text}' does not describe an epoch: write the first round, a colon and what "
                f"changes, such as '10: client-3=none, client-4=edge-1'"
            )
        found.append(Epoch.parse(int(number) - 1, rest.split(",")))
    begins = [epoch.begins for epoch in found]
    if sorted(set(begins)) != begins:
        raise InputError(f"epochs must begin one after another, got rounds {_rounds(begins)}")
    return tuple(found)


def _rounds(begins: Iterable[int]) -> str:
    return ", ".join(str(each + 1) for each in begins)
