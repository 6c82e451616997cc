"""An asynchronous server's model: which server has locked it, and what was applied to it.

One server leads each exchange: it locks this server's model, reads it, and has this server apply
the outcome. Both the lock and the outcome are durable.
"""

import asyncio
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from torch import Tensor

from sdfeel.core.staleness import Clocks
from sdfeel.live.edge.absent_servers import AGAIN
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.hearsay import RoundCount
from sdfeel.live.edge.neighbours import Neighbours
from sdfeel.live.edge.tally import Paces, StepTally
from sdfeel.live.federation import Turn, Weights, blended
from sdfeel.live.protocol import Answer, Header, seconds, whole
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import digest

FACT = "meeting"
SOON = 0.001  # seconds to wait beyond a leader's deadline, so that it has really passed


@dataclass(frozen=True)
class PeerModel:
    """A locked server as the leader of an exchange sees it."""

    model: Tensor
    version: int  # how often its model has changed so far
    heard: list[int]  # (D,) the stamp of each server's last round, as it has heard it
    stamp: int


@dataclass
class LockedModel:
    """This server's model, its lock, and what must survive a crash."""

    cluster: Cluster
    others: Neighbours  # a leader may be given up, too
    version: int = 0
    heard: list[int] = field(default_factory=list)
    stamp: int = 0
    lock: tuple[int, int] | None = None  # the leader that holds it, and that leader's round
    applied: dict[int, int] = field(default_factory=dict)  # each leader's last round applied here
    outbox: dict[int, Header] = field(default_factory=dict)  # what others must still apply
    tally: StepTally = field(init=False)  # local iterations of each server
    count: RoundCount = field(init=False)  # rounds of each server
    silent: set[int] = field(default_factory=set)  # servers that did not answer the last inquiry
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._federation, self._me = self.cluster.federation, self.cluster.server
        self._store, self._bell = self.cluster.store, self.cluster.bell
        self._policy = self.cluster.policy
        self.heard = [0] * len(self._federation.net.servers)
        paces = Paces.of(self._federation.decisions)
        self.tally = StepTally(paces, self._me, self._federation.iterations)
        self.count = RoundCount(paces, self._me)
        self.count.heard(self._me, (self._store.last_record() or {}).get("number"))
        saved: dict[str, Any] | None = self._store.fact(FACT)
        if saved is not None:
            self.version, self.heard, self.stamp = saved["version"], saved["heard"], saved["stamp"]
            self.lock = None if saved["lock"] is None else (saved["lock"][0], saved["lock"][1])
            self.applied = {int(d): k for d, k in saved["applied"].items()}
            self.outbox = {int(d): header for d, header in saved["outbox"].items()}
            self.tally.told = saved.get("steps", self.tally.told)
            self.tally.own = saved.get("own", self.tally.own)
        self._since = self.cluster.clock()

    def save(self) -> None:
        """Call it inside a commit."""
        self._store.remember(
            FACT,
            {
                "version": self.version,
                "heard": self.heard,
                "stamp": self.stamp,
                "lock": self.lock,
                "applied": {str(d): k for d, k in self.applied.items()},
                "outbox": {str(d): header for d, header in self.outbox.items()},
                "steps": self.tally.told,
                "own": self.tally.own,
            },
        )

    def body(self) -> bytes:
        """The model as it is now."""
        return self._store.kept("own", 0).body

    def seen(self) -> PeerModel:
        return PeerModel(
            self._federation.own_model(self.body()), self.version, self.heard, self.stamp
        )

    def hold(self, leader: int, k: int) -> bool | None:
        """Let a leader lock us, durably, if we are free or it already has; None: not now."""
        self._give_up()
        if leader in self.others.absent:
            return None
        if self.lock == (leader, k):
            return True
        if self.lock is not None and not (self.lock[0] == leader and self.lock[1] < k):
            return None  # a leader that asks again has given up its previous exchange
        if self.lock is None:  # otherwise it might hold us for ever by asking again and again
            self._since = self.cluster.clock()
        self.lock = (leader, k)
        with self._store.commit():
            self.save()
        return True

    async def held_by(self, leader: int, k: int, patience: float) -> bool | None:
        """Let a leader lock us as soon as we are free; None if that takes over `patience` seconds.

        We become free when the present leader releases us, or when its time is up.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + patience
        while True:
            left = min(end - clock(), max(0.0, self._left()) + SOON)
            given = await self._bell.wait_for(lambda: self.hold(leader, k), left)
            if given is not None or clock() >= end:
                return given

    def _left(self) -> float:
        """Seconds until the leader that holds us is given up."""
        if self.lock is None or self.lock[0] == self._me or self._policy.dead_edge == "wait":
            return inf
        return self._since + 2 * self._policy.edge_deadline - self.cluster.clock()

    def _give_up(self) -> None:
        """Drop a leader that holds us for too long, if the policy allows it.

        Its deadline is twice ours, so that it can give up another silent server first.
        """
        if self.lock is not None and self._left() < 0:
            self.others.give_up(self.lock[0], self._round())
            self.lock = None

    async def serve_lock(self, leader: int, header: Header) -> Answer:
        k = whole(header, "round")
        if k <= self.applied.get(leader, -1):
            raise Refused(f"the exchange of edge-{leader}'s round {k + 1} was applied here before")
        self._row(leader, k, {"heard": self.heard, "stamp": self.stamp})  # may it lead us at all?
        if self.cluster.quarantine.holds(f"edge-{leader}", self._round()):
            raise Refused(self.cluster.quarantine.reason(f"edge-{leader}"))
        if leader in self.others.absent:  # it held us for too long
            await asyncio.sleep(min(AGAIN, seconds(header, "wait")))
            return {"busy": True}, None
        given = await self.held_by(leader, k, seconds(header, "wait"))
        if given is None:
            return {"busy": True}, None
        body = self.body()
        told: Header = {"version": self.version, "heard": self.heard, "stamp": self.stamp}
        told |= {"steps": self.tally.told, "over": self.cluster.over, "round": self._done()}
        return {**told, "sha256": digest(body)}, body

    def serve_apply(self, leader: int, header: Header, body: bytes | None) -> Answer:
        k = whole(header, "round")
        if k <= self.applied.get(leader, -1):
            return {"known": True}, None
        if self.lock == (leader, k) and header.get("release"):
            self.release()
            return {"released": True}, None
        if self.lock != (leader, k):
            whose = f"edge-{leader}'s round {k + 1}"
            raise Refused(f"edge-{self._me} is no longer locked for {whose}: its time was up")
        before, (heard, stamp) = header.get("before"), self.claimed(header)
        row = self._row(leader, k, before if isinstance(before, dict) else {})
        if body is None:
            raise Refused("the message carries no model")
        own = self._federation.own_model(self.body())
        theirs = self._checked(leader, k, header, body, own)

        def mix() -> Tensor:
            outcome = blended(row, {leader: theirs, self._me: own})
            self.cluster.bounds.check(outcome, own, sum(map(abs, row.values())))
            return outcome

        mixed = self.cluster.kept(mix, own)
        heard = [max(pair) for pair in zip(heard, self.heard, strict=True)]
        stamp = max(stamp, self.stamp)
        self.version, self.lock = self.version + 1, None
        self.heard, self.stamp = heard, stamp
        self.tally.learn(leader, header.get("steps"))
        self.applied[leader] = k
        with self._store.commit():
            self._store.put("own", 0, 0, self._federation.body(mixed), replace=True)
            self.save()
        self._bell.ring()
        return {"applied": True}, None

    def release(self) -> None:
        """Unlock the model, unchanged."""
        self.lock = None
        with self._store.commit():
            self.save()
        self._bell.ring()

    def _checked(self, leader: int, k: int, header: Header, body: bytes, own: Tensor) -> Tensor:
        """The leader's model; if it fails a check, the exchange ends and changes nothing here."""
        try:
            bound = self._policy.max_server_norm
            model = self._federation.model(body, header.get("sha256"), bound)
            self.cluster.bounds.check(model, own)
        except Rejected as error:
            self.applied[leader] = k
            self.release()
            self.others.offended(leader, self._round(), error)
            raise
        return model

    def _round(self) -> int:
        """Our own open round: quarantines are counted in our rounds."""
        return 0 if self.cluster.turn is None else self.cluster.turn.k

    def _row(self, leader: int, k: int, before: Header) -> Weights:
        """The weights with which we mix in an exchange that `leader` leads in its round `k`.

        The leader only tells what it had heard; we ask the scheme ourselves how much it counts.
        """
        if k >= self.tally.most:
            raise Refused(f"no server has a round {k + 1}: the experiment ends before it")
        heard, stamp = self.claimed(before)
        federation = self._federation
        turn = Turn.of(federation, leader, k, {})
        clocks = federation.in_step(0)
        known, stamps = clocks.hearsay.copy(), clocks.stamp.copy()
        known[leader], stamps[leader] = heard, stamp
        clocks = Clocks(0, clocks.led, clocks.touched, known, stamps)
        view = replace(turn.view, clocks=clocks, began=0)
        across = federation.decisions.mix(view, turn.planned).exchange
        if across is None or self._me not in across.rows or leader == self._me:
            raise Refused(f"edge-{leader} is not a neighbour of edge-{self._me}")
        return across.row(self._me)

    def claimed(self, header: Header) -> tuple[list[int], int]:
        """What another server claims to have heard, cut down to what can be true."""
        self._done()
        return self.count.believed(header, self.heard, self.stamp, self.silent)

    def doubts(self, header: Header) -> bool:
        """Does a message claim more rounds than we know of? Then ask all servers first."""
        self._done()
        before = header.get("before")
        told = [header, *([before] if isinstance(before, dict) else [])]
        newest = max(self.count.claims(each)[1] for each in told if "heard" in each)
        return newest > max(self.stamp, self.count.most(self.silent))

    def _done(self) -> int:
        """How many rounds we have done ourselves."""
        self.count.heard(self._me, self._round())
        return self.count.rounds[self._me]
