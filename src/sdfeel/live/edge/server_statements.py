"""What an edge server signs, checks and keeps about its rounds, for `sdfeel deploy verify`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdfeel.core.run_files import KEPT_MODELS, STATEMENTS
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.round_end import Closed
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import Header
from sdfeel.live.statements import (
    FIRST,
    FORM,
    KeptModels,
    Notary,
    StatementLog,
    hash_of,
    is_clients,
    offer,
    work_hash,
)
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Rejected
from sdfeel.live.transport.tensors import digest
from sdfeel.live.trust.identity import Identity

LAST, HEARD = "statement", "heard"  # names of facts
SOFTWARE = ("sdfeel", "engine", "torch")
MOST_OFFERS = 4096  # signatures of offers that are remembered


def at(hop: int, place: int) -> str:
    """The name of a row before a hop, in statements.

    >>> at(1, 0)
    '1/0'
    """
    return f"{hop}/{place}"


@dataclass
class Recorder:
    """Makes one server's statements. A round's statement becomes durable with its commit."""

    notary: Notary
    store: Store
    server: int
    log: StatementLog
    kept: KeptModels
    policy: Policy
    _round: int = -1
    _handed: dict[int, Header] = field(default_factory=dict)  # what clients' statements must say
    _heard: dict[str, dict[str, Any]] = field(default_factory=dict)  # in the open round
    _seals: dict[str, dict[str, str]] = field(default_factory=dict)  # of what is handed out

    @classmethod
    def of(
        cls,
        identity: Callable[[], Identity],  # as it is now
        federation: Federation,
        store: Store,
        server: int,
        directory: Path,  # of the node
        policy: Policy,
    ) -> "Recorder | None":
        """A recorder for a node's files; None for asynchronous servers, whose rounds cannot be
        repeated.

        A statement that the last process committed, but did not write to the log, is written now.
        """
        if not federation.synchronous:
            return None
        notary = Notary(identity, federation.digest)
        log = StatementLog(directory / STATEMENTS)
        last = store.fact(LAST)
        if last is not None:
            log.append(last)
        kept = KeptModels(directory / KEPT_MODELS, policy.keep_models)
        return cls(notary, store, server, log, kept, policy)

    def begin(self, k: int) -> None:
        """Open a round, perhaps again after a crash: what was durably heard in it counts."""
        if k != self._round:
            self._round, self._handed = k, {}
            known = self.store.fact(HEARD)
            self._heard = known["heard"] if known is not None and known["k"] == k else {}

    def work(self, client: int, header: Header, sha256: str) -> Header:
        """The signature that goes with a client's work."""
        asked = work_hash(header)
        self._handed[client] = {"work": asked, "first": header["first"], "got": sha256}
        return self._offered(int(header["round"]), sha256, work=asked)

    def start(self, k: int, sha256: str) -> Header:
        """The signature that goes with a model alone."""
        return self._offered(k, sha256, work=None)

    def hop(self, k: int, hop: int, row: int, sha256: str) -> Header:
        """The signature that goes with a model for another server."""
        return self._offered(k, sha256, hop=hop, row=row)

    def _offered(self, k: int, sha256: str, **what: Any) -> Header:
        """The signature of an offer, made once however many nodes ask."""
        statement = offer(self.notary.federation, self.server, k, sha256, **what)
        key = hash_of(statement)
        if key not in self._seals:
            if len(self._seals) >= MOST_OFFERS:
                self._seals.clear()
            self._seals[key] = self.notary.sign(statement)
        return {"signed": self._seals[key]}

    def knows(self, client: int) -> bool:
        """Did this process hand out a client's work, so that its statement can be compared?"""
        return client in self._handed

    def came(self, client: int, k: int, steps: int, epoch: int, header: Header) -> bytes:
        """A client's statement to keep; `Rejected` unless it is signed and says what happened."""
        statement = header.get("statement")
        if not isinstance(statement, dict):
            raise Rejected(
                f"client-{client} sends no statement: install the same version of sdfeel on all "
                f"nodes"
            )
        if not is_clients(statement):
            raise Rejected(f"client-{client}'s statement does not have the form of a client's")
        seal = self.notary.checked(f"client-{client}", statement, header.get("signed"))
        expected = {
            "form": FORM,
            "federation": self.notary.federation,
            "who": f"client-{client}",
            "epoch": epoch,
            "round": k,
            "steps": steps,
            "sent": header.get("sha256"),
        }
        handed = self._handed.get(client, {})
        mine, model = statement["got"].get(str(self.server)), handed.get("got")
        if mine is None or model not in (None, mine):
            raise Rejected(f"client-{client}'s statement says that it did not begin from our model")
        if handed.get("work") not in (None, statement["work"]):
            raise Rejected(f"client-{client}'s statement names other work than we asked for")
        if handed:
            expected["first"] = handed["first"]
        for key, value in expected.items():
            if statement[key] != value:
                raise Rejected(f"client-{client}'s statement has another '{key}' than its message")
        return json.dumps({"statement": statement, **seal}).encode()

    def heard(self, server: int, k: int, hop: int, row: int, header: Header, body: bytes) -> None:
        """Keep another server's row and its signature; `Rejected` if that is wrong."""
        sha256 = str(header.get("sha256"))
        said = offer(self.notary.federation, server, k, sha256, hop=hop, row=row)
        seal = self.notary.checked(f"edge-{server}", said, header.get("signed"))
        self._heard[f"{server}/{at(hop, row)}"] = {"sha256": sha256, **seal}
        self.kept.put(k, sha256, body)

    def durable(self, k: int) -> None:
        """Remember what was heard, as it is not asked for again. Call it inside a commit."""
        self.store.remember(HEARD, {"k": k, "heard": self._heard})

    def ended(
        self,
        federation: Federation,
        turn: Turn,
        closed: Closed,
        away: Mapping[str, Any],
        body: bytes,
    ) -> dict[str, Any]:
        """Sign a round. Call it inside the round's commit, before anything is pruned."""
        k, store, result = turn.k, self.store, digest(body)
        clients = {}
        for client in closed.steps:
            saved = store.get("signed", k, client)
            if saved is not None:
                clients[str(client)] = json.loads(saved.body)
        told, start = federation.about.told(), store.get("start", k)
        assert start is not None  # the open round's model is never pruned
        rows = store.hashes("row", 0)
        last = store.fact(LAST)
        statement = {
            "form": FORM,
            "federation": self.notary.federation,
            "who": f"edge-{self.server}",
            "epoch": federation.epoch,
            "round": k,
            "policy": {"pace": self.policy.pace, "max_change": self.policy.max_change},
            "software": {key: told[key] for key in SOFTWARE if key in told},
            "start": start.sha256,
            "guests": list(turn.guests),
            **closed.record(k),
            **away,
            "came": {client: hash_of(each["statement"]) for client, each in clients.items()},
            "heard": {key: each["sha256"] for key, each in sorted(self._heard.items())},
            "offered": {str(part): each for part, each in store.hashes("hop", k).items()},
            "rows": {str(place): sha256 for place, sha256 in rows.items()},
            "result": result,
            "before": FIRST if last is None else hash_of(last["statement"]),
        }
        del statement["k"]
        line = self.log.line(
            statement, self.notary.sign(statement), clients=clients, servers=self._heard
        )
        store.remember(LAST, line)
        self.kept.put(k, start.sha256, start.body)
        self.kept.put(k, result, body)
        if self.kept.rounds:
            for place in rows:
                row = store.get("row", 0, place)
                assert row is not None
                self.kept.put(k, row.sha256, row.body)
        return line
