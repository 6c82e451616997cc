"""Secure aggregation: a server learns the sum of its clients' numbers, and nothing else about them.

The protocol of Bonawitz et al. 2017 ("Practical Secure Aggregation"), with the steps against a
server that lies. Each step is a function of messages; other modules carry these between the nodes.

    1 keys       each client makes two key pairs and a seed for a mask of its own; it signs both
                 public keys and the seed's hash
    2 shares     each client splits two secrets, the private key of its pairwise masks and that
                 seed, into a share for every client, encrypts these and publishes a seal of each
    3 numbers    each client sends its numbers plus its own mask, plus or minus one mask for every
                 other client
    4 survivors  the server lists the clients whose numbers came, and each of these signs the list
    5 unmasking  each client reveals one share about every other client: of the seed if that
                 client's numbers came, of the key if not. Never both: they would reveal its numbers

`threshold` many shares give a secret; fewer give nothing. Numbers are integers modulo 2^32, so the
masks cancel exactly, and the sum has the same bits as a sum without masks.

Seals and hashes show who lied. If a share does not fit its seal, the client that revealed it lied;
if a secret does not fit what was signed, its owner did. A client that cannot open a letter, or
finds other shares in it than those that were sealed, says so and leaves the sum. Nobody can tell
whether the reader or the writer of that letter lies, but a client that is at odds with more others
than a sum may lose is a liar (`Sitting.liars`).

A client derives its secrets of a round from one lasting secret, so after a crash it continues where
it was. It remembers what it answered (`Contributor.state`), and refuses a server that asks for the
same step again with different contents.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sdfeel.core.errors import RunError
from sdfeel.core.masked_sums import threshold_of
from sdfeel.live.transport.errors import Rejected

PRIME = 2**256 + 297  # the smallest prime above all numbers of 32 bytes
SHARE = 33  # bytes of a share, which is a number below it
SEAL = 16  # bytes of a share's seal
LETTER = 2 * SHARE + 16 + 2 * SEAL  # bytes of two encrypted shares and their public seals
Numbers = NDArray[np.uint32]
KEYS = ("masks", "letters", "own")  # two public keys and the hash of a seed, in hexadecimal
Keys = dict[str, Any]  # those of KEYS, and "signed"


class FalseSecret(RunError):
    """The shares that a client handed out do not give the secret that it signed."""

    def __init__(self, client: int) -> None:
        super().__init__(f"the shares of client-{client}'s secret do not give what it signed")
        self.client = client


class TooFew(RunError):
    """Fewer clients than the threshold are left, so nothing may be unmasked."""


class Signer(Protocol):
    """Signs for one client, and checks what others signed."""

    def sign(self, client: int, words: str) -> Any: ...

    def check(self, client: int, words: str, seal: Any) -> bool: ...


@dataclass(frozen=True)
class Sitting:
    """What all participants of one sum agree on."""

    about: str  # the federation, the server and the round: masks are for this sum alone
    clients: tuple[int, ...]  # that may take part
    threshold: int  # how many of them must stay to the end

    def __post_init__(self) -> None:
        # With fewer, a lying server could give two halves different lists of who is left.
        if not 2 * len(self.clients) // 3 < self.threshold <= len(self.clients):
            raise Rejected(
                f"a threshold of {self.threshold} among {len(self.clients)} clients is not more "
                f"than two thirds of them, or more than all"
            )

    def words(self, what: str, content: object) -> str:
        """The text that is signed for one step."""
        return json.dumps([self.about, what, content], sort_keys=True)

    def liars(self, odds: Iterable[tuple[int, int]]) -> list[int]:
        """The clients that are at odds with more others than a sum may lose.

        `odds` are pairs of which one must be lying. If fewer than a third of all lie, or one of
        three, no honest client is among those returned. A liar that is at odds with fewer of them
        costs the sum no more clients than it can do without.
        """
        others: dict[int, set[int]] = {n: set() for n in self.clients}
        for one, other in odds:
            if one != other and one in others and other in others:
                others[one].add(other)
                others[other].add(one)
        most = max(1, len(self.clients) - self.threshold)
        return [n for n, each in others.items() if len(each) > most]

    def seals(self, owner: int, holder: int, shares: bytes) -> bytes:
        """One hash per share: it identifies the share, and reveals nothing else about it."""
        words = self.words("share", [owner, holder]).encode()
        each = (shares[m : m + SHARE] for m in range(0, len(shares), SHARE))
        return b"".join(hashlib.sha256(words + share).digest()[:SEAL] for share in each)

    def enough(self, who: Iterable[int], what: str) -> list[int]:
        """These clients in order; `TooFew` below the threshold, `Rejected` for an outsider."""
        found = sorted(set(who))
        if not set(found) <= set(self.clients):
            raise Rejected(f"{what}: a client is named that has no part in this sum")
        if len(found) < self.threshold:
            raise TooFew(
                f"{what}: {len(found)} clients are left, but {self.threshold} are needed to see "
                f"the sum; it is not unmasked"
            )
        return found


def sitting_of(federation: str, server: int, k: int, clients: Iterable[int]) -> Sitting:
    """The sum of one round at one server, as the server and every client work it out."""
    who = tuple(sorted(clients))
    return Sitting(f"{federation} edge-{server} round {k}", who, threshold_of(len(who)))


class Contributor:
    """One client in one sum. It may repeat its answers, but never contradicts them."""

    def __init__(
        self,
        sitting: Sitting,
        client: int,
        secret: bytes,
        signer: Signer,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._sitting, self._me, self._signer = sitting, client, signer
        words = f"{sitting.about} {client}"
        self._masks = X25519PrivateKey.from_private_bytes(_derived(secret, f"masks {words}"))
        self._letters = X25519PrivateKey.from_private_bytes(_derived(secret, f"letters {words}"))
        self._own = _derived(secret, f"own {words}")  # the seed of its own mask
        self._dice = _derived(secret, f"shares {words}")
        self.state: dict[str, Any] = dict(state or {})  # hashes of what was answered: keep it

    def _once(self, step: str, content: object) -> None:
        """Refuse to answer a step twice with different contents."""
        found = hashlib.sha256(self._sitting.words(step, content).encode()).hexdigest()
        if self.state.setdefault(step, found) != found:
            raise Rejected(f"the server asks twice for {step} of one sum, with different contents")

    def keys(self) -> Keys:
        """Step 1."""
        keys = {"masks": _public(self._masks), "letters": _public(self._letters)}
        keys["own"] = hash_of(self._own)
        return {**keys, "signed": self._signer.sign(self._me, self._sitting.words("keys", keys))}

    def shares(self, keys: Mapping[int, Keys]) -> dict[int, bytes]:
        """Step 2: a letter with two shares to each other client; for ourselves, only the seals."""
        who = self._sitting.enough(keys, "keys")
        for client in who:
            said = {name: keys[client][name] for name in KEYS}
            words = self._sitting.words("keys", said)
            if not self._signer.check(client, words, keys[client].get("signed")):
                raise Rejected(f"the keys of client-{client} are not signed by client-{client}")
        known = [each["masks"] for each in keys.values()] + [e["letters"] for e in keys.values()]
        if self._me not in who or len(set(known)) < len(known):
            raise Rejected("our own keys are missing, or two clients have the same key")
        self._once("shares", {str(n): "".join(keys[n][name] for name in KEYS) for n in who})
        self._keys = dict(keys)
        places = [n + 1 for n in who]
        key = split(_raw(self._masks), places, self._sitting.threshold, self._dice + b"key")
        own = split(self._own, places, self._sitting.threshold, self._dice + b"own")
        letters = {}
        for n, one, other in zip(who, key, own, strict=True):
            letters[n] = self._sitting.seals(self._me, n, one + other)
            if n == self._me:
                self._kept = one + other
            else:
                where = _nonce(self._me, n), one + other, self._envelope(self._me, n)
                letters[n] = self._box(n).encrypt(*where) + letters[n]
        return letters

    def opened(self, letters: Mapping[int, bytes]) -> list[int]:
        """Read the letters to us; return the clients whose letters cannot be right."""
        who = self._sitting.enough([*letters, self._me], "shares")
        if not set(who) <= set(self._keys):
            raise Rejected("there are encrypted shares from clients without keys")
        self._read = {self._me: self._kept}
        for n, letter in letters.items():
            hidden, seals = letter[: -2 * SEAL], letter[-2 * SEAL :]
            with suppress(InvalidTag):
                about = self._envelope(n, self._me)
                shares = self._box(n).decrypt(_nonce(n, self._me), hidden, about)
                if self._sitting.seals(n, self._me, shares) == seals:
                    self._read[n] = shares
        return [n for n in letters if n not in self._read]

    def numbers(self, values: Numbers) -> Numbers:
        """Step 3: our numbers plus our own mask and one per client whose letter we `opened`."""
        who = sorted(self._read)
        # Two vectors of numbers under the same masks would reveal their difference.
        self._once("numbers", [who, hashlib.sha256(values.tobytes()).hexdigest()])
        found = values + stream(self._own, len(values))
        for n in who:
            if n != self._me:
                found += pairwise(self._masks, self._keys[n]["masks"], self._me, n, len(values))
        return found

    def survivors(self, who: Sequence[int]) -> Any:
        """Step 4: our signature under the list of clients whose numbers came."""
        left = self._sitting.enough(who, "numbers")
        if self._me not in left or not set(left) <= set(self._read):
            raise Rejected("the server counts clients whose shares never came, or leaves us out")
        self._once("survivors", left)
        return self._signer.sign(self._me, self._sitting.words("survivors", left))

    def unmask(self, who: Sequence[int], signed: Mapping[int, Any]) -> dict[int, bytes]:
        """Step 5: one share about each client, once enough have signed the list that we signed."""
        left = self._sitting.enough(who, "numbers")
        self._once("survivors", left)  # the list that we signed
        words = self._sitting.words("survivors", left)
        self._sitting.enough(signed, "survivors")
        for n, seal in signed.items():
            if n not in left or not self._signer.check(n, words, seal):
                raise Rejected(f"client-{n} did not sign that these clients are left")
        return {
            n: shares[SHARE:] if n in left else shares[:SHARE] for n, shares in self._read.items()
        }

    def _box(self, other: int) -> AESGCM:
        shared = exchanged(self._letters, self._keys[other]["letters"])
        return AESGCM(_derived(shared, self._sitting.about))

    def _envelope(self, sender: int, to: int) -> bytes:
        return self._sitting.words("letter", [sender, to]).encode()


@dataclass
class Collector:
    """The server in one sum: it carries letters, and adds up numbers that it cannot read."""

    sitting: Sitting
    length: int
    keys: dict[int, Keys] = field(default_factory=dict)
    letters: dict[int, Mapping[int, bytes]] = field(default_factory=dict)  # by sender
    numbers: dict[int, Numbers] = field(default_factory=dict)
    signed: dict[int, Any] = field(default_factory=dict)
    shares: dict[int, Mapping[int, bytes]] = field(default_factory=dict)  # by who revealed them

    def letters_to(self, client: int) -> dict[int, bytes]:
        """The letters that the others wrote to one client."""
        self.sitting.enough(self.letters, "shares")
        sent = self.letters.items()
        return {n: each[client] for n, each in sent if client in each and n != client}

    @property
    def survivors(self) -> list[int]:
        """The clients whose numbers came."""
        return self.sitting.enough(self.numbers, "numbers")

    def secrets(self) -> dict[int, bytes]:
        """The seeds of the survivors' own masks, and the keys of the others who sent letters.

        `FalseSecret` names a client that handed out shares of something else than it signed.
        """
        left, givers = self.survivors, self.sitting.enough(self.shares, "unmasking")
        givers = givers[: self.sitting.threshold]
        weights = lagrange([n + 1 for n in givers])
        found = {}
        for n in sorted({*left, *self.letters}):
            secret = found[n] = self._secret(n, givers, weights)
            if n in left:
                known = hash_of(secret) == self.keys[n]["own"]
            else:
                key = X25519PrivateKey.from_private_bytes(secret)
                known = _public(key) == self.keys[n]["masks"]
            if not known:
                raise FalseSecret(n)
        return found

    def total(self) -> Numbers:
        """The sum of the survivors' numbers; `TooFew` or `FalseSecret` if there is none."""
        secrets, left = self.secrets(), self.survivors
        total = np.zeros(self.length, dtype=np.uint32)
        for n in left:
            total += self.numbers[n]
            total -= stream(secrets[n], self.length)
        for n in sorted(set(self.letters) - set(left)):
            key = X25519PrivateKey.from_private_bytes(secrets[n])
            for m in left:  # remove the masks that m added for n, which is gone
                total += pairwise(key, self.keys[m]["masks"], n, m, self.length)
        return total

    def _secret(self, client: int, givers: Sequence[int], weights: Sequence[int]) -> bytes:
        try:
            found = [int.from_bytes(self.shares[n][client], "big") for n in givers]
            whole = sum(w * each for w, each in zip(weights, found, strict=True)) % PRIME
            return whole.to_bytes(32, "big")
        except (KeyError, OverflowError):
            raise FalseSecret(client) from None


def split(secret: bytes, places: Sequence[int], threshold: int, dice: bytes) -> list[bytes]:
    """Shamir's shares of 32 bytes: `threshold` of them give the secret, fewer reveal nothing."""
    drawn = _expanded(dice, 48 * (threshold - 1))
    factors = [int.from_bytes(drawn[n : n + 48], "big") % PRIME for n in range(0, len(drawn), 48)]
    factors = [*factors, int.from_bytes(secret, "big")]
    found = []
    for place in places:
        value = 0
        for factor in factors:
            value = (value * place + factor) % PRIME
        found.append(value.to_bytes(SHARE, "big"))
    return found


def lagrange(places: Sequence[int]) -> list[int]:
    """The weights with which shares at these places sum to the secret."""
    found = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def stream(seed: bytes, length: int) -> Numbers:
    """(length,) integers modulo 2^32 from a seed, by AES in counter mode."""
    return np.frombuffer(_expanded(seed, 4 * length), dtype="<u4").astype(np.uint32, copy=False)


def exchanged(own: X25519PrivateKey, theirs: str) -> bytes:
    """The secret that two keys share; `Rejected` for a public key that is invalid."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(theirs)))
    except ValueError:
        raise Rejected("a public key of a sum is invalid: it gives no shared secret") from None


def check_public(key: str) -> None:
    """`Rejected` unless this public key is valid, which does not depend on one's own key."""
    exchanged(X25519PrivateKey.from_private_bytes(bytes(range(32))), key)


def pairwise(own: X25519PrivateKey, theirs: str, me: int, other: int, length: int) -> Numbers:
    """(length,) the mask that two clients share; one adds it, the other subtracts it."""
    mask = stream(_derived(exchanged(own, theirs), "mask"), length)
    return mask if me < other else np.negative(mask)


def _expanded(seed: bytes, size: int) -> bytes:
    key = _derived(seed, "stream")
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def _derived(secret: bytes, words: str) -> bytes:
    return HKDF(hashes.SHA256(), 32, b"sdfeel secure sum", words.encode()).derive(secret)


def hash_of(secret: bytes) -> str:
    """The hash that a client signs of its own mask's seed."""
    return hashlib.sha256(b"sdfeel own mask" + secret).hexdigest()


def _nonce(sender: int, to: int) -> bytes:
    """Unique, since a key serves one pair in one sum, and each writes to the other once."""
    return sender.to_bytes(6, "big") + to.to_bytes(6, "big")


def _raw(key: X25519PrivateKey) -> bytes:
    return key.private_bytes_raw()


def _public(key: X25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
