"""An asynchronous server's model: who holds it still, and what is applied to it meanwhile.

One server at a time leads an exchange. It holds this one, reads its model, and has it apply the
outcome. The hold and the outcome are durable.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sdfeel.live.edge.absent_servers import Absent
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.federation import blended
from sdfeel.live.protocol import Answer, Header, seconds, whole
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import digest

FACT = "meeting"


@dataclass(frozen=True)
class Seen:
    """A server as its leader sees it, held still."""

    model: Tensor
    version: int  # changes of its model so far
    heard: list[int]  # (D,) the stamp of each server's last round, as it has heard it
    stamp: int


@dataclass
class Held:
    """The model of one server, and all that must not be forgotten about it."""

    cluster: Cluster
    absent: Absent  # leaders that were given up, too
    version: int = 0
    heard: list[int] = field(default_factory=list)
    stamp: int = 0
    lock: tuple[int, int] | None = None  # who leads, in which of its rounds
    applied: dict[int, int] = field(default_factory=dict)  # each leader's last round applied here
    outbox: dict[int, Header] = field(default_factory=dict)  # what others must still apply
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._federation, self._me = self.cluster.federation, self.cluster.server
        self._store, self._bell = self.cluster.store, self.cluster.bell
        self._policy = self.cluster.policy
        self.heard = [0] * len(self._federation.net.servers)
        saved: dict[str, Any] | None = self._store.fact(FACT)
        if saved is not None:
            self.version, self.heard, self.stamp = saved["version"], saved["heard"], saved["stamp"]
            self.lock = None if saved["lock"] is None else (saved["lock"][0], saved["lock"][1])
            self.applied = {int(d): k for d, k in saved["applied"].items()}
            self.outbox = {int(d): header for d, header in saved["outbox"].items()}
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
            },
        )

    def body(self) -> bytes:
        """The model as it is now."""
        saved = self._store.get("own", 0)
        assert saved is not None  # written when the node began
        return saved.body

    def seen(self) -> Seen:
        return Seen(self._federation.own_model(self.body()), self.version, self.heard, self.stamp)

    def hold(self, leader: int, k: int) -> bool | None:
        """Be held by a leader, durably, if free or held by the same; None: not now."""
        self._give_up()
        if self.lock == (leader, k):
            return True
        if self.lock is not None and not (self.lock[0] == leader and self.lock[1] < k):
            return None  # a leader that asks anew has given up its exchange before
        self.lock, self._since = (leader, k), self.cluster.clock()
        with self._store.commit():
            self.save()
        return True

    def _give_up(self) -> None:
        """A leader that holds on for too long is dropped, if so decided.

        Not before it had the time to give up another server itself.
        """
        if self.lock is None or self.lock[0] == self._me or self._policy.dead_edge == "wait":
            return
        if self.cluster.clock() - self._since > 2 * self._policy.edge_deadline:
            self.absent.add(self.lock[0])
            self.lock = None

    async def serve_lock(self, leader: int, header: Header) -> Answer:
        k = whole(header, "round")
        if k <= self.applied.get(leader, -1):
            raise Refused(f"round {k} of edge-{leader} was applied before")
        given = await self._bell.wait_for(lambda: self.hold(leader, k), seconds(header, "wait"))
        if given is None:
            return {"busy": True}, None
        body = self.body()
        told = {"version": self.version, "heard": self.heard, "stamp": self.stamp}
        return {**told, "sha256": digest(body)}, body

    def serve_apply(self, leader: int, header: Header, body: bytes | None) -> Answer:
        k = whole(header, "round")
        if k <= self.applied.get(leader, -1):
            return {"known": True}, None
        if self.lock == (leader, k) and header.get("release"):
            self.release()
            return {"released": True}, None
        if self.lock != (leader, k):
            raise Refused(f"edge-{self._me} is not held by round {k} of edge-{leader} any more")
        row = self._row(leader, header)
        if body is None:
            raise Refused("the message carries no model")
        theirs = self._checked(leader, k, header, body)
        own = self._federation.own_model(self.body())
        heard, stamp = self.numbers(header), whole(header, "stamp")
        self.version, self.lock = self.version + 1, None
        self.heard, self.stamp = heard, stamp
        self.applied[leader] = k
        with self._store.commit():
            mixed = blended(row, {leader: theirs, self._me: own})
            self._store.put("own", 0, 0, self._federation.body(mixed), replace=True)
            self.save()
        self._bell.ring()
        return {"applied": True}, None

    def release(self) -> None:
        """Be free again, as before."""
        self.lock = None
        with self._store.commit():
            self.save()
        self._bell.ring()

    def _checked(self, leader: int, k: int, header: Header, body: bytes) -> Tensor:
        """The leader's model; one that is refused ends the exchange, which changes nothing here."""
        try:
            bound = self._policy.max_server_norm
            return self._federation.model(body, header.get("sha256"), bound)
        except Rejected as error:
            self.cluster.counts.rejected += 1
            self.cluster.counts.last_error = f"edge-{leader}: {error}"
            self.applied[leader] = k
            self.release()
            raise

    def _row(self, leader: int, header: Header) -> dict[int, float]:
        """What this server takes from itself and from the leader."""
        try:
            row = dict(zip(header["sources"], map(float, header["weights"]), strict=True))
        except (KeyError, TypeError, ValueError):
            raise Refused("the message's weights cannot be read") from None
        if not set(row) <= {leader, self._me} or not abs(sum(row.values()) - 1) < 1e-9:
            raise Refused("the weights of an exchange must be of the two servers and sum to 1")
        return row

    def numbers(self, header: Header) -> list[int]:
        """What a server has heard, out of a message."""
        found, size = header.get("heard"), len(self._federation.net.servers)
        whole_numbers = isinstance(found, list) and all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in found
        )
        if not isinstance(found, list) or not whole_numbers or len(found) != size:
            raise Refused(f"the message's 'heard' must be {size} whole numbers from 0")
        return found
