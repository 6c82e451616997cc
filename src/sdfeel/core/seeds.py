"""Randomness by address: the same (seed, purpose, numbers) always gives the same draws.

No stream is shared, so it does not matter who draws, in what order, or on how many workers.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np

_turn = threading.RLock()


def _begin_anew() -> None:
    """In a forked process: whoever had the lock was not forked."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def alone() -> Iterator[None]:
    """Have to oneself what a process has once: the generators of torch, NumPy and Python.

    Other people's code draws from these, so they are seeded for it and restored; two runs in two
    threads take turns.
    """
    with _turn:
        yield


def rng(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """
    >>> [int(rng(7, "batches", client, 0).integers(100)) for client in (3, 4, 3)]
    [96, 53, 96]
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, address)))


def hidden(secret: int, purpose: str, *address: int) -> np.random.Generator:
    """Like `rng`, for draws that nobody may repeat without the secret.

    Addresses are hashed with it, so whoever finds out one generator's state knows no other's.

    >>> int(hidden(2**200, "privacy", 3, 0).integers(100))
    39
    """
    return generator(hidden_bits(secret, purpose, *address))


def hidden_bits(secret: int, purpose: str, *address: int) -> bytes:
    """256 random bits, from which `generator` makes what `hidden` returns."""
    words = f"{secret} {purpose} {' '.join(map(str, address))}"
    return hashlib.sha256(words.encode()).digest()


def generator(bits: bytes) -> np.random.Generator:
    """The generator that starts from these random bits."""
    entropy = np.random.SeedSequence(int.from_bytes(bits, "big"))
    return np.random.Generator(np.random.PCG64(entropy))


def number(seed: int, purpose: str, *address: int) -> int:
    """A 63-bit seed for a generator that is not NumPy's."""
    return int(_sequence(seed, purpose, address).generate_state(1, np.uint64)[0]) >> 1


def _sequence(seed: int, purpose: str, address: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence((seed, crc32(purpose.encode()), *address))
