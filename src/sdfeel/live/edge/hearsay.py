"""How many rounds there can have been: a bound on the stamps that asynchronous servers claim.

Stamps travel with models and tell their age; they grow by one with every round of any server. A
liar that claims a stamp far beyond the others' would make all their models look old. So a stamp is
believed only up to the number of rounds that all servers claim for themselves, plus a share.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sdfeel.live.edge.tally import Paces
from sdfeel.live.protocol import Header, is_whole, whole
from sdfeel.live.transport.errors import Refused

UNHEARD = 0.25  # share of all rounds that may have ended since we last heard from each server
OPEN = 4  # and this many more rounds of each server


@dataclass
class RoundCount:
    """How many rounds each server says that it has done itself."""

    paces: Paces
    me: int
    rounds: list[int] = field(default_factory=list)  # by server

    def __post_init__(self) -> None:
        self.paces = Paces(np.ones_like(self.paces.lengths), self.paces.seconds)
        self.rounds = self.rounds or [0] * len(self.paces.lengths)

    def heard(self, server: int, rounds: object) -> None:
        """A server tells how many rounds it has done."""
        if is_whole(rounds):
            self.rounds[server] = max(self.rounds[server], rounds)

    def most(self, silent: Collection[int] = ()) -> int:
        """The highest stamp that is believed: one for every round of every server.

        A server's own count is believed up to twice what fits the others', as for the run's end
        (`StepTally`). A server that does not answer may have been as fast as we were.
        """
        bounds = self.paces.bounds(self.rounds)
        bounds[self.me] = inf  # our own count is certain
        done = [float(min(pair)) for pair in zip(self.rounds, bounds, strict=True)]
        for d in silent:
            done[d] = max(done[d], self.paces.fair(d, self.me, self.rounds[self.me]))
        return int((1 + UNHEARD) * sum(done)) + OPEN * len(done)

    def claims(self, header: Header) -> tuple[list[int], int]:
        """The stamps in a message: of each server's last round as heard, and the highest of all."""
        found, size = header.get("heard"), len(self.rounds)
        if not isinstance(found, list) or len(found) != size or not all(map(is_whole, found)):
            raise Refused(f"the message's 'heard' must be {size} whole numbers from 0")
        return found, max(*found, whole(header, "stamp"))

    def believed(
        self, header: Header, heard: Sequence[int], stamp: int, silent: Collection[int] = ()
    ) -> tuple[list[int], int]:
        """The message's stamps, cut down to what can be true given our own `heard` and `stamp`.

        Nobody knows more about our rounds than we do.
        """
        found, newest = self.claims(header)
        most = max(stamp, self.most(silent))
        kept = [min(number, most) for number in found]
        kept[self.me] = min(kept[self.me], heard[self.me])
        return kept, max(*kept, min(newest, most))
