"""Damage: what transmission errors and attackers do to bytes."""

from collections.abc import Callable
from random import Random

Mutation = Callable[[bytes, Random], bytes]
_NUMBERS = (0, 1, 7, 8, 9, 127, 255, 2**15, 2**16, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64 - 1)
_WORDS = (
    *(str(number).encode() for number in _NUMBERS),
    *b"-1 1e999 NaN -Infinity null true [] {} 1.5".split(),
    *b'" \\ , : { } [ ] \\ud800 \\u0000 # \n \x00 \xff'.split(),
    *b"F32 F64 I64 BF16 F8_E4M3 __metadata__ dtype shape data_offsets size kind header".split(),
)


def mutated(good: bytes, others: tuple[bytes, ...], random: Random) -> bytes:
    """The bytes with one to four kinds of damage."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if random.random() < 0.1:
            other = random.choice(others)
            good = good[: random.randint(0, len(good))] + other[random.randint(0, len(other)) :]
        else:
            good = random.choice(_MUTATIONS)(good, random)
    return good


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def _overwrite(data: bytes, random: Random) -> bytes:
    place = random.randint(0, len(data))
    new = random.randbytes(random.randint(1, 8))
    return data[:place] + new + data[place + len(new) :]


def _number(data: bytes, random: Random) -> bytes:
    """A length that lies, where safetensors has its length or anywhere else."""
    place = 0 if random.random() < 0.5 else random.randint(0, len(data))
    number = (random.choice(_NUMBERS) + random.randint(-1, 1)) % 2**64
    return data[:place] + number.to_bytes(8, "little") + data[place + 8 :]


def _word(data: bytes, random: Random) -> bytes:
    """Something that means something, over or between what was there."""
    place = random.randint(0, len(data))
    return data[:place] + random.choice(_WORDS) + data[place + random.randint(0, 4) :]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _remove(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    return data[:start] + data[start + random.randint(1, 16) :]


def _repeat(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    piece = data[start : start + random.randint(1, 32)]
    return data[:start] + piece * random.randint(2, 50) + data[start:]


_MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _flip,
    _overwrite,
    _number,
    _word,
    _cut,
    _remove,
    _repeat,
)
