"""Interleaved timing: the machine's mood hits all candidates alike."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from sdfeel.bench.ways import WAYS, Way
from sdfeel.bench.work import BenchWork
from sdfeel.core.errors import InputError
from sdfeel.engine.threads import cores

AT_LEAST = 0.25  # seconds of one repeat


@dataclass(frozen=True)
class EngineSpeed:
    """One way's speed on one work."""

    work: str
    way: str
    samples_per_second: float
    of_loop: float  # ratio to the loop engine, within the same repeats
    of_limit: float  # share of what the machine's matrix products would allow


def compare(
    work: BenchWork,
    ways: Sequence[str],
    repeats: int,
    report: Callable[[str, int, int], None] = lambda way, done, repeats: None,
) -> list[EngineSpeed]:
    """The median speed of every way over `repeats`, and the machine's limit."""
    ready: dict[str, Way] = {}
    for name in ways:
        with suppress(InputError):  # not every way fits every work
            ready[name] = WAYS[name](work)
    for way in ready.values():
        way()  # compiles, forks and warms up
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    peak: list[float] = []
    for turn in range(repeats):
        peak.append(gemm_flops())
        for name, way in ready.items():
            seconds[name].append(sustained(way))
            report(name, turn + 1, repeats)
    limit = median(peak) / work.flops
    return [
        EngineSpeed(
            work=work.name,
            way=name,
            samples_per_second=work.samples / median(times),
            of_loop=_ratio(seconds.get("loop", times), times),
            of_limit=work.samples / median(times) / limit,
        )
        for name, times in seconds.items()
    ] + [
        EngineSpeed(work.name, "limit", limit, median(seconds["loop"]) * limit / work.samples, 1.0)
    ]


def sustained(way: Way) -> float:
    """Seconds of one round, among as many as take a while.

    The first after another way finds caches cold and a core asleep, which a run of many does not.
    """
    rounds, begin = 0, perf_counter()
    while (passed := perf_counter() - begin) < AT_LEAST:
        way()
        rounds += 1
    return passed / rounds


def _ratio(reference: list[float], times: list[float]) -> float:
    return median(a / b for a, b in zip(reference, times, strict=True))


def gemm_flops(size: int = 1536) -> float:
    """Operations per second of a large matrix product on all cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    a, b = torch.ones(size, size), torch.ones(size, size)
    best = float("inf")
    for _ in range(4):
        begin = perf_counter()
        torch.mm(a, b)
        best = min(best, perf_counter() - begin)
    torch.set_num_threads(before)
    return float(2 * size**3 / best)
