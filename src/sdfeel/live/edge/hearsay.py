"""The most rounds that there can have been, where the ages of models are known by hearsay.

Stamps travel with models, and grow by one with every round of anybody. Whoever claims a stamp far
beyond the others' would make all of them look old. So no stamp is believed that exceeds the rounds
of all servers, as each of them says for itself, by more than a share.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sdfeel.live.edge.tally import Paces
from sdfeel.live.protocol import Header, is_whole, whole
from sdfeel.live.transport.errors import Refused

UNHEARD = 0.25  # share of all rounds that may have been done since we last heard
OPEN = 4  # and as many rounds of each server


@dataclass
class RoundCount:
    """What one server knows about the rounds of all, at first hand."""

    paces: Paces
    me: int
    rounds: list[int] = field(default_factory=list)  # of each server, as it says itself

    def __post_init__(self) -> None:
        self.paces = Paces(np.ones_like(self.paces.lengths), self.paces.seconds)
        self.rounds = self.rounds or [0] * len(self.paces.lengths)

    def heard(self, server: int, rounds: object) -> None:
        """A server says how many rounds it has done."""
        if is_whole(rounds):
            self.rounds[server] = max(self.rounds[server], rounds)

    def most(self, silent: Collection[int] = ()) -> int:
        """The highest stamp that is believed: one for every round of everybody.

        A server's own word counts for twice what fits the others, as it does for the run's end
        (`StepTally`). One that does not answer may have kept our own pace.
        """
        bounds = self.paces.bounds(self.rounds)
        bounds[self.me] = inf  # we know
        done = [float(min(pair)) for pair in zip(self.rounds, bounds, strict=True)]
        for d in silent:
            done[d] = max(done[d], self.paces.fair(d, self.me, self.rounds[self.me]))
        return int((1 + UNHEARD) * sum(done)) + OPEN * len(done)

    def claims(self, header: Header) -> tuple[list[int], int]:
        """What a message says was heard of each server's last round, and of the newest of all."""
        found, size = header.get("heard"), len(self.rounds)
        if not isinstance(found, list) or len(found) != size or not all(map(is_whole, found)):
            raise Refused(f"the message's 'heard' must be {size} whole numbers from 0")
        return found, max(*found, whole(header, "stamp"))

    def believed(
        self, header: Header, heard: Sequence[int], stamp: int, silent: Collection[int] = ()
    ) -> tuple[list[int], int]:
        """The same as far as it can be true, for one who has `heard` this and knows this `stamp`.

        Nobody knows more about our rounds than we do.
        """
        found, newest = self.claims(header)
        most = max(stamp, self.most(silent))
        kept = [min(number, most) for number in found]
        kept[self.me] = min(kept[self.me], heard[self.me])
        return kept, max(*kept, min(newest, most))
