"""Runs that never happened, with numbers that could have."""

from collections.abc import Iterator
from math import exp, sin

from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned
from sdfeel.report.history import History

PLAN = {  # scheme: final accuracy, seconds of a round, bytes of a round
    "sd-feel": (0.91, 0.61, 5_000_000),
    "fedavg": (0.89, 2.4, 1_700_000),
    "hierfavg": (0.90, 1.1, 3_300_000),
    "feel": (0.71, 0.43, 1_200_000),
}


def started(scheme: str = "sd-feel", iterations: int = 0) -> Started:
    return Started(scheme, 50, 10, 21_840, "batched", 7, 0.6, iterations)


def played(number: int, second: float = 0.6, size: int = 5_000_000) -> Round:
    phases = {"compute": 0.5 * second, "upload": 0.4 * second, "mix": 0.1 * second}
    return Round(number, (0,), 5 * number, second * number, size * number, 2.5 * number, 50, phases)


def measured(
    number: int,
    accuracy: float | None,
    second: float = 0.6,
    size: int = 5_000_000,
    loss: float = 0.5,
    metrics: dict[str, float] | None = None,
) -> Evaluated:
    return Evaluated(
        number,
        5 * number,
        second * number,
        size * number,
        2.5 * number,
        loss,
        1.1 * loss,
        accuracy,
        0.01,
        metrics or {},
    )


def finished(number: int, second: float = 0.6, size: int = 5_000_000) -> Finished:
    return Finished(
        number,
        5 * number,
        second * number,
        size * number,
        2.5 * number,
        "all rounds done",
        "ab" * 32,
    )


def events(
    scheme: str, rounds: int = 100, every: int = 2, metrics: bool = False
) -> Iterator[Event]:
    best, second, size = PLAN[scheme]
    yield started(scheme)
    for number in range(rounds + 1):
        if number:
            yield played(number, second, size)
        if number % every == 0:
            learnt = 1 - exp(-number / 18)
            accuracy = 0.1 + (best - 0.1) * learnt + 0.01 * sin(number * (2 + best))
            own = {"worst class": accuracy - 0.08} if metrics else {}
            loss = 2.3 * (1 - learnt) + 1.2 * (1 - best) + 0.03 * sin(number)
            yield measured(number, accuracy, second, size, loss, own)
    yield Warned("step size 0.5 is above the bound 0.31 for which convergence is proved")
    yield finished(rounds, second, size)


def runs(rounds: int = 100, metrics: bool = False) -> list[History]:
    return [History.of(name, events(name, rounds, metrics=metrics)) for name in PLAN]
