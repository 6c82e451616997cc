"""A client's part in a masked sum: the steps of `live/secure_sum.py`, carried to its server.

Every answer is on the client's disk before it is sent. A client that was killed repeats the same
answers, and refuses a server that asks for different ones.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.masked_sums import PAIR
from sdfeel.engine.guards import integers
from sdfeel.live.client_rows import ClientRows
from sdfeel.live.protocol import LONG_POLL, Answer, Header, Link, is_whole
from sdfeel.live.secure_sum import KEYS, LETTER, Contributor, Numbers, sitting_of
from sdfeel.live.statements import CERTIFICATE, Notary, is_hash
from sdfeel.live.transport.errors import Refused, Rejected
from sdfeel.live.transport.tensors import pack

NUMBERS = "numbers"  # the tensor of a client's message
SIGNATURE = "signature"
AGAIN = 0.05  # seconds until we ask again for a step that is not closed yet


@dataclass(frozen=True)
class Masking:
    """How a client's updates are hidden: its weight in its cluster, and sizes of sums."""

    weight: float
    least: int  # clients in the smallest sum that it gives its update to
    most: int = 0  # clients in the largest sum


WORDS = CERTIFICATE // 2 - 64  # most bytes of one client's message that the server passes on


def letters_of(clients: int) -> int:
    """The most bytes of one step: for each client its keys, a signature and a certificate."""
    return 1024 + CERTIFICATE // 2 * clients


class Late(Exception):
    """The sum continues without us, or has failed: we have nothing more to do in it."""


@dataclass(frozen=True)
class Seals:
    """Signatures by the keys of clients' certificates."""

    notary: Notary

    def sign(self, client: int, words: str) -> Any:
        return self.notary.sign({"words": words})

    def check(self, client: int, words: str, seal: Any) -> bool:
        try:
            self.notary.checked(f"client-{client}", {"words": words}, seal)
        except Rejected:
            return False
        return True


class MaskedRound:
    """One client in one round's sum."""

    def __init__(
        self,
        link: Link,
        server: int,
        k: int,
        header: Header,
        me: int,
        masking: Masking,
        secret: int,
        kept: ClientRows,
        notary: Notary,
    ) -> None:
        clients = header.get("sum")
        if not isinstance(clients, list) or not all(map(is_whole, clients)):
            raise Refused(f"edge-{server} does not say which clients take part in the sum")
        least = max(PAIR, masking.least)
        if me not in clients or len(set(clients)) < least:
            raise Refused(
                f"edge-{server} asks for a sum of {len(set(clients))} clients, but our update is "
                f"hidden only among {least} or more, including us"
            )
        self._link, self._k, self._me, self._kept = link, k, me, kept
        self._weight = masking.weight
        sitting = sitting_of(notary.federation, server, k, clients)
        state = kept.promised(k)
        seed = secret.to_bytes(32, "big")
        self._contributor = Contributor(sitting, me, seed, Seals(notary), state)

    async def _ask(self, step: str, body: bytes | None) -> Answer:
        """Send one step and ask until it is closed. What we send is on our disk before."""
        self._kept.promise(self._k, self._contributor.state)
        question = {"round": self._k, "step": step, "wait": LONG_POLL}
        while True:
            header, content = await self._link.insist("mask", question, body)
            if header.get("late"):
                raise Late
            if not header.get("early"):
                return header, content
            await asyncio.sleep(AGAIN)

    async def join(self) -> None:
        """Steps 1 and 2: keys, and shares of our secrets for the others.

        If we cannot open some client's letter, we say whose, and leave the sum.
        """
        own = self._contributor.keys()
        _, body = await self._ask("keys", json.dumps(own).encode())
        keys = {n: _keys(each) for n, each in _by_client(body).items()}
        letters = self._contributor.shares(keys)
        self._seals = {n: dict(each["signed"]) for n, each in keys.items()}  # checked just now
        seals = letters.pop(self._me)
        sent = b"".join(letters[n] for n in sorted(letters)) + seals
        header, body = await self._ask("shares", sent)
        who = [n for n in _clients(header, "from") if n != self._me]
        if body is None or len(body) != LETTER * len(who):
            raise Refused("the server names clients whose encrypted shares it does not pass on")
        letters = {n: body[LETTER * m : LETTER * (m + 1)] for m, n in enumerate(who)}
        if false := self._contributor.opened(letters):
            await self._ask("odds", json.dumps({"with": false}).encode())
            raise Late

    def covered(self, update: NDArray[Any]) -> bytes:
        """Step 3: our update under its masks, as the body to send."""
        values = integers(update, self._weight).astype(np.int64).astype(np.uint32)
        numbers: Numbers = self._contributor.numbers(values)
        self._kept.promise(self._k, self._contributor.state)
        return pack({NUMBERS: numbers})

    async def reveal(self) -> None:
        """Steps 4 and 5: all sign who is left; then we reveal one share of each client's."""
        header, _ = await self._ask("left", None)
        left = _clients(header, "left")
        own = self._contributor.survivors(left)
        _, body = await self._ask("survivors", json.dumps({SIGNATURE: own[SIGNATURE]}).encode())
        # The certificates came with the keys, so they are not sent again.
        signed = {
            n: {**self._seals[n], **seal} if n in self._seals and isinstance(seal, dict) else None
            for n, seal in _by_client(body).items()
        }
        shares = self._contributor.unmask(left, signed)
        await self._ask("unmask", b"".join(shares[n] for n in sorted(shares)))


def _clients(header: Header, key: str) -> list[int]:
    found = header.get(key)
    if not isinstance(found, list) or not all(map(is_whole, found)):
        raise Refused(f"the server's '{key}' must be a list of clients in the sum")
    return list(found)


def _by_client(body: bytes | None) -> dict[int, Any]:
    try:
        found = json.loads(body or b"")
        return {int(name): each for name, each in found.items()}
    except (ValueError, AttributeError, RecursionError):
        raise Refused("the server passes on something that is no message of a sum") from None


def _keys(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping) or not all(is_hash(found.get(n)) for n in KEYS):
        raise Refused("the server passes on something that is no set of keys for a sum")
    return dict(found)
