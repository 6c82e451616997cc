"""Runs targets on damaged input and watches memory."""

import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sdfeel.core.errors import SdfeelError
from sdfeel.core.seeds import number
from tests.tools.fuzz.mutations import mutated
from tests.tools.fuzz.targets import Target


class Found(SdfeelError):
    """An input that a decoder neither accepts rightly nor refuses properly."""


@dataclass(frozen=True)
class Tally:
    """What became of the cases of one target."""

    target: str
    cases: int
    accepted: int
    seconds: float
    grown: int  # bytes of memory since a tenth of the cases


def case(target: Target, seed: int, index: int) -> bytes:
    """The input number `index`."""
    random = Random(number(seed, f"fuzz {target.name}", index))
    return mutated(random.choice(target.good), target.good, random)


def attack(target: Target, indices: Iterable[int], seed: int) -> Tally:
    """Try cases; raises `Found` for the first that shows a mistake."""
    accepted = tried = before = 0
    begun = time.perf_counter()
    numbers = list(indices) if not isinstance(indices, range) else indices
    for tried, index in enumerate(numbers, 1):
        data = case(target, seed, index)
        try:
            accepted += target.accepts(data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Found(
                f"{target.name} number {index} of seed {seed}: {type(error).__name__}: {error}; "
                f"the input is {data!r}"
            ) from error
        if tried == 1 + len(numbers) // 10:
            before = memory()
    grown = memory() - before if before else 0
    return Tally(target.name, tried, accepted, time.perf_counter() - begun, grown)


def memory() -> int:
    """Bytes in memory now; where the system does not say, the most there ever were."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
