"""What deployments take beside what links and devices explain, fitted to deployed runs.

Prices are nearly linear in the overheads, so that a few linear fits find them. A third of the
configurations is held out at a time: each is predicted from the others, by figures that it had no
part in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.cost import Cost
from sdfeel.deploy.paces import Configuration
from sdfeel.experiment import toml

FOLDS = 3
TURNS = 2  # linear fits to all, each around the last one's answer
WEIGHINGS = 5  # of errors, until the largest weigh little
SMALLEST = 0.01  # relative errors below this all count alike
LEAST = 3  # configurations for a fit: one for each figure


@dataclass(frozen=True)
class Extra:
    """Seconds and bytes that a deployment adds."""

    round: float = 0.0  # seconds of every round
    message: float = 0.0  # seconds of each message at a node
    header: float = 0.0  # bytes of each message

    def on(self, cost: Cost, connect: float = 0.0) -> Cost:
        """The prices with these overheads in place of their own."""
        own = replace(
            cost.overheads,
            round=self.round,
            message=self.message,
            connect=connect,
            header_bytes=round(self.header),
        )
        return replace(cost, overheads=own)


STEPS = Extra(0.010, 0.002, 4000.0)  # apart, to see what each of them does
NAMES = tuple(each.name for each in fields(Extra))


@dataclass(frozen=True)
class Fit:
    """Overheads, and what they predict."""

    extra: Extra  # fitted to all
    connect: float  # seconds more of a first round
    held_out: Mapping[str, float]  # seconds of each configuration, predicted from others
    folds: tuple[tuple[str, ...], ...]  # held out together

    def keys(self) -> dict[str, Any]:
        """The same as keys of an experiment's section `latency`."""
        return {
            "downlink": True,
            "calls": True,
            "holds": True,
            "round_ms": round(self.extra.round * 1e3, 2),
            "message_ms": round(self.extra.message * 1e3, 3),
            "header_bytes": round(self.extra.header),
            "connect_ms": round(self.connect * 1e3, 1),
        }

    def toml(self) -> str:
        """The same as a part of an experiment file."""
        return toml.document({"latency": self.keys()}).lstrip("\n")


def fit(found: Sequence[Configuration], prices: Mapping[str, Cost]) -> Fit | None:
    """Overheads that explain what the configurations took; None if these are too few."""
    if len(found) < FOLDS + LEAST:
        return None
    extra, whole = Extra(), np.arange(len(found))
    for _ in range(TURNS):
        lines = LinearFit.around(extra, found, prices)
        extra = lines.fitted(whole)
    held: dict[str, float] = {}
    for n in range(FOLDS):
        own = lines.fitted(whole[whole % FOLDS != n])
        held |= {each.name: _seconds(each, prices, own) for each in found[n::FOLDS]}
    late = [
        each.measured.first - each.predicted(extra.on(prices[each.name])).first
        for each in found
        if len(each.decisions.lanes) == 1
    ]
    names = tuple(tuple(each.name for each in found[n::FOLDS]) for n in range(FOLDS))
    ordered = {each.name: held[each.name] for each in found}
    return Fit(extra, max(median(late), 0.0) if late else 0.0, ordered, names)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """What each configuration takes near some overheads, and what it took, as parts of that."""

    slopes: Floats  # (N, 3) by what each of `STEPS` lengthens it
    wanted: Floats  # (N,) what `STEPS` together must explain

    @classmethod
    def around(
        cls, extra: Extra, found: Sequence[Configuration], prices: Mapping[str, Cost]
    ) -> "LinearFit":
        target = np.array([each.measured.seconds for each in found])
        base = np.array([_seconds(each, prices, extra) for each in found])
        slopes = np.empty((len(found), len(NAMES)))
        for n, name in enumerate(NAMES):
            more = replace(extra, **{name: getattr(extra, name) + getattr(STEPS, name)})
            slopes[:, n] = [_seconds(each, prices, more) for each in found]
        slopes = (slopes - base[:, None]) / target[:, None]
        own = np.array([getattr(extra, name) / getattr(STEPS, name) for name in NAMES])
        return cls(floats(slopes), floats((target - base) / target + slopes @ own))

    def fitted(self, those: Ints) -> Extra:
        """The overheads with the smallest relative errors, where a few large ones weigh little."""
        slopes, wanted = self.slopes[those], self.wanted[those]
        weights, answer = np.ones(len(those)), np.zeros(len(NAMES))
        for _ in range(WEIGHINGS):
            answer = not_negative(floats(slopes * weights[:, None]), floats(wanted * weights))
            left = np.abs(wanted - slopes @ answer)
            weights = np.sqrt(1 / np.maximum(left, SMALLEST))
        return Extra(*(float(x) * getattr(STEPS, n) for x, n in zip(answer, NAMES, strict=True)))


def _seconds(each: Configuration, prices: Mapping[str, Cost], extra: Extra) -> float:
    return each.predicted(extra.on(prices[each.name])).seconds


def not_negative(slopes: Floats, wanted: Floats) -> Floats:
    """The x >= 0 that brings slopes @ x closest to `wanted`: every choice of zeros is tried.

    >>> not_negative(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0]))
    array([2., 0.])
    """
    count = slopes.shape[1]
    best, least = np.zeros(count), float(wanted @ wanted)
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            x = np.zeros(count)
            x[chosen] = np.linalg.lstsq(slopes[:, chosen], wanted, rcond=None)[0]
            left = wanted - slopes @ x
            if (x >= 0).all() and float(left @ left) < least - 1e-12:
                best, least = x, float(left @ left)
    return floats(best)
