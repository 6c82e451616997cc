"""Recomputes a synchronous deployment from what its nodes signed, and names who deviates.

Statements name models by their hashes. A verifier has some of these models: the initial one, those
that servers kept, and those that it has recomputed. A client's part needs the models and work that
the client was given, and its data; a server's part needs the models that it received. Both are
computed by the nodes' own code, so a part is right if and only if it has the signed hash.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sdfeel.core.errors import DataError, InputError, RunError
from sdfeel.deploy.membership import versions
from sdfeel.deploy.node import federation_of
from sdfeel.deploy.statement_books import Books, authorities
from sdfeel.deploy.statement_forms import impossible, wrong_steps
from sdfeel.deploy.verify_copies import (
    ELSEWHERE,
    IMPOSSIBLE,
    Bodies,
    ClientCopies,
    ClientCopy,
    Deviates,
    NotAtHand,
    Replayed,
    ServerCopy,
    data_of,
    not_repeated,
    shared_files,
)
from sdfeel.deploy.verify_published import published
from sdfeel.deploy.verify_report import Finding, Verification
from sdfeel.engine.combine import mean
from sdfeel.live.edge.clients import Cluster
from sdfeel.live.edge.handout import TOLD
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.round_end import Closed
from sdfeel.live.edge.rows import returned
from sdfeel.live.edge.state import ServerState
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import Bell
from sdfeel.live.statements import Statement, work_hash
from sdfeel.live.store import Store
from sdfeel.live.transport.tensors import digest
from sdfeel.models.flat import FlatModule


def verify(
    directory: Path,
    only_round: int | None = None,  # from 0
    only_client: int | None = None,
    data: Sequence[str] = (),  # client-3=path, or a directory with the experiment's data set
) -> Verification:
    """Check what the nodes of a deployment signed, and recompute as much as possible."""
    node = shared_files(directory)
    federation, module = federation_of(node)
    if not federation.synchronous:
        raise InputError(
            "only synchronous deployments can be verified: nobody could repeat an asynchronous "
            "one's rounds one by one; see `sdfeel.deploy.replay`"
        )
    with tempfile.TemporaryDirectory(prefix="verify-") as temporary, ExitStack() as stack:
        copies = ClientCopies(directory, node, module, data_of(data), Path(temporary), stack)
        verifier = Verifier(directory, federation, copies.made, Path(temporary), stack, module)
        clients = len(verifier.federation.net.samples)
        for client in (only_client, *copies.data):
            if client is not None and client >= clients:
                raise InputError(
                    f"there is no client {client}: this federation has clients 0 to {clients - 1}"
                )
        torch.set_num_threads(1)
        return verifier.run(only_round, only_client)


@dataclass
class Verifier:
    """One verification of one deployment."""

    directory: Path
    federation: Federation  # in its last epoch; it refers to the earlier ones
    copies: Callable[[Federation, int], ClientCopy | str]  # a client, or why it cannot be repeated
    temporary: Path
    stack: ExitStack  # ends what was opened
    module: nn.Module | None = None  # to read a published model
    found: Verification = field(default_factory=Verification)
    _members: dict[int, ClientCopy | str] = field(default_factory=dict)
    _counts: Counter[int] = field(default_factory=Counter)  # local iterations of clients
    _only_client: int | None = None

    def __post_init__(self) -> None:
        parts = 1 + self.federation.net.kept
        self.books = Books(self.federation.digest, authorities(self.directory), parts)
        self.books.read(self.directory)
        for version in versions(self.directory):
            if self.books.began(version):  # otherwise it was void
                self.federation = self.federation.renewed(version)
        self.bodies = Bodies.of(self.directory, 2 * self.federation.schema.max_bytes)
        self.bodies.add(0, self._initial)
        self.servers = {d: self._server(d) for d in self.federation.net.servers}
        self._runner = self.stack.enter_context(asyncio.Runner())

    @cached_property
    def _initial(self) -> bytes:
        return self.federation.body(self.federation.initial)

    def _server(self, d: int) -> ServerCopy:
        store = Store(self.temporary / f"edge-{d}", durable=False)
        self.stack.enter_context(closing(store))
        return ServerCopy(d, store, result=digest(self._initial))

    def run(self, only_round: int | None, only_client: int | None) -> Verification:
        found, self._only_client = self.found, only_client
        found.rounds, found.signatures = self.books.rounds, self.books.signatures
        if only_round is not None and only_round >= found.rounds:
            raise InputError(
                f"the deployment has signed {found.rounds} rounds, so there is no round "
                f"{only_round + 1}"
            )
        self._whole_files()
        last = found.rounds if only_round is None else only_round + 1
        begin = 0 if only_round is None else self._known_before(only_round)
        for k in range(last):
            self._round(k, judged=only_round in (None, k), computed=k >= begin)
        if only_round is None and only_client is None and self.module is not None:
            named = self.federation.published or FlatModule(self.module).state_dict
            answer = published(self.directory, self._model, named)
            found.published, found.published_text = answer
        found.findings += self.books.findings
        found.remarks += self.books.remarks
        return found

    def _whole_files(self) -> None:
        """Check that all servers signed, ended in the same round, and ran the same software."""
        self.found.remarks += self.books.other_software(self.federation.about.told())
        for d in self.federation.net.servers:
            lines = self.books.lines.get(f"edge-{d}")
            if lines is None:
                self.found.remarks.append(f"edge-{d}'s statements are not at hand")
            else:
                self.found.findings += self.books.ends(f"edge-{d}")

    def _known_before(self, k: int) -> int:
        """The latest round up to `k` from which on everything can be recomputed."""
        for r in range(k, 0, -1):
            said = [self.books.said(f"edge-{d}", r) for d in self.servers]
            before = [self.books.said(f"edge-{d}", r - 1) for d in self.servers]
            rows = [n for each in before if each is not None for n in each["rows"].values()]
            starts = [each["start"] for each in said if each is not None]
            if len(starts) == len(said) and all(each in self.bodies for each in (*starts, *rows)):
                return r
        return 0

    def _round(self, k: int, judged: bool, computed: bool) -> None:
        """Check everything that was signed about one round, and recompute what is `computed`."""
        federation = self.federation.at(k)
        turns: dict[int, tuple[Turn, Closed, Statement]] = {}
        for d, server in self.servers.items():
            said = self.books.said(f"edge-{d}", k)
            if said is None:
                self._unknown(k, f"edge-{d}", "it did not sign this round")
                server.known = False
                if k < min(self.books.lines.get(f"edge-{d}", {}), default=k + 1):
                    server.result = None  # its statements begin later
                continue
            if why := impossible(federation, d, said):
                self._deviates(k, f"edge-{d}", why)
                server.result, server.known = None, False
                continue
            closed = Closed.of(said)
            turn = Turn.of(federation, d, k, server.memory, tuple(said["guests"]))
            if why := wrong_steps(turn, closed.steps, federation.iterations, said, self._all_known):
                self._deviates(k, f"edge-{d}", why)
                server.result, server.known = None, False
                continue
            turns[d] = turn, closed, said
            if server.result not in (None, said["start"]) and not self.books.gap(d, k):
                text = f"it did not begin from the model with which it ended round {k}"
                self._deviates(k, f"edge-{d}", text)
        before = sum(self.found.good.values()), sum(map(len, self.found.unknown.values()))
        wrong = len(self.found.findings)
        if computed:
            for d, (turn, closed, said) in turns.items():
                self._opened(federation, d, turn, said)
                for client in closed.steps:
                    self._client(federation, d, turn, said, client, judged)
            self._mixed(federation, turns, judged)
        taken = {n: steps for _, closed, _ in turns.values() for n, steps in closed.steps.items()}
        self._counts.update(taken)  # it adds; `taken` counts a client of several servers once
        for d, (turn, closed, said) in turns.items():
            self._close(federation, self.servers[d], turn, closed, said)
        counts = sum(self.found.good.values()), sum(map(len, self.found.unknown.values()))
        if counts[0] > before[0] and counts[1] == before[1] and len(self.found.findings) == wrong:
            self.found.whole.append(k)

    @property
    def _all_known(self) -> bool:
        """Are all rounds so far at hand, and so the steps of each client?"""
        return all(server.known for server in self.servers.values())

    def _deviates(self, k: int, name: str, text: str, proven: bool = True) -> None:
        self.found.findings.append(Finding(k, (name,), f"{name}: {text}", proven))

    def _unknown(self, k: int, name: str, why: str) -> None:
        self.found.unknown.setdefault((name, why), []).append(k)

    def _cluster(self, federation: Federation, d: int, said: Statement) -> Cluster:
        policy = Policy(pace=said["policy"]["pace"], max_change=said["policy"]["max_change"])
        return Cluster(federation, d, self.servers[d].store, Bell(), policy)

    def _opened(self, federation: Federation, d: int, turn: Turn, said: Statement) -> None:
        """Give our copy of a server the model and the rows with which its round begins."""
        server = self.servers[d]
        if said["start"] in self.bodies and not server.store.has("start", turn.k):
            body = self.bodies.get(said["start"], "a start")
            with server.store.commit():
                server.store.put("start", turn.k, 0, body)
        if federation.epoch and federation.begins == turn.k:
            server.begin_anew(federation, turn.k)
            return
        before = self.books.said(f"edge-{d}", turn.k - 1)
        wanted = {} if before is None else {int(n): each for n, each in before["rows"].items()}
        has = server.store.hashes("row", 0)
        missing = {n: each for n, each in wanted.items() if has.get(n) != each}
        server.unsure = ""
        for n, sha256 in missing.items():
            try:
                body = self.bodies.get(sha256, f"a row that edge-{d} keeps")
            except NotAtHand as error:
                server.unsure = str(error)
                return
            with server.store.commit():
                server.store.put("row", 0, n, body, replace=True)

    def _client(
        self, federation: Federation, d: int, turn: Turn, said: Statement, number: int, judged: bool
    ) -> None:
        """Check one client's part: the work that it was given, and the model that it sent."""
        own = self.books.of_client(d, turn.k, number)
        if own is None:
            return  # the books have reported it
        mine = judged and self._only_client in (None, number)
        name, k = f"client-{number}", turn.k
        member = self._member(federation, number)
        keeps = isinstance(member, ClientCopy) and member.client.kept is not None
        if not mine and own["sent"] in self.bodies and not keeps:
            return
        try:
            if isinstance(member, str):
                raise NotAtHand(member)
            header, bodies = self._given(federation, d, turn, said, number, own)
            body = self._trained(member, k, header, bodies, own)
        except NotAtHand as error:
            if mine:
                self._unknown(k, name, str(error))
            if isinstance(member, ClientCopy) and keeps:
                member.unsure = f"what it kept from round {k + 1} is not known"
            return
        except Deviates as error:
            self._deviates(k, name, str(error))
            return
        except IMPOSSIBLE as error:
            if mine:
                self._unknown(k, name, not_repeated(error))
            if isinstance(member, ClientCopy):
                member.unsure = f"what it kept from round {k + 1} is not known"
            return
        sha256 = self.bodies.add(k, body)
        if sha256 == own["sent"]:
            self.found.good["client"] += mine
            return
        if keeps:
            member.unsure = f"it deviated in round {k + 1}"
        self._deviates(
            k,
            name,
            "it did not send the model that follows from its data and from what it was given "
            f"({own['sent'][:12]}, recomputed {sha256[:12]})",
        )

    def _given(
        self,
        federation: Federation,
        d: int,
        turn: Turn,
        said: Statement,
        number: int,
        own: Statement,
    ) -> tuple[dict[str, Any], dict[int, bytes]]:
        """The work and the models that a client was given; reports a server that misled it."""
        server, k = self.servers[d], turn.k
        self.bodies.get(said["start"], f"the model that edge-{d} began with")
        if server.unsure:
            raise NotAtHand(server.unsure)
        cluster = self._cluster(federation, d, said)
        cluster.begin(turn, {number: int(own["first"])})
        answer = cluster.handed_out(number)
        if answer is None or answer[1] is None:
            raise Deviates(f"edge-{d} had no work for it")
        header, body = answer
        got, asked = own["got"].get(str(d)), work_hash(header)
        right = got == header["sha256"]
        if not right or own["work"] != asked:
            self._misled(k, d, number, header["sha256"], asked)
        expected = self._counts[number]
        counted = self._all_known and not self.federation.epoch and not turn.guests
        if own["first"] != expected and counted:
            text = f"it let client-{number} begin at step {own['first']}, not at {expected}"
            self._deviates(k, f"edge-{d}", text)
        assert body is not None  # work comes with a model
        bodies: dict[int, bytes] = {d: body}
        for other in header["sources"]:
            if other not in bodies:
                theirs = str(own["got"].get(str(other)))
                bodies[other] = self.bodies.get(theirs, f"the model that edge-{other} began with")
        if not right:
            bodies[d] = self.bodies.get(str(got), f"what edge-{d} gave it")
        header.pop("deadline", None)
        return {**header, "steps": int(own["steps"])}, bodies

    def _misled(self, k: int, d: int, number: int, sha256: str, work: str) -> None:
        """Report that a client began from something else than its server should have given it."""
        signed = self.books.offer_of(number, d, k)
        wrong = signed is not None and signed["sha256"] != sha256
        if wrong or (signed is not None and signed["work"] not in (None, work)):
            text = f"it gave client-{number} a wrong model or wrong work, and signed that"
            self._deviates(k, f"edge-{d}", f"{text} it")
            return
        nodes = (f"client-{number}", f"edge-{d}")
        text = f"client-{number} says that edge-{d} gave it another model or other work than "
        text += f"edge-{d} had to give; edge-{d}'s signature under that is not at hand"
        self.found.findings.append(Finding(k, nodes, text, False))

    def _trained(
        self,
        member: ClientCopy,
        k: int,
        header: dict[str, Any],
        bodies: dict[int, bytes],
        own: Statement,
    ) -> bytes:
        """The body that a client should have sent."""
        client = member.client
        if member.unsure:
            raise NotAtHand(member.unsure)
        client.epoch = self.federation.at(k).epoch
        start = client.started(dict(zip(header["sources"], header["weights"], strict=True)), bodies)
        known = client.known(header, bodies)
        held = {str(n): sha256 for n, sha256 in client.held().items()}
        if held != own["rows"]:
            raise Deviates("what it kept is not what follows from its earlier rounds")
        task = client.task(header, start, known)
        body = client.message(k, header, task, client.train(task), known)
        if digest(body) != own["sent"] and member.rounds_otherwise(own):
            raise NotAtHand(ELSEWHERE)
        return body

    def _member(self, federation: Federation, number: int) -> ClientCopy | str:
        """A copy of a client with its data, or why its rounds cannot be repeated."""
        if number not in self._members:
            try:
                self._members[number] = self.copies(federation, number)
            except (DataError, InputError, RunError, OSError) as error:
                self._members[number] = f"its data are not at hand ({error})"
        return self._members[number]

    def _mixed(
        self,
        federation: Federation,
        turns: Mapping[int, tuple[Turn, Closed, Statement]],
        judged: bool,
    ) -> None:
        """Check the servers' parts. One may need another's result, so they are tried repeatedly."""
        mine = judged and self._only_client is None
        left = {}
        for d, (_, _, said) in turns.items():
            known = all(each in self.bodies for each in (said["result"], *said["rows"].values()))
            if mine or not known:
                left[d] = ""
        while left:
            before = len(left), len(self.bodies)
            for d in list(left):
                turn, closed, said = turns[d]
                try:
                    self._served(federation, d, turn, closed, said)
                    self.found.good["server"] += mine
                    del left[d]
                except NotAtHand as error:
                    left[d] = str(error)
                except Deviates as error:
                    self._deviates(turn.k, f"edge-{d}", str(error))
                    del left[d]
                except IMPOSSIBLE as error:
                    left[d] = not_repeated(error)
            if (len(left), len(self.bodies)) == before:
                break
        for d, why in left.items():
            if mine:
                self._unknown(turns[d][0].k, f"edge-{d}", why)

    def _served(
        self, federation: Federation, d: int, turn: Turn, closed: Closed, said: Statement
    ) -> None:
        """Check one server's part: its average, its exchanges and its model after the round."""
        server, store, k = self.servers[d], self.servers[d].store, turn.k
        if federation.sums is not None:
            raise NotAtHand("it saw only a sum of masked messages, which are not kept")
        self.bodies.get(said["start"], f"the model that edge-{d} began with")
        if server.unsure:
            raise NotAtHand(server.unsure)
        cluster = self._cluster(federation, d, said)
        cluster.begin(turn, {})
        for client in closed.steps:
            own = self.books.of_client(d, k, client)
            if own is None:
                raise NotAtHand(f"client-{client} signed nothing")
            if not store.has("result", k, client):
                body = self.bodies.get(own["sent"], f"what client-{client} sent")
                kept = cluster.checked(body, own["sent"], cluster.handout(turn).started(client))
                with store.commit():
                    store.put("result", k, client, kept)
        away = frozenset(said.get("away", ()))
        exchange = Replayed(cluster, {}, heard=said["heard"], away=away, bodies=self.bodies)
        try:
            ended = self._runner.run(exchange.finish(ServerState(k=k), turn, closed))
        finally:
            for part, sha256 in store.hashes("hop", k).items():
                saved = store.get("hop", k, part)
                if saved is not None and sha256 not in self.bodies:
                    self.bodies.add(k, saved.body)
            self._offered(k, store, said)
        body = federation.body(ended.model)
        sha256 = self.bodies.add(k, body)
        with store.commit():
            ended.save()
        rows = {str(n): each for n, each in store.hashes("row", 0).items()}
        if sha256 != said["result"]:
            raise Deviates(
                "its model after the round is not what its clients, its neighbours and the "
                f"scheme's weights make ({said['result'][:12]}, recomputed {sha256[:12]})"
            )
        if rows != said["rows"]:
            raise Deviates("what it keeps besides its model is not what follows from the round")

    def _offered(self, k: int, store: Store, said: Statement) -> None:
        for part, sha256 in store.hashes("hop", k).items():
            if said["offered"].get(str(part)) != sha256:
                hop = part // self.books.parts
                what = (
                    "its average of its clients' models is not what they sent"
                    if hop == 0
                    else f"its model after {hop} exchanges is not what they make"
                )
                raise Deviates(what)

    def _close(
        self,
        federation: Federation,
        server: ServerCopy,
        turn: Turn,
        closed: Closed,
        said: Statement,
    ) -> None:
        """Update what we know of a server between two rounds, with or without its model."""
        done = turn.done(closed.steps)
        mix = federation.decisions.mix(turn.view, done)
        server.memory, server.result = mix.memory, said["result"]
        k, store = turn.k, server.store
        with store.commit():
            if federation.along:
                store.remember(TOLD, {"k": k + 1, "rows": turn.told(mix)})
            store.prune("result", k + 1)
            store.prune("hop", k + 1)
            store.prune("start", k + 1)

    def _model(self) -> Tensor:
        """The model that the run returns, according to the servers' last statements."""
        federation, k = self.federation.at(self.found.rounds - 1), self.found.rounds - 1
        models = []
        for d, server in self.servers.items():
            said = self.books.said(f"edge-{d}", k)
            if said is None or said.get("away") or said["guests"]:
                raise NotAtHand(f"edge-{d} or another server missed the last round")
            body = self.bodies.get(said["result"], f"edge-{d}'s last model")
            if server.unsure:
                raise NotAtHand(server.unsure)
            try:
                models.append(federation.own_model(returned(federation, server.store, d, body)))
            except IMPOSSIBLE as error:
                raise NotAtHand(f"edge-{d}'s last model cannot be used ({error})") from None
        return mean(federation.net.mass.tolist(), torch.stack(models))
