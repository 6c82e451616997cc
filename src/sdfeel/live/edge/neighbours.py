"""The other servers: which were given up, which may come back, and whose claims are believed.

Whatever another server says about itself is a claim. Our own copy of the scheme decides how much
its model counts. The round that it says it is in must fit our own records, or a second server must
confirm it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from sdfeel.core.errors import SdfeelError
from sdfeel.live.edge.absent_servers import AGAIN, Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.protocol import HERE, Link, whole
from sdfeel.live.transport.errors import NotTrusted, Refused, Rejected, Unreachable

CATCHES = 10  # small leaps that are believed after a large one was confirmed
MOST_LEAD = 64  # most rounds by which to leap beyond the others, to meet them
PACE = 2.0  # how many times as fast as we are a server may have been without us


@dataclass
class Neighbours:
    """What one server knows and believes about the others."""

    cluster: Cluster
    peers: Mapping[int, Link]
    back: Callable[[int], Awaitable[bool]]  # can a server that was given up take part?
    _silences: dict[int, tuple[int, int]] = field(default_factory=dict)  # how often, until round
    _heard: dict[int, float] = field(default_factory=dict)  # when each was last in step with us

    _claims: dict[int, float] = field(default_factory=dict)  # since when each is unconfirmed
    _catching_up: int = 0  # how many more small leaps are believed without a witness

    _leaps: int = 0  # since we were last in step
    _expected: dict[int, int] = field(default_factory=dict)  # the round in which to meet each

    def __post_init__(self) -> None:
        self.absent = Absent(self._may_come_back)

    def heard(self, server: int) -> None:
        """A server did its part of a round."""
        self._silences.pop(server, None)
        self._claims.pop(server, None)
        self._catching_up = self._leaps = 0
        self._heard[server] = self.cluster.clock()

    def give_up(self, server: int, k: int) -> None:
        """Continue without a silent server, and for longer if it is silent repeatedly."""
        times = self._silences.get(server, (0, 0))[0]
        pause = min(2**times - 1, self.cluster.policy.quarantine)
        self._silences[server] = (times + 1, k + 1 + pause)
        self.absent.add(server)

    def unconfirmed(self, server: int, k: int, claim: int) -> None:
        """Do without a server whose round nobody else confirms, though it may be honest."""
        self.cluster.complain(
            f"edge-{server}: it says that it is in round {claim + 1}, but no other server confirms "
            f"that: continuing without it for now"
        )
        self.give_up(server, k)

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        """A server sent what no honest one sends: log it, and leave it out if the policy allows."""
        self.blame(server, error)
        self._claims.pop(server, None)
        if self.cluster.policy.dead_edge == "drop":
            self.cluster.quarantine.add(f"edge-{server}", k, str(error))
            self.absent.add(server)

    def blame(self, server: int, error: SdfeelError) -> None:
        self.cluster.counts.rejected += isinstance(error, Rejected)
        self.cluster.complain(f"edge-{server}: {error}")

    def welcome(self, server: int) -> None:
        """A server that was given up takes part again, unless it must stay away for longer."""
        if server in self.absent and self._may_take_part(server):
            self.absent.discard(server)

    def expect(self, server: int, k: int) -> None:
        """Do without a server that has leapt ahead, until we reach its round."""
        self.absent.add(server)
        self._expected[server] = k

    def announced(self, server: int, k: int) -> None:
        """A server asks for a later round; if it was given up, we meet it again there."""
        if server in self.absent:
            self._expected[server] = k

    def reached(self, k: int) -> None:
        """We are in round `k`: servers that we expect in it, or before, take part again."""
        for server in [d for d, there in self._expected.items() if there <= k]:
            del self._expected[server]
            self.welcome(server)

    def _may_take_part(self, server: int) -> bool:
        turn = self.cluster.turn
        k = 0 if turn is None else turn.k
        if self.cluster.quarantine.holds(f"edge-{server}", k):
            return False
        return turn is None or k >= self._silences.get(server, (0, 0))[1]

    async def _may_come_back(self, server: int) -> bool:
        return self._may_take_part(server) and await self.back(server)

    async def denied(self, server: int, error: SdfeelError) -> None:
        """A server refuses us: raise the error only if no other server accepts us.

        So a single server cannot end this one. Otherwise wait a moment before it is asked again.
        """
        self.blame(server, error)
        if isinstance(error, NotTrusted | Refused) and not isinstance(error, Rejected):
            others = [d for d in self.peers if d != server]
            answers = await asyncio.gather(*(self._accepts(d) for d in others))
            if not any(answers):
                raise error
        await asyncio.sleep(AGAIN)

    async def _accepts(self, server: int) -> bool:
        """Does a server accept us? A silent one does, if it was in step with us before."""
        try:
            await self.peers[server].ask("here", {}, seconds=HERE)
        except Unreachable:
            return server in self._heard
        except SdfeelError:
            return False
        return True

    async def agreed_round(self, k: int, claimant: int, claim: int) -> int | None:
        """The round that the others are in; None if `claimant`'s claim is not believed (yet).

        Two servers must be further ahead than servers in step ever are. A single claim must fit
        what we know: no server continues without us before its deadline, or much faster than we
        ever were.
        """
        others = [d for d in self.peers if d != claimant]
        told = await asyncio.gather(*(self._round_of(d) for d in others))
        rounds = sorted([claim, *(found for found in told if found is not None)], reverse=True)
        if len(rounds) > 1 and rounds[1] > k + len(self.peers):
            self._catching_up = CATCHES
            return rounds[1]
        if self._catching_up and claim <= k + len(self.peers) + 1:
            self._catching_up -= 1  # they did another round before they heard from us
            return claim
        return claim if self._plausible(k, claimant, claim) else None

    def lead(self) -> int:
        """How many rounds to leap beyond the others, so that they reach us and not we them.

        0 at first; more each time that they were gone before we could meet them.
        """
        found = min((1 << self._leaps) - 1, MOST_LEAD)
        self._leaps = min(self._leaps + 1, MOST_LEAD)
        return found

    def doubts(self, claimant: int) -> bool:
        """Should we still wait for a confirmation of this server's claim, until the deadline?"""
        first = self._claims.setdefault(claimant, self.cluster.clock())
        return self.cluster.clock() - first < self.cluster.policy.edge_deadline

    async def _round_of(self, server: int) -> int | None:
        try:
            header, _ = await self.peers[server].ask("here", {}, seconds=HERE)
            return whole(header, "round")
        except SdfeelError:
            return None

    def _plausible(self, k: int, claimant: int, claim: int) -> bool:
        records = self.cluster.store.recent_records(50)
        if not records:  # with nothing to compare, the only other server is believed
            return len(self.peers) == 1
        fastest = max(1e-3, min(each["ended"] - each["began"] for each in records))
        apart = self.cluster.wall() - max(each["ended"] for each in records)
        if claimant in self._heard:
            apart = self.cluster.clock() - self._heard[claimant]
        patient = apart >= self.cluster.policy.edge_deadline / 2
        return bool(patient and claim - k <= 1 + PACE * apart / fastest)
