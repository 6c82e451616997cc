"""The other servers: who was given up, who may come back, and whose word is believed.

Whatever another server says about itself is a claim. How much it counts is decided by the scheme on
our side; where it is in the run must fit our own records or have a second witness.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from sdfeel.core.errors import SdfeelError
from sdfeel.live.edge.absent_servers import AGAIN, Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.protocol import HERE, Link, whole
from sdfeel.live.transport.errors import NotTrusted, Refused, Rejected, Unreachable

CATCHES = 10
MOST_LEAD = 64  # rounds that are left out at most so that the others can be met
PACE = 2.0  # how many times our own pace a server may have had without us


@dataclass
class Neighbours:
    """What one server thinks of the others."""

    cluster: Cluster
    peers: Mapping[int, Link]
    back: Callable[[int], Awaitable[bool]]  # can a server that was given up take part?
    _silences: dict[int, tuple[int, int]] = field(default_factory=dict)  # how often, until when
    _heard: dict[int, float] = field(default_factory=dict)  # when each was last in step with us

    _claims: dict[int, float] = field(
        default_factory=dict
    )  # since when each has claimed what nobody confirms
    _catching_up: int = 0  # small steps that are believed after a large one that was confirmed

    _leaps: int = 0  # since we were last in step
    _expected: dict[int, int] = field(default_factory=dict)  # in which round each will be met

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
        """Do without a server that says it is where nobody else has seen it; it may be honest."""
        self.cluster.complain(
            f"edge-{server}: it says that it is in round {claim + 1}, which nobody confirms: "
            f"continuing without it"
        )
        self.give_up(server, k)

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        """A server sent what no honest one sends: name it, and leave it out where allowed."""
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
        if server in self.absent and self._may(server):
            self.absent.discard(server)

    def expect(self, server: int, k: int) -> None:
        """Do without a server that has leapt ahead, until we reach its round."""
        self.absent.add(server)
        self._expected[server] = k

    def announced(self, server: int, k: int) -> None:
        """A server asks for a round to come; if it was given up, that is where we meet it."""
        if server in self.absent:
            self._expected[server] = k

    def reached(self, k: int) -> None:
        """We are in round `k`: whoever said that it would be here by now takes part again."""
        for server in [d for d, there in self._expected.items() if there <= k]:
            del self._expected[server]
            self.welcome(server)

    def _may(self, server: int) -> bool:
        turn = self.cluster.turn
        k = 0 if turn is None else turn.k
        if self.cluster.quarantine.holds(f"edge-{server}", k):
            return False
        return turn is None or k >= self._silences.get(server, (0, 0))[1]

    async def _may_come_back(self, server: int) -> bool:
        return self._may(server) and await self.back(server)

    async def denied(self, server: int, error: SdfeelError) -> None:
        """A server refuses us. It alone cannot end us: that takes every server that can be reached.

        Waits for a moment before asking it again.
        """
        self.blame(server, error)
        if isinstance(error, NotTrusted | Refused) and not isinstance(error, Rejected):
            others = [d for d in self.peers if d != server]
            answers = await asyncio.gather(*(self._accepts(d) for d in others))
            if not any(answers):
                raise error
        await asyncio.sleep(AGAIN)

    async def _accepts(self, server: int) -> bool:
        """Does a server not refuse us? Silence is not a refusal, if the server was there before."""
        try:
            await self.peers[server].ask("here", {}, seconds=HERE)
        except Unreachable:
            return server in self._heard
        except SdfeelError:
            return False
        return True

    async def agreed_round(self, k: int, claimant: int, claim: int) -> int | None:
        """The round that the others are in, or None where one's claim is not to be believed (yet).

        Either two servers are further than servers in step ever are, or the claim must fit what we
        know: no server continues without us before its deadline, or much faster than we ever did.
        """
        others = [d for d in self.peers if d != claimant]
        told = await asyncio.gather(*(self._round_of(d) for d in others))
        rounds = sorted([claim, *(found for found in told if found is not None)], reverse=True)
        if len(rounds) > 1 and rounds[1] > k + len(self.peers):
            self._catching_up = CATCHES
            return rounds[1]
        if self._catching_up and claim <= k + len(self.peers) + 1:
            self._catching_up -= 1  # they continued once more before they heard of us
            return claim
        return claim if self._plausible(k, claimant, claim) else None

    def lead(self) -> int:
        """Rounds by which to leap beyond the others, so that they reach us.

        None at first; more and more where they have been faster than our leaps.
        """
        found = min((1 << self._leaps) - 1, MOST_LEAD)
        self._leaps = min(self._leaps + 1, MOST_LEAD)
        return found

    def doubts(self, claimant: int) -> bool:
        """Has a claim that we do not believe been made for no longer than a deadline?"""
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
