"""What secure aggregation costs a client and its server: bytes and CPU milliseconds of one sum."""

import hashlib
import secrets
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sdfeel.core.sums import threshold_of
from sdfeel.engine.guards import masking_bytes
from sdfeel.live.secure_sum import (
    PRIME,
    SHARE,
    Collector,
    Contributor,
    Sitting,
    hash_of,
    lagrange,
)


@dataclass(frozen=True)
class SumCost:
    """One sum of `clients` updates of `numbers` numbers, of which `dead` never came."""

    clients: int
    numbers: int
    dead: int
    client_ms: float  # of CPU time, as all times here
    server_ms: float
    nobody_dead_ms: float  # of the server, if all numbers come
    plain_bytes: int  # of a client's numbers, with masks or without
    mask_bytes: int  # that a client sends and receives beside them


class _Hashes:
    """Stands for signatures, which cost a tenth of a millisecond each and are not timed."""

    def sign(self, client: int, words: str) -> Any:
        return hashlib.sha256(f"{client} {words}".encode()).hexdigest()

    def check(self, client: int, words: str, seal: Any) -> bool:
        return bool(seal == self.sign(client, words))


def measure(clients: int, numbers: int, dead: int) -> SumCost:
    """Time one client among this many, and the server that unmasks the sum without the dead."""
    everyone, seals = tuple(range(clients)), _Hashes()
    sitting = Sitting("a measured sum", everyone, threshold_of(clients))
    me = Contributor(sitting, 0, secrets.token_bytes(32), seals)
    pairs = {
        n: Contributor(Sitting(sitting.about, (0, n), 2), n, secrets.token_bytes(32), seals)
        for n in everyone[1:]
    }
    keys = {0: me.keys(), **{n: other.keys() for n, other in pairs.items()}}
    letters = {n: p.shares({0: keys[0], n: keys[n]})[0] for n, p in pairs.items()}
    left = list(everyone[: clients - dead])
    values = np.zeros(numbers, dtype=np.uint32)
    begin = process_time()
    me.keys()
    sent = me.shares(keys)
    assert not me.opened(letters)
    masked = me.numbers(values)
    me.survivors(left)
    signed = {n: seals.sign(n, sitting.words("survivors", left)) for n in left}
    me.unmask(left, signed)
    own = process_time() - begin
    took = _unmasked(_collected(sitting, numbers, left, masked))
    lively = _unmasked(_collected(sitting, numbers, list(everyone), masked))
    assert len(sent) == clients
    return SumCost(
        clients, numbers, dead, own * 1e3, took, lively, 4 * numbers, masking_bytes(clients)
    )


def _unmasked(server: Collector) -> float:
    """Milliseconds that a server needs to see the sum."""
    begin = process_time()
    server.total()
    return (process_time() - begin) * 1e3


def _collected(sitting: Sitting, numbers: int, left: list[int], masked: Any) -> Collector:
    """A server that has everything for a sum; shares are made up so that they give true keys."""
    server = Collector(sitting, numbers)
    givers = left[: sitting.threshold]
    weights = lagrange([n + 1 for n in givers])
    back = pow(weights[-1], -1, PRIME)
    alone = Sitting(sitting.about, (0, 1, 2), 3)
    shares: dict[int, dict[int, bytes]] = {n: {} for n in givers}
    for n in sitting.clients:
        secret = secrets.token_bytes(32)
        server.letters[n] = {}
        server.keys[n] = Contributor(alone, n, secret, _Hashes()).keys()
        raw = _seed_of(server, n) if n in left else _key_of(server, n)
        drawn = [secrets.randbelow(PRIME) for _ in givers[1:]]
        rest = sum(w * s for w, s in zip(weights, drawn, strict=False))
        last = (int.from_bytes(raw, "big") - rest) * back % PRIME
        for giver, share in zip(givers, [*drawn, last], strict=True):
            shares[giver][n] = share.to_bytes(SHARE, "big")
    server.numbers = dict.fromkeys(left, masked)
    server.shares = dict(shares)
    return server


def _seed_of(server: Collector, client: int) -> bytes:
    """A fresh seed of a client's own mask, whose hash is in the server's list of keys."""
    seed = secrets.token_bytes(32)
    server.keys[client] = {**server.keys[client], "own": hash_of(seed)}
    return seed


def _key_of(server: Collector, client: int) -> bytes:
    """A fresh mask key of a client that died, known to the server's list of keys."""
    key = X25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw().hex()
    server.keys[client] = {**server.keys[client], "masks": public}
    return key.private_bytes_raw()
