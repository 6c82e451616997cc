"""Stage 1: how long each candidate would take, from the bound and the pace alone.

Theorem 1 with learning rate eta, solved for the iterations K to a mean squared gradient epsilon:
where steps are short, K = 2 Delta / (eta epsilon); where drift is the limit, steps must shrink
until it is small, and K = 3 Delta sqrt(24) L kappa sqrt(V_3) / epsilon^1.5. Their sum is at least
the bound (noise left out) and at most twice it. It has the form

    K = a / stride + b * drift,   stride = eta (1 - c eta L / 2)
                                  drift = sqrt((1 - s) V_3(tau1, 0) + s V_3(tau1 tau2, zeta^alpha))

with two refinements: a step of eta lowers an L-smooth loss by at least stride times the squared
gradient, and s is the part of the clients' differences that lies between clusters, since those
within a cluster are averaged away every tau1 iterations. The bound's a and b are far too large,
b above all; pilot runs replace them by measured ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from sdfeel.core.arrays import Floats
from sdfeel.core.decide import Decisions, length
from sdfeel.planning.candidates import Candidate, trained
from sdfeel.run.loss_estimates import LossShape
from sdfeel.theory import synchronous

NEVER = 1e-12  # iterations per second where nobody ever meets the deadline
CHANGING = 20  # cycles over which prices that change from round to round are averaged


@dataclass(frozen=True)
class Pace:
    """Virtual seconds of one local iteration, and what they are spent on."""

    compute: float
    upload: float
    mix: float
    period: float  # seconds until all servers have mixed once
    steps: float  # local iterations of one round, the mean over all lanes
    bytes: float = 0.0  # that one iteration moves
    joules: float = 0.0  # that one iteration takes, as modelled

    @property
    def seconds(self) -> float:
        return self.compute + self.upload + self.mix

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the time that go to computing, to clients' uploads and to mixing."""
        parts = {"compute": self.compute, "upload": self.upload, "mix": self.mix}
        return {name: part / self.seconds for name, part in parts.items()}


@dataclass(frozen=True)
class Cycle:
    """What a lane does until its pattern repeats."""

    iterations: float
    rounds: int
    compute: float
    upload: float
    mix: float
    bytes: int
    joules: float

    @property
    def seconds(self) -> float:
        return self.compute + self.upload + self.mix


def pace(decisions: Decisions, cycle: int = 1) -> Pace:
    """The pace over `cycle` rounds of every lane, after which a scheme repeats itself.

    All servers and links are assumed to be up.
    """
    own, cost = replace(decisions, outages=None), decisions.cost
    lanes = own.lanes
    rounds = cycle if cost.at(lanes[0], 1, 0.0) is cost else cycle * CHANGING
    done = [_cycle(own, number, rounds) for number in range(len(lanes))]
    # Lanes run side by side: their iterations per second add up, and are counted per server.
    weights = [len(lane) / sum(map(len, lanes)) for lane in lanes]
    each = list(zip(weights, done, strict=True))
    speed = max(sum(w * c.iterations / c.seconds for w, c in each), NEVER)
    return Pace(
        compute=sum(w * c.compute / c.seconds for w, c in each) / speed,
        upload=sum(w * c.upload / c.seconds for w, c in each) / speed,
        mix=sum(w * c.mix / c.seconds for w, c in each) / speed,
        period=max(c.seconds for c in done) * cycle / rounds,
        steps=sum(w * c.iterations / c.rounds for w, c in each),
        bytes=sum(c.bytes / c.seconds for c in done) / speed,
        joules=sum(c.joules / c.seconds for c in done) / speed,
    )


def _cycle(decisions: Decisions, number: int, rounds: int) -> Cycle:
    done = compute = upload = mix = joules = 0.0
    moved = 0
    for k in range(rounds):
        work, steps, _, bill, *_ = decisions.round(number, k, seconds=compute + upload + mix)
        done += length(decisions.net, work, steps)
        compute, upload, mix = compute + bill.compute, upload + bill.upload, mix + bill.mix
        moved, joules = moved + bill.bytes, joules + bill.joules
    return Cycle(done, rounds, compute, upload, mix, moved, joules)


CURBS = (1.0, 0.5, 0.0)
GOAL = 0.1  # epsilon: the squared gradient must fall to this share of its value at the start


@dataclass(frozen=True, eq=False)
class Entry:
    """A candidate with everything that is known before it runs."""

    candidate: Candidate
    pace: Pace
    overshoot: float  # eta L / 2: from 1 on, steps along the steepest curvature go too far
    drift: float  # how much training apart costs, in iterations per unit of b
    largest: float  # learning rate up to which convergence is proven


@dataclass(frozen=True)
class Law:
    """K = a / stride + b * drift, times a factor for schemes that behave differently."""

    a: float
    b: float
    curb: float = 1.0  # c: how much overshooting counts; L is only an estimate
    factors: tuple[tuple[str, float], ...] = ()

    def iterations(self, entry: Entry) -> float:
        factor = dict(self.factors).get(entry.candidate.scheme, 1.0)
        return factor * (self.a / self.stride(entry) + self.b * entry.drift)

    def stride(self, entry: Entry) -> float:
        """How far a step gets; never less than a tenth of its length."""
        return entry.candidate.learning_rate * max(1 - self.curb * entry.overshoot, 0.1)

    def seconds(self, entry: Entry) -> float:
        """Virtual seconds until the level that the law was fitted for."""
        # A model exists only after a whole round.
        tau1 = max(entry.candidate.tau1, 1)
        whole = max(self.iterations(entry) / tau1, 1.0) * tau1
        return whole * entry.pace.seconds


def proven(measured: LossShape) -> Law:
    """The law with the bound's own constants."""
    problem = measured.problem
    epsilon = GOAL * measured.slope
    kappa = sqrt(problem.divergence)
    return Law(
        a=2 * problem.gap / epsilon,
        b=3 * problem.gap * sqrt(24) * problem.smoothness * kappa / epsilon**1.5,
    )


def drift(tau1: float, tau2: int, contraction: float, between: float) -> float:
    """The square root of V_3, split by where the clients' differences lie."""
    inside = synchronous.v3(tau1, 0.0)
    across = synchronous.v3(tau1 * tau2, contraction)
    return sqrt((1 - between) * inside + between * across)


def fitted(entries: Sequence[Entry], iterations: Sequence[float], before: Law) -> Law:
    """The law that fits measured iterations best, by relative errors.

    `before` counts a little, too, where the measurements say nothing.
    """
    needed = np.array(iterations)
    laws = [_fitted(entries, needed, replace(before, curb=curb)) for curb in CURBS]
    law = min(laws, key=lambda each: _error(each, entries, needed))
    return replace(law, factors=_factors(entries, needed, law))


def _fitted(entries: Sequence[Entry], needed: Floats, before: Law) -> Law:
    terms = np.array([[1 / before.stride(e), e.drift] for e in entries])
    size = np.hypot(before.a, before.b)
    # A little of the earlier ratio keeps few or similar runs from suggesting a wild one.
    prior = 0.05 * np.array([[before.b, -before.a]]) / size
    scale = float(np.median(needed / (terms @ [before.a, before.b]))) * size
    a, b = _least_squares(
        np.vstack([terms / needed[:, None], prior / scale]), np.append(np.ones(len(needed)), 0.0)
    )
    return Law(a, b, before.curb)


def _error(law: Law, entries: Sequence[Entry], needed: Floats) -> float:
    found = np.array([law.iterations(entry) for entry in entries])
    return float(np.sum((found / needed - 1) ** 2))


def _least_squares(matrix: Floats, wanted: Floats) -> tuple[float, float]:
    """Two weights, neither below 0."""
    both = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = [max(float(column @ wanted / (column @ column)), 0.0) for column in matrix.T]
    errors = [np.sum((column * w - wanted) ** 2) for column, w in zip(matrix.T, alone, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


def _factors(entries: Sequence[Entry], needed: Floats, law: Law) -> tuple[tuple[str, float], ...]:
    """How far each scheme departs from the law, shrunk towards 1 where it ran rarely."""
    found: dict[str, list[float]] = {}
    for entry, real in zip(entries, needed, strict=True):
        found.setdefault(entry.candidate.scheme, []).append(
            float(np.log(real / law.iterations(entry)))
        )
    return tuple(
        (scheme, float(np.exp(sum(logs) / (len(logs) + 1)))) for scheme, logs in found.items()
    )


def distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Of candidates that train the same models, only the one whose iterations cost least."""
    best: dict[Candidate, Entry] = {}
    for entry in entries:
        known = best.setdefault(trained(entry.candidate), entry)
        if entry.pace.seconds < known.pace.seconds:
            best[trained(entry.candidate)] = entry
    return list(best.values())


def shortlist(entries: Iterable[Entry], law: Law) -> list[Entry]:
    """A mixed field: the best by stage 1 for every tau1, at the learning rate that the measured
    curvature suggests and at the next higher ones, and the best of every scheme.

    The bound overestimates drift: on its own, it would only ever choose settings that communicate
    the most.
    """
    ranked = sorted(entries, key=law.seconds)
    schemes = dict.fromkeys(entry.candidate.scheme for entry in ranked)
    advised = {scheme: _advised(ranked, law, scheme) for scheme in schemes}
    chosen: dict[object, Entry] = {}
    for entry in ranked:
        candidate = entry.candidate
        rate = advised[candidate.scheme]
        if candidate.learning_rate >= rate:
            chosen.setdefault((candidate.tau1, candidate.learning_rate > rate), entry)
    for entry in ranked:
        if entry.candidate.scheme not in {e.candidate.scheme for e in chosen.values()}:
            chosen.setdefault(entry.candidate.scheme, entry)
    return list(chosen.values())


def _advised(entries: Iterable[Entry], law: Law, scheme: str) -> float:
    """The learning rate that gets a scheme furthest, by the measured curvature."""
    own = [entry for entry in entries if entry.candidate.scheme == scheme]
    return max(own, key=law.stride).candidate.learning_rate
