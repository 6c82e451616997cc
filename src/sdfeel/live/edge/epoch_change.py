"""Between two rounds: a server takes over the network of a new epoch, joins it, or leaves it.

The servers that stay in the network decide together whether an epoch begins. A server that leaves
is not asked, so a dead one can be removed. A server that joins is not asked either: it learns from
the others that its epoch has begun, and gets a model from the server that `core/membership.py`
names.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sdfeel.core.decide import length
from sdfeel.core.errors import SdfeelError
from sdfeel.core.membership import heirs
from sdfeel.live.edge.absent_servers import AGAIN
from sdfeel.live.edge.handout import TOLD
from sdfeel.live.edge.rows import place
from sdfeel.live.edge.state import ServerState
from sdfeel.live.epochs import EpochBook, SignedNetwork
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import HERE, Answer, Header, Link, Who, whole
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused

if TYPE_CHECKING:
    from sdfeel.live.edge.server import Edge

EVER = 2**62  # later than any round


class Boundary:
    """What one server does between two epochs."""

    def __init__(
        self,
        edge: "Edge",
        book: EpochBook,
        peers: dict[int, Link],
        find: Callable[[int, str], Link] | None,  # connects to a server with a new number
    ) -> None:
        self._edge, self._book, self._peers, self._find = edge, book, peers, find
        self._store, self._me = edge.store, edge.number
        for version in book.adopted:
            self._meet(version)

    @property
    def out(self) -> bool:
        """Is this server outside of the present network?"""
        return not self._edge.federation.has(self._me)

    def answer(self, who: Who, header: Header, body: bytes | None) -> Answer:
        """Answer a server whether we hold its epoch, or any node with the epoch after its own."""
        if who.role == "edge" and body is not None:
            held = self._book.take(body, self._edge.known.k)
            return ({"early": True} if held is None else {"held": held}), None
        found = self._book.following(whole(header, "after"))
        return {}, None if found is None else found.body

    def given(self, server: int, header: Header) -> Answer:
        """The model with which a server joins."""
        saved = self._store.get("given", whole(header, "epoch"), server)
        return ({"early": True}, None) if saved is None else ({"sha256": saved.sha256}, saved.body)

    async def cross(self) -> None:
        """Before a round: begin the epoch that is due, at all servers or at none."""
        for body in self._book.files(self._edge.cluster.complain):
            await self._spread(body)
        while (due := self._book.due(self._edge.known.k)) is not None:
            now, new = self._edge.federation, self._edge.federation.renewed(due)
            stay = [link for d, link in self._peers.items() if now.has(d) and new.has(d)]
            if all(await asyncio.gather(*(self._holds(link, due) for link in stay))):
                await self._adopt(due, new)
            else:
                self._book.void(due)
                self._edge.tell(
                    f"epoch {due.number} is void: a server had begun round {due.begins + 1}; run "
                    f"`sdfeel deploy change` again, for a later round"
                )

    async def await_place(self) -> bool:
        """Wait until an epoch has a place for this server; False if the run ends before."""
        self._edge.tell("waiting for an epoch of the network that has a place for this server")
        while self.out:
            ended: list[bool] = []  # says each server that answers
            for d, link in list(self._peers.items()):
                if not self._edge.federation.has(d):
                    continue
                try:
                    learned = await self.learn(d)
                    if learned:
                        break
                    if learned is None:  # the server that gives us a model has not begun it yet
                        continue
                    header, _ = await link.ask("here", {}, seconds=HERE)
                except SdfeelError as error:
                    self._edge.cluster.complain(f"{link.name}: {error}")
                    continue
                ended.append(header.get("over") is True)
            else:
                if ended and sum(ended) >= min(2, len(ended)):  # one of them may lie
                    return False
                await asyncio.sleep(AGAIN)
        return True

    async def learn(self, server: int) -> bool | None:
        """Take over the next epoch, if it has begun at another server; False if it knows none.

        None: the epoch has a place for us, but it is too early to join.
        """
        old = self._edge.federation
        _, body = await self._peers[server].ask("epoch", {"after": old.epoch}, seconds=HERE)
        if body is None:
            return False
        version = self._book.read(body)
        new = old.renewed(version)
        self._meet(version)
        if old.has(self._me) and new.has(self._me):
            raise Refused("it has begun an epoch that we were not asked about")
        if new.has(self._me):
            return True if await self._begin(version, old, new) else None
        if not await self._confirmed(version, server):
            raise Refused(f"nobody confirms that epoch {version.number} has begun without us")
        with self._store.commit():
            self._book.accept(version)
        self._changed(new, self._edge.known)
        return True

    async def _confirmed(self, version: SignedNetwork, server: int) -> bool:
        """Does a second server confirm that this epoch has begun? A signed one may be void."""
        now = self._edge.federation
        others = [d for d in self._peers if d != server and now.has(d)]

        async def says(d: int) -> bool:
            try:
                asked = self._peers[d].ask("epoch", {"after": now.epoch}, seconds=HERE)
                return self._book.read((await asked)[1] or b"").digest == version.digest
            except SdfeelError:
                return False

        return not others or any(await asyncio.gather(*map(says, others)))

    async def _begin(self, version: SignedNetwork, old: Federation, new: Federation) -> bool:
        """Join with the model that a neighbour gives us; False if it cannot give it yet."""
        source = heirs(old.net, new.net)[self._me]
        question = {"epoch": version.number}
        header, body = await self._peers[source].ask("start", question, seconds=HERE)
        if body is None:
            return False  # it has not begun there yet
        edge = self._edge
        model = new.model(body, header.get("sha256"), edge.policy.max_server_norm)
        edge.cluster.bounds.check(model, new.initial)
        mine = {n for n, reach in enumerate(new.net.reach) if self._me in reach}
        taken, steps = await self._replayed(old, version.begins, mine)
        over = int(steps) >= new.iterations
        known = ServerState(taken=taken, k=version.begins, steps=steps, met=version.begins)
        known = replace(known, over=over)
        with self._store.commit():
            for kind in ("start", "result", "hop"):  # of an earlier stay
                self._store.prune(kind, EVER)
            self._store.put("start", known.k, 0, body, replace=True)
            self._store.put("own", 0, 0, body, replace=True)
            self._store.remember("federation", new.digest)
            reset_rows(self._store, self._me, new, body)
            self._book.accept(version)
            known.save(self._store)
        self._changed(new, known)
        edge.tell(
            f"joins with epoch {version.number} in round {known.k + 1}, with {len(mine)} clients "
            f"and the model of edge-{source}"
        )
        return True

    async def _replayed(
        self, old: Federation, rounds: int, clients: set[int]
    ) -> tuple[dict[int, int], float]:
        """The clients' iterations and a server's steps in these rounds, as the scheme decides."""
        taken, steps = dict.fromkeys(clients, 0), 0.0
        for k in range(rounds):
            turn = Turn.of(old.at(k), 0, k, {}, lane=0)
            steps += length(old.at(k).net, turn.work, turn.planned)
            for n in clients:
                taken[n] += int(turn.planned[n]) if n < len(turn.planned) else 0
            await asyncio.sleep(0)  # thousands of rounds take a while, and others ask
        return taken, steps

    async def _spread(self, body: bytes) -> None:
        """Take over an epoch from our files and pass it on; if a message is lost, others ask."""
        try:
            held = self._book.take(body, self._edge.known.k)
        except Refused as error:
            self._edge.cluster.complain(f"a new network in our files was not accepted: {error}")
            return
        if held:
            calls = (link.ask("epoch", {}, body, HERE) for link in self._peers.values())
            await asyncio.gather(*calls, return_exceptions=True)

    async def _holds(self, link: Link, epoch: SignedNetwork) -> bool:
        while True:
            try:
                header, _ = await link.insist("epoch", {}, epoch.body)
                if header.get("early") is not True:
                    return header.get("held") is True
                await asyncio.sleep(AGAIN)
            except SdfeelError as error:
                self._edge.cluster.complain(f"{link.name}: epoch {epoch.number}: {error}")
                await asyncio.sleep(AGAIN)

    async def _adopt(self, epoch: SignedNetwork, new: Federation) -> None:
        """Put an epoch in force here, durably."""
        edge, old, known = self._edge, self._edge.federation, self._edge.known
        mine = {n for n, reach in enumerate(new.net.reach) if self._me in reach}
        stay = {n for n, reach in enumerate(old.net.reach) if self._me in reach}
        came = mine - stay
        fresh = (await self._replayed(old, known.k, came))[0] if came else {}
        taken = {n: count for n, count in known.taken.items() if n in mine}
        known = replace(known, taken={**taken, **fresh}, guests=())
        start = self._store.get("start", known.k)
        assert start is not None  # it was committed before the round was opened
        with self._store.commit():
            self._book.adopt(epoch)
            known.save(self._store)
            self._store.prune("given", epoch.number)
            for server, source in heirs(old.net, new.net).items():
                if source == self._me:
                    self._store.put("given", epoch.number, server, start.body, replace=True)
            reset_rows(self._store, self._me, new, start.body)
        self._meet(epoch)
        self._changed(new, known)
        told = [f"{len(mine)} clients"] if new.has(self._me) else ["this server has left"]
        for what, clients in (("new", came), ("gone", stay - mine)):
            names = ", ".join(f"client-{n}" for n in sorted(clients))
            told += [f"{what}: {names}"] if names else []
        edge.tell(f"epoch {epoch.number} from round {epoch.begins + 1} on: {'; '.join(told)}")

    def _changed(self, new: Federation, known: ServerState) -> None:
        edge = self._edge
        edge.known, edge.federation, edge.cluster.federation = known, new, new
        edge.cluster.turn = None
        for link in self._peers.values():
            link.renew(new.about)
        edge.bell.ring()
        edge.cluster.work_bell.ring()

    def _meet(self, version: SignedNetwork) -> None:
        """Connect to every new server that the version names."""
        for d, address in version.addresses.items():
            if self._find is not None and d != self._me and d not in self._peers:
                self._peers[d] = self._find(d, address)


def reset_rows(store: Store, server: int, new: Federation, start: bytes) -> None:
    """Reset all rows but the model, as a new epoch begins with what they are in a first round.

    Call it inside a commit.
    """
    if not new.net.shelves:
        return
    store.prune("row", EVER)
    store.remember(TOLD, None)
    for n, source in new.net.first_rows():
        if source is not None and new.holder(n) == server:
            store.put("row", 0, place(n), start, replace=True)
