"""Who belongs to which server, and from which round on: the epochs of a network.

An epoch begins with a round, everywhere. Clients join, leave and move; their numbers stay.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sdfeel.core.errors import InputError
from sdfeel.core.network import Network

_CHANGE = re.compile(r"client-(\d{1,9})=(?:edge-(\d{1,9})|(none)|(\d{1,15}))")
_RULE = "write client-3=none, client-4=edge-1 or, for another number of examples, client-5=80"


@dataclass(frozen=True)
class Epoch:
    """What changes before round `begins`, counted from 0."""

    begins: int
    moves: tuple[tuple[int, int | None], ...] = ()  # client, its server from now on or None
    counts: tuple[tuple[int, int], ...] = ()  # client, its examples from now on

    @classmethod
    def parse(cls, begins: int, words: Iterable[str]) -> "Epoch":
        """From words such as `client-4=edge-1`.

        >>> Epoch.parse(9, ["client-3=none", "client-4=edge-1", "client-5=80"])
        Epoch(begins=9, moves=((3, None), (4, 1)), counts=((5, 80),))
        """
        moves, counts = [], []
        for word in words:
            match = _CHANGE.fullmatch(word.strip())
            if match is None:
                raise InputError(f"'{word.strip()}' is no change of a network: {_RULE}")
            client, server, none, count = match.groups()
            if count is not None:
                counts.append((int(client), int(count)))
            else:
                moves.append((int(client), None if none else int(server)))
        for kind in (moves, counts):
            named = [client for client, _ in kind]
            twice = next((client for client in named if named.count(client) > 1), None)
            if twice is not None:
                raise InputError(f"client {twice} is named twice in one change: name it once")
        if begins < 0 or not (moves or counts):
            raise InputError(f"an epoch has a first round and at least one change: {_RULE}")
        return cls(begins, tuple(moves), tuple(counts))

    def applied(self, net: Network) -> Network:
        """The network from this epoch on, mixed by the paper's matrix; numbers may be new ones."""
        samples, reach = net.samples.tolist(), list(net.reach)
        for client, server in self.moves:
            while client >= len(reach):  # numbers without a gap, and nobody counts without a server
                reach.append(())
                samples.append(1.0)
            reach[client] = () if server is None else (server,)
        for client, count in self.counts:
            if client >= len(reach):
                raise InputError(f"there is no client {client}: name its server, too")
            samples[client] = float(count)
        return Network(np.array(samples), tuple(reach), net.links)


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
                f"'{text}' is no epoch: write the first round, a colon and what changes, such as "
                f"'10: client-3=none, client-4=edge-1'"
            )
        found.append(Epoch.parse(int(number) - 1, rest.split(",")))
    begins = [epoch.begins for epoch in found]
    if sorted(set(begins)) != begins:
        raise InputError(f"epochs must begin one after another, got rounds {_rounds(begins)}")
    return tuple(found)


def _rounds(begins: Iterable[int]) -> str:
    return ", ".join(str(each + 1) for each in begins)
