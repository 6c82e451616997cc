"""What rules, noise and masks cost, and what they are good for."""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sdfeel.core.errors import Diverged
from sdfeel.core.events import Evaluated, Finished
from sdfeel.core.masked_sums import threshold_of
from sdfeel.engine.attacks import SUCCESS
from sdfeel.engine.guards import masking_bytes
from sdfeel.engine.privacy import EPSILON, INSTALLED, epsilon
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.live.secure_sum import (
    PRIME,
    SHARE,
    Collector,
    Contributor,
    Sitting,
    hash_of,
    lagrange,
)
from sdfeel.run.session import drive_of

Settings = tuple[str, ...]
BASE: Settings = (
    *("network.clients=50", "network.servers=5", "network.graph=complete"),
    *("network.mixing=metropolis", "data.partition=iid", "scheme.tau1=5"),
    *("training.learning_rate=0.1", "training.iterations=100", "training.workers=1"),
    *("evaluation.every=1000", "evaluation.train_examples=500"),
)
RULES: Mapping[str, Settings] = {
    "mean": (),
    "median": ("robust.cluster=median",),
    "trimmed mean": ("robust.cluster=trimmed-mean",),
    "geometric median": ("robust.cluster=geometric-median",),
    "multi-Krum": ("robust.cluster=multi-krum",),
    "centred clipping": ("robust.cluster=centred-clipping",),
    "neighbours, trimmed": ("robust.cluster=trimmed-mean", "robust.before=nearest-neighbours"),
}
ACROSS: Mapping[str, Settings] = {
    "clipped gossip": ("robust.servers=clipped-gossip",),
    "CS+": ("robust.servers=cs+",),
}
NOISE: Settings = ("privacy.protects=clients", "privacy.noise=1")
SECRETS: Mapping[str, Settings] = {
    "noise in messages": NOISE,
    "masks": ("privacy.secure_aggregation=true",),
    "masks, noise in sums": (
        *NOISE,
        *("privacy.noise_in=sum", "privacy.secure_aggregation=true"),
    ),
}
LIARS = 10  # of 50: two in each cluster of ten
ATTACKS: Mapping[str, Settings] = {
    "nobody lies": (),
    "sign flip": ("attack.kind=sign-flip", "attack.strength=10"),
    "scaling": ("attack.kind=scaling", "attack.strength=50"),
    "a little is enough": ("attack.kind=little-is-enough", "attack.strength=3"),
    "inner product": ("attack.kind=inner-product", "attack.strength=10"),
    "label flip": ("attack.kind=label-flip",),
    "backdoor": ("attack.kind=backdoor", "attack.strength=5"),
}


@dataclass(frozen=True)
class GuardTrial:
    """One short run."""

    guard: str
    attack: str
    accuracy: float | None  # None: it diverged
    backdoor: float | None
    round_bytes: float
    seconds: float  # of this process, measuring aside
    epsilon: float | None


def tried(guard: str, attack: str, *settings: str) -> GuardTrial:
    """Run it, and see how it ends."""
    ready = prepare(load(None, [*BASE, *settings]))
    if ready.budget is not None and INSTALLED:
        epsilon(1.0, 0.1)  # loads the accountant, which is not a cost of noise
    measured, last, began = None, None, process_time()
    try:
        for event in drive_of(ready, ready.simulation()):
            measured = event if isinstance(event, Evaluated) else measured
            last = event if isinstance(event, Finished) else last
    except Diverged:
        last = None
    finally:
        ready.engine.close()
    spent = process_time() - began
    if last is None or measured is None:
        return GuardTrial(guard, attack, None, None, 0.0, spent, None)
    return GuardTrial(
        guard,
        attack,
        measured.accuracy,
        measured.metrics.get(SUCCESS),
        last.bytes / last.number,
        spent,
        measured.metrics.get(EPSILON),
    )


def costs(settings: Settings) -> Iterator[GuardTrial]:
    """Every rule and every secret, where nobody lies."""
    for guard, keys in {**RULES, **ACROSS, **SECRETS}.items():
        yield tried(guard, "nobody lies", *keys, *settings)


def attacks(settings: Settings, seeds: int = 1) -> Iterator[GuardTrial]:
    """Every attack by a fifth of the clients, against every rule; all of one seed first."""
    for seed in range(seeds):
        for attack, lie in ATTACKS.items():
            who = (f"attack.clients={LIARS}",) if lie else ()
            for guard, keys in RULES.items():
                yield tried(guard, attack, *keys, *lie, *who, f"seed={seed}", *settings)


@dataclass(frozen=True)
class SumCost:
    """A sum under masks: `clients` clients send `numbers` numbers each, but `dead` of them die."""

    clients: int
    numbers: int
    dead: int
    client_ms: float  # of CPU time, as all times here
    server_ms: float
    nobody_dead_ms: float  # of the server, if all numbers come
    plain_bytes: int  # of a client's numbers, with masks or without
    mask_bytes: int  # that a client sends and receives in addition


class _Hashes:
    """Stands for signatures, which cost a tenth of a millisecond each and are not timed."""

    def sign(self, client: int, words: str) -> Any:
        return hashlib.sha256(f"{client} {words}".encode()).hexdigest()

    def check(self, client: int, words: str, seal: Any) -> bool:
        return bool(seal == self.sign(client, words))


def sum_cost(clients: int, numbers: int, dead: int) -> SumCost:
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
