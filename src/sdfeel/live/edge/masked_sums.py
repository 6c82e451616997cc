"""A server's masked sums: it carries letters, waits for each step, and unmasks the sum.

The protocol itself is `live/secure_sum.py`. Every message of a client, and every decision about who
is in at a step, is on the disk before anybody is told of it. So a server that was killed continues
with the same contents; clients would refuse any others.

A client can cost a sum no more than its own part, or it is found out and left out: every message is
checked against what the client sealed before, and a client that is at odds with too many others is
taken for a liar.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdfeel.live.client_masked_sums import NUMBERS, WORDS, Seals
from sdfeel.live.edge.policy import Policy
from sdfeel.live.edge.round_end import Closed
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import LONG_POLL, Answer, Bell, Header, is_whole, seconds, whole
from sdfeel.live.secure_sum import (
    KEYS,
    LETTER,
    SEAL,
    SHARE,
    Collector,
    FalseSecret,
    Keys,
    Numbers,
    Sitting,
    TooFew,
    check_public,
    sitting_of,
)
from sdfeel.live.statements import Notary, is_hash
from sdfeel.live.store import Store
from sdfeel.live.transport.envelope import strict
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import parsed

SUM = "sum"  # the fact: which clients are in at each step of the open round's sum
ODDS = "odds"  # the step in which a client names letters it cannot open; the fact: all such pairs
STEPS = ("keys", "shares", "numbers", "survivors", "unmask")
ROOM = 1 << 32  # above every client's number


@dataclass
class SumDesk:
    """The sums of one server, round by round."""

    federation: Federation
    server: int
    store: Store
    policy: Policy
    work_bell: Bell  # rings when a client may get an answer
    result_bell: Bell  # rings when a message came
    clock: Callable[[], float]
    gone: Callable[[int], bool]  # does the round no longer wait for this client?
    drop: Callable[[list[int], int], None]  # continue without late clients
    complain: Callable[[str], None]
    blame: Callable[[int, str], None]  # leave out a client that sent what no honest one sends
    notary: Notary | None = None  # checks signatures; None: only clients check them
    turn: Turn | None = None
    arrived: set[int] = field(default_factory=set)  # clients whose numbers came
    _closed: dict[str, list[int]] = field(default_factory=dict)  # the clients in, by closed step
    _failed: str = ""  # why this round has no sum
    _odds: set[int] = field(default_factory=set)  # clients that left, unable to open some letter
    _total: Numbers | None = None  # the open round's sum, once it is known

    def begin(self, turn: Turn, arrived: set[int]) -> None:
        """Open a round's sum, or continue it."""
        self.turn, self.arrived, self._closed, self._failed = turn, arrived, {}, ""
        self._total = None
        self._odds = {n for n in turn.clients if self._came(ODDS, n)}
        known = self.store.fact(SUM)
        if known is not None and known["k"] == turn.k:
            self._closed, self._failed = known["closed"], known["failed"]

    @property
    def _open(self) -> Turn:
        assert self.turn is not None
        return self.turn

    def sitting(self) -> Sitting:
        """What all participants agree on."""
        return sitting_of(self.federation.digest, self.server, self._open.k, self._open.clients)

    def wants(self, client: int) -> bool:
        """Has this client a part in the open round that it has not finished?"""
        if self._failed or "unmask" in self._closed or client in self._odds:
            return False
        newest = [step for step in STEPS if step in self._closed]
        if newest and client not in self._closed[newest[-1]]:
            return False
        return not self._came("unmask", client)

    async def step(self, client: int, header: Header, body: bytes | None) -> Answer:
        """Keep a client's message of one step; once the step is closed, answer with all of them."""
        k, step, turn = whole(header, "round"), header.get("step"), self.turn
        if turn is None or k < turn.k or self._failed:
            return {"late": True}, None
        if step not in ("keys", "shares", ODDS, "left", "survivors", "unmask"):
            raise Refused(f"a sum has no step '{step!s:.20}'")
        if k > turn.k or client not in turn.members:
            raise Refused(f"client-{client} has no part in a sum of round {k + 1} here")
        if not self._admitted(str(step), client):
            return {"late": True}, None
        if step != "left" and not self._came(str(step), client):
            if str(step) in self._closed:
                return {"late": True}, None
            self._keep(str(step), client, self._checked(str(step), client, body))
        if step == ODDS:
            self._at_odds(client)
        if step in ("unmask", ODDS):
            return {"kept": True}, None
        found = await self.work_bell.wait_for(
            lambda: self._answer(turn, str(step), client), seconds(header, "wait")
        )
        return found if found is not None else ({"early": True}, None)

    def _admitted(self, step: str, client: int) -> bool:
        """Was the client in at the step before this one?"""
        before = {"shares": "keys", ODDS: "shares", "left": "shares"}
        before |= {"survivors": "numbers", "unmask": "numbers"}
        if step == "keys":
            return True
        return client in self._closed.get(before[step], ())

    def _part(self, step: str, client: int) -> int:
        return (*STEPS, ODDS).index(step) * ROOM + client

    def _came(self, step: str, client: int) -> bool:
        if step == "numbers":
            return client in self.arrived
        return self.store.has("mask", self._open.k, self._part(step, client))

    def _keep(self, step: str, client: int, body: bytes) -> None:
        with self.store.commit():
            self.store.put("mask", self._open.k, self._part(step, client), body)
        self.result_bell.ring()

    def _read(self, step: str, client: int) -> bytes:
        return self.store.kept("mask", self._open.k, self._part(step, client)).body

    def _checked(self, step: str, client: int, body: bytes | None) -> bytes:
        """The message, or `Rejected` if it cannot be right, as far as a server can tell."""
        if body is None:
            raise Rejected(f"client-{client} sends an empty message in step '{step}' of a sum")
        if step == "shares" and len(body) != LETTER * (len(self._closed["keys"]) - 1) + 2 * SEAL:
            raise Rejected(f"the encrypted shares of client-{client} are not as long as agreed")
        if step == "unmask" and len(body) != SHARE * len(self._closed["shares"]):
            raise Rejected(f"the shares of client-{client} are not as long as agreed")
        if step == "unmask":
            self._check_shares(client, _split(body, self._closed["shares"]))
        if step == ODDS:
            odds_of(body)
        if step == "keys":
            self._check_keys(client, keys_of(body))
        if step == "survivors":
            said = _words(body)
            if self.notary is not None:  # so the keys were signed
                seal = {**_parsed(self._read("keys", client))["signed"], **said}
                words = self.sitting().words("survivors", self._closed["numbers"])
                self._check_signed(client, words, seal)
        return body

    def _check_keys(self, client: int, keys: Keys) -> None:
        """`Rejected` unless the keys are signed and new: with others, all would leave the sum."""
        said = {name: keys[name] for name in KEYS}
        self._check_signed(client, self.sitting().words("keys", said), keys["signed"])
        own = {name: keys[name] for name in ("masks", "letters")}
        came = [n for n in self._open.clients if n != client and self._came("keys", n)]
        known = {keys_of(self._read("keys", n))[name] for n in came for name in own}
        if known & set(own.values()) or own["masks"] == own["letters"]:
            raise Rejected(f"client-{client} sends a key twice, or one that another client sent")

    def _check_shares(self, giver: int, shares: Mapping[int, bytes]) -> None:
        """`Rejected` unless each share is the one that its owner sealed for this client."""
        sitting, left = self.sitting(), self._closed["numbers"]
        for owner, share in shares.items():
            seals = self._letter(owner, giver)[-2 * SEAL :]
            sealed = seals[SEAL:] if owner in left else seals[:SEAL]
            if sitting.seals(owner, giver, share) != sealed:
                told = f"client-{giver} reveals a share of client-{owner}'s secret"
                raise Rejected(f"{told} that is not the one it was sent")

    def _letter(self, sender: int, to: int) -> bytes:
        """A client's letter to another; to itself, only the seals of the shares that it keeps."""
        sent = self._read("shares", sender)
        if sender == to:
            return sent[-2 * SEAL :]
        return sent[LETTER * _place(self._closed["keys"], sender, to) :][:LETTER]

    def _at_odds(self, reader: int) -> None:
        """A client that cannot open some letters leaves the sum. Leave out those who must lie."""
        self._odds.add(reader)
        writers = [n for n in odds_of(self._read(ODDS, reader)) if n in self._closed["shares"]]
        known = {(one, other) for one, other in self.store.fact(ODDS) or ()}
        pairs = known | {(reader, n) for n in writers if n != reader}
        names = " and ".join(f"client-{n}" for n in writers)
        self.complain(
            f"client-{reader} is at odds with {names or 'nobody'}: it says that it cannot decrypt "
            f"the shares that it was sent, and leaves the sum of round {self._open.k + 1}"
        )
        for liar in self.sitting().liars(pairs):
            pairs = {pair for pair in pairs if liar not in pair}
            self.blame(liar, "in sums, it is at odds with more clients than can be lying")
        with self.store.commit():
            self.store.remember(ODDS, sorted(pairs))
        self.result_bell.ring()

    def _check_signed(self, client: int, words: str, seal: object) -> None:
        if self.notary is not None and not Seals(self.notary).check(client, words, seal):
            raise Rejected(f"client-{client}'s message in a sum lacks client-{client}'s signature")

    def _answer(self, turn: Turn, step: str, client: int) -> Answer | None:
        """The answer to a client once a step is closed; None while it is open."""
        if self.turn is not turn or self._failed:
            return {"late": True}, None
        closed = "numbers" if step == "left" else step
        who = self._closed.get(closed)
        if who is None:
            return None
        if client not in who:
            return {"late": True}, None
        if step == "left":
            return {"left": who}, None
        if step == "shares":
            mine = [self._letter(n, client) for n in who if n != client]
            return {"from": who}, b"".join(mine)
        said = {str(n): json.loads(self._read(step, n)) for n in who}
        return {}, json.dumps(said).encode()

    async def gather(self, turn: Turn) -> Closed:
        """Run a round's sum from the keys to the last share; return who is in it in the end."""
        steps = dict[int, int]()
        try:
            sitting = self.sitting()
            for step in STEPS:
                if step not in self._closed:
                    await self._collect(sitting, step)
            if not self._failed:
                self._total = self._collector(turn.k).total()
        except FalseSecret as error:
            self.blame(error.client, str(error))
            self._fail(turn, str(error))
        except (TooFew, Rejected) as error:  # Rejected: too few clients to begin with
            self._fail(turn, str(error))
        if not self._failed:
            notes = self.store.notes("result", turn.k)
            steps = {n: int(notes[n]["steps"]) for n in self._closed["numbers"]}
        return Closed(steps, tuple(n for n in turn.clients if n not in steps))

    def _fail(self, turn: Turn, why: str) -> None:
        self._failed = why
        self._remember(turn.k)
        self.complain(f"round {turn.k + 1} has no sum: {why}")
        self.work_bell.ring()

    def _remember(self, k: int) -> None:
        with self.store.commit():
            record = {"k": k, "closed": self._closed, "failed": self._failed}
            self.store.remember(SUM, record)

    def _expected(self, step: str) -> Iterable[int]:
        if step == "keys":
            return self._open.clients
        return self._closed[STEPS[STEPS.index(step) - 1]]

    async def _collect(self, sitting: Sitting, step: str) -> None:
        """Wait for all expected clients, or until the deadline; then close the step."""
        expected, began = list(self._expected(step)), self.clock()

        def complete() -> bool | None:
            left = (n for n in expected if not self._came(step, n) and not self.gone(n))
            return all(step == "numbers" and n in self._odds for n in left) or None

        while not complete():
            left = LONG_POLL
            if self.policy.dead_client == "drop":
                left = began + self.policy.client_deadline - self.clock()
                if left <= 0:
                    self.drop([n for n in expected if not self._came(step, n)], self._open.k)
                    break
            await self.result_bell.wait_for(complete, left)
        who = sorted(n for n in expected if self._came(step, n))  # the order that clients sign
        sitting.enough(who, step)
        self._closed = {**self._closed, step: who}
        self._remember(self._open.k)
        self.work_bell.ring()

    def total(self, k: int) -> Tensor:
        """(P,) the sum of all participants' integers, if need be from what is on the disk."""
        found = self._collector(k).total() if self._total is None else self._total
        return torch.from_numpy(found.view(np.int32).astype(np.float64))

    def _collector(self, k: int) -> Collector:
        closed = self._closed
        keys: dict[int, Keys] = {n: keys_of(self._read("keys", n)) for n in closed["keys"]}
        shares: dict[int, Mapping[int, bytes]] = {
            n: _split(self._read("unmask", n), closed["shares"]) for n in closed["unmask"]
        }
        return Collector(
            self.sitting(),
            self.federation.initial.numel(),
            keys,
            {n: {} for n in closed["shares"]},
            {n: self._numbers(k, n) for n in closed["numbers"]},
            {},
            shares,
        )

    def _numbers(self, k: int, client: int) -> Numbers:
        saved = self.store.kept("result", k, client)
        numbers: Numbers = parsed(saved.body)[NUMBERS]
        return numbers


def _place(others: list[int], sender: int, to: int) -> int:
    """The position of the letter to `to` among a sender's letters."""
    return [n for n in others if n != sender].index(to)


def _split(body: bytes, about: list[int]) -> dict[int, bytes]:
    return {n: body[SHARE * m : SHARE * (m + 1)] for m, n in enumerate(about)}


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = strict(body.decode())  # it is passed on, inside a larger JSON object
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Rejected("a message of a sum does not have the form that was agreed upon")
    return found


def _words(body: bytes) -> dict[str, Any]:
    """A message that is passed on to all clients, in one answer: so it must be short."""
    found = _parsed(body)
    if len(json.dumps(found)) > WORDS:
        raise Rejected(f"a client's message in a sum may have {WORDS} bytes; this one has more")
    return found


def odds_of(body: bytes) -> list[int]:
    """The clients whose letters a client says that it cannot open."""
    found = _parsed(body).get("with")
    if not isinstance(found, list) or not found or not all(map(is_whole, found)):
        raise Rejected("a message of a sum does not have the form that was agreed upon")
    return found


def keys_of(body: bytes) -> Keys:
    """The keys in a client's message, if they have the form of keys."""
    found: Mapping[str, Any] = _words(body)
    if found.keys() != {*KEYS, "signed"}:
        raise Rejected("a message of a sum does not have the form that was agreed upon")
    for name in KEYS:  # a single way to write a key, so that equal keys are found
        if not is_hash(found[name]):
            raise Rejected("a key of a sum is not 32 bytes in lower-case hexadecimal")
        if name != "own":
            check_public(found[name])
    return dict(found)
