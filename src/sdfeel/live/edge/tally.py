"""How far an asynchronous run has come: what each server claims, and how much of it counts.

Such a run ends by the mean of all lanes' local iterations. Each count is only a server's claim, so
none counts for more than the others' counts make plausible: one liar cannot end the run alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TypeGuard

import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.decide import Decisions, mean_iterations

PACE = 2.0  # believed: at most this many times what the others' counts let us expect
FIT = 0.1  # two models whose fits differ by no more (of a logarithm) are both possible
WITNESSES = 2  # servers that have ended are enough, as one of them does not lie
EVERY = 0.05  # of the run: how often we ask whether it should have ended


@dataclass(frozen=True)
class Paces:
    """The length and duration of each lane's round, according to the experiment."""

    lengths: Floats  # (L,) local iterations
    seconds: Floats  # (L,)

    @classmethod
    def of(cls, decisions: Decisions) -> "Paces":
        rounds = (decisions.round(number, 0) for number in range(len(decisions.lanes)))
        seconds = [max(each.bill.seconds, 1e-9) for each in rounds]
        return cls(np.array(decisions.first_lengths), np.array(seconds))

    @cached_property
    def _models(self) -> tuple[Floats, Floats]:
        """(L,) two models of how fast lanes are: devices are as the experiment says, or all rounds
        take the same time."""
        return floats(self.lengths / self.seconds), self.lengths

    def fair(self, lane: int, other: int, count: float) -> float:
        """The most iterations that `lane` may have done when `other` has done `count`."""
        return count * max(float(model[lane] / model[other]) for model in self._models)

    def expected(self, lane: int, count: float) -> float:
        """The largest mean over all lanes that is possible when `lane` has done `count`."""
        return count * max(float((model / model[lane]).mean()) for model in self._models)

    def bounds(self, counts: Sequence[float]) -> list[float]:
        """The most that each lane can count for: `PACE` times what the others' counts make
        plausible, plus two rounds. A lane's own count has no influence on its bound.

        The furthest of the others decides, as many may be stuck, under each model of their speeds
        that fits them about equally well.
        """
        told = np.array(counts, dtype=np.float64)
        fits = [self._fit(told, model) for model in self._models]
        best = np.minimum(*(apart for apart, _ in fits))
        fair = np.max([np.where(apart <= best + FIT, most, 0.0) for apart, most in fits], axis=0)
        return list(map(float, PACE * fair + 2 * self.lengths))

    def _fit(self, told: Floats, model: Floats) -> tuple[Floats, Floats]:
        """(L,) for each lane: how badly a model fits the others, and the count it allows it."""
        done, others = (told + self.lengths) / model, len(told) - 1
        order = np.argsort(done)
        rank = np.argsort(order)  # a lane's own place is left out of the others' median
        middle = (((others - 1) // 2), others // 2)
        median = sum(done[order[place + (place >= rank)]] for place in middle) / 2
        apart = np.abs(np.log(done)[None, :] - np.log(median)[:, None])
        pace = told / model
        furthest = np.full(len(told), pace.max())
        furthest[pace.argmax()] = np.delete(pace, pace.argmax()).max()
        return (apart.sum(axis=1) - np.diag(apart)) / others, furthest * model

    def over(self, counts: Sequence[float], iterations: int) -> bool:
        """Is a run over, if these are the counts that its lanes claim?"""
        if not _reached(counts, iterations):
            return False
        pairs = zip(counts, self.bounds(counts), strict=True)
        return _reached([min(pair) for pair in pairs], iterations)


def _reached(counts: Sequence[float], iterations: int) -> bool:
    return mean_iterations(sum(counts), len(counts)) >= iterations


@dataclass
class StepTally:
    """What one server knows about all servers' local iterations."""

    paces: Paces
    me: int
    iterations: int
    own: list[float] = field(default_factory=list)  # what each server says about itself
    told: list[float] = field(default_factory=list)  # the most that any server says about each
    _over: set[int] = field(default_factory=set)  # servers that say that they have ended
    _asked: float = 0.0  # our count when we last asked on our own whether the run is over

    def __post_init__(self) -> None:
        self.own = self.own or [0.0] * len(self.paces.lengths)
        self.told = self.told or list(self.own)

    @property
    def most(self) -> int:
        """The most local iterations of one server: when it ends the run and no other has begun."""
        return self.iterations * len(self.own)

    def took(self, steps: float) -> None:
        """Set this server's own count."""
        self.own[self.me] = self.told[self.me] = steps

    def learn(self, teller: int, found: object) -> None:
        """Take over what another server says about everyone, as far as that can be true.

        Counts only grow, and nobody knows more about ours than we do.
        """
        if not isinstance(found, list) or len(found) != len(self.told):
            return
        for d, count in enumerate(found):
            if d != self.me and _is_count(count):
                most = float(min(count, self.most))
                self.told[d] = max(self.told[d], most)
                if d == teller:
                    self.own[d] = max(self.own[d], most)

    def heard(self, server: int, count: object) -> None:
        """Take over a server's own answer: others that claimed more for it were wrong."""
        if _is_count(count):
            self.own[server] = max(self.own[server], float(min(count, self.most)))
            self.told[server] = self.own[server]

    def doubtful(self, absent: Collection[int]) -> list[int]:
        """The servers to ask: before we believe that the run is over, or when it should be over."""
        others = [d for d in range(len(self.own)) if d != self.me and d not in absent]
        counted = [self.told[d] for d in others] + [self.own[self.me]]
        if _reached(counted, self.iterations):
            return [d for d in others if self.told[d] > self.own[d]]
        mine = self.own[self.me]
        late = self.paces.expected(self.me, mine) >= self.iterations
        if late and mine >= self._asked + EVERY * self.iterations:
            self._asked = mine
            return others
        return []

    def ended(self, server: int, over: object) -> None:
        """A server tells whether it has ended."""
        (self._over.add if over is True else self._over.discard)(server)

    def over(self, absent: Collection[int], silent: Collection[int] = ()) -> bool:
        """Is the run over? Either the counts say so, or two other servers have ended, of which at
        least one is honest and did not end too early."""
        if len(self._over.difference(absent)) >= WITNESSES:
            return True
        told = [max(pair) for pair in zip(self.own, self.told, strict=True)]
        most = [count for d, count in enumerate(told) if d not in absent]
        return _reached(most, self.iterations) and _reached(
            self.counted(absent, silent), self.iterations
        )

    def counted(self, absent: Collection[int], silent: Collection[int] = ()) -> list[float]:
        """The local iterations that count towards the end, of all servers that are not absent.

        For a server that did not answer, others' claims count up to what our own pace makes
        plausible.
        """
        found, bounds = list(self.own), self.paces.bounds(self.own)
        for d in silent:
            fair = self.paces.fair(d, self.me, self.own[self.me])
            found[d] = max(found[d], min(self.told[d], fair))
        bounds[self.me] = inf  # our own count is certain
        return [min(found[d], bounds[d]) for d in range(len(found)) if d not in absent]


def _is_count(value: object) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return value >= 0  # which NaN is not
