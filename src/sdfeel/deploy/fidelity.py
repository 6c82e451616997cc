"""Deployed runs and simulations of the same experiments: how well does the virtual clock predict?

Deployments take longer than links and devices explain; these overheads are fitted. Round times are
nearly linear in them, so a few linear fits find them. A third of the configurations is held out at
a time, so each is predicted with overheads that were fitted without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from statistics import fmean, median
from typing import Any

import numpy as np

from sdfeel.core.arrays import Floats, Ints, floats
from sdfeel.core.cost import Cost
from sdfeel.deploy.round_times import PHASES, Configuration, DeployedRun, RoundTimes, configurations
from sdfeel.engine.base import cores
from sdfeel.experiment import toml

FOLDS = 3
TURNS = 2  # linear fits, each around the result of the one before
WEIGHINGS = 5  # times that errors are weighted again, so that large ones count little
SMALLEST = 0.01  # relative errors below this all have the same weight
LEAST = 3  # configurations for a fit: one for each overhead


@dataclass(frozen=True)
class Extra:
    """Seconds and bytes that a deployment adds."""

    round: float = 0.0  # seconds of every round
    message: float = 0.0  # seconds of each message at a node
    header: float = 0.0  # bytes of each message

    def on(self, cost: Cost, connect: float = 0.0) -> Cost:
        """The costs with these overheads in place of their own."""
        own = replace(
            cost.overheads,
            round=self.round,
            message=self.message,
            connect=connect,
            header_bytes=round(self.header),
        )
        return replace(cost, overheads=own)


STEPS = Extra(0.010, 0.002, 4000.0)  # by which each overhead is changed to see its effect
NAMES = tuple(each.name for each in fields(Extra))


@dataclass(frozen=True)
class Fit:
    """Overheads, and what they predict."""

    extra: Extra  # fitted to all configurations
    connect: float  # extra seconds of a first round
    held_out: Mapping[str, float]  # seconds of each configuration, predicted from the others
    folds: tuple[tuple[str, ...], ...]  # the configurations that were held out together

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
    """Overheads that explain the configurations' times; None if there are too few of them."""
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
    """Each configuration's time as a linear function of the overheads, over its real time."""

    slopes: Floats  # (N, 3) by how much each of `STEPS` lengthens it
    wanted: Floats  # (N,) how much the overheads together must explain

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
        """The overheads with the smallest relative errors; single large errors count little."""
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
    """The x >= 0 that brings slopes @ x closest to `wanted`, found by trying all sets of zeros.

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


STEP_OFF = 0.2  # a step time that differs by more than this share is worth a warning
BYTES_OFF = 0.02  # if bytes differ by more than this share, other messages were sent


@dataclass(frozen=True)
class OrderOfPairs:
    """How many pairs of configurations the simulator ranks as the deployments do."""

    pairs: int
    discordant: tuple[tuple[str, str], ...]  # the simulator says that the first is faster
    tied: int = 0  # equally fast on the simulator's clock

    @property
    def tau(self) -> float:
        """Kendall's: 1 if all pairs agree, -1 if none does."""
        return (self.pairs - self.tied - 2 * len(self.discordant)) / self.pairs


def ranking(measured: Mapping[str, float], predicted: Mapping[str, float]) -> OrderOfPairs:
    """
    >>> found = ranking({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0, "b": 2.5, "c": 2.0})
    >>> found.discordant, round(found.tau, 2)
    ((('c', 'b'),), 0.33)
    """
    pairs = list(combinations(measured, 2))
    wrong, tied = [], 0
    for one, other in pairs:
        ahead = predicted[one] - predicted[other]
        if abs(ahead) < 1e-9:
            tied += 1
        elif ahead * (measured[one] - measured[other]) < 0:
            wrong.append((one, other) if ahead < 0 else (other, one))
    return OrderOfPairs(len(pairs), tuple(wrong), tied)


def warnings(expected: Mapping[Configuration, RoundTimes]) -> Iterator[str]:
    """Sentences on what makes a comparison doubtful, and for which configurations."""
    crowded = [e for e in expected if e.runs[0].local and e.runs[0].nodes > cores()]
    if crowded:
        most = max(each.runs[0].nodes for each in crowded)
        yield (
            f"up to {most} nodes share the {cores()} processors of this machine, so they wait for "
            f"one another as they would not on machines of their own: {_named(crowded)}"
        )
    for each, pace in expected.items():
        wanted, found = pace.phases["compute"], each.measured.phases["compute"]
        if abs(found - wanted) > STEP_OFF * wanted:
            yield (
                f"{each.name}: clients computed for {found * 1e3:.0f} ms a round, but the "
                f"experiment says {wanted * 1e3:.0f}, as if it was measured alone: --steps run "
                f"takes step times from the run"
            )
        sent = each.measured.bytes / pace.bytes - 1
        if abs(sent) > BYTES_OFF:
            yield (
                f"{each.name}: the deployment's bytes differ from the simulation's by "
                f"{sent * 100:+.0f} %, so the rules of {each.scheme} are not the same on both sides"
            )


def _named(found: Sequence[Configuration]) -> str:
    return ", ".join(each.name for each in found)


@dataclass(frozen=True)
class FidelityRow:
    """One configuration, deployed and simulated. Times are seconds per round."""

    name: str
    scheme: str
    runs: int
    spread: float  # of its repetitions, relative to their median
    measured: RoundTimes
    plain: RoundTimes  # simulated with the experiment's own costs
    held_out: float | None  # seconds, with overheads that were fitted to the others

    @property
    def error(self) -> float:
        """The relative error of the simulation without fitted overheads."""
        return self.plain.seconds / self.measured.seconds - 1

    @property
    def fitted_error(self) -> float | None:
        return None if self.held_out is None else self.held_out / self.measured.seconds - 1

    @property
    def rest(self) -> float:
        """The time of a round outside its phases, deployed minus simulated: about zero unless
        rounds overlap."""
        deployed, simulated = (
            each.seconds - sum(each.phases.values()) for each in (self.measured, self.plain)
        )
        return deployed - simulated


@dataclass(frozen=True)
class FidelityTable:
    """All configurations, how they rank, and the overheads of deployment."""

    rows: tuple[FidelityRow, ...]
    plain: OrderOfPairs
    fitted: OrderOfPairs | None
    fit: Fit | None
    warnings: tuple[str, ...]

    @property
    def errors(self) -> list[float]:
        return [abs(row.error) for row in self.rows]

    @property
    def held_out_errors(self) -> list[float]:
        found = (row.fitted_error for row in self.rows)
        return [abs(error) for error in found if error is not None]

    def by_scheme(self) -> dict[str, dict[str, float]]:
        """Mean seconds per round that the simulation misses, by scheme and phase."""
        found: dict[str, dict[str, float]] = {}
        for scheme in dict.fromkeys(row.scheme for row in self.rows):
            rows = [row for row in self.rows if row.scheme == scheme]
            missed = {
                phase: fmean(row.measured.phases[phase] - row.plain.phases[phase] for row in rows)
                for phase in PHASES
            }
            found[scheme] = {**missed, "rest": fmean(row.rest for row in rows)}
        return found

    def document(self) -> dict[str, Any]:
        """The same for JSON."""
        fit = self.fit
        return {
            "configurations": [
                {
                    "name": row.name,
                    "scheme": row.scheme,
                    "runs": row.runs,
                    "spread": row.spread,
                    "seconds": row.measured.seconds,
                    "phases": dict(row.measured.phases),
                    "simulated_seconds": row.plain.seconds,
                    "simulated_phases": dict(row.plain.phases),
                    "bytes": row.measured.bytes,
                    "simulated_bytes": row.plain.bytes,
                    "held_out_seconds": row.held_out,
                }
                for row in self.rows
            ],
            "tau": self.plain.tau,
            "discordant": self.plain.discordant,
            "held_out_tau": None if self.fitted is None else self.fitted.tau,
            "held_out_discordant": None if self.fitted is None else self.fitted.discordant,
            "fit": None if fit is None else {"latency": fit.keys(), "held_out": fit.folds},
            "warnings": list(self.warnings),
        }


def compare(runs: Sequence[DeployedRun], steps_of_run: bool = False) -> FidelityTable:
    """Compare deployed runs with simulations that use the experiments' or the runs' step times."""
    found = configurations(runs)
    prices, rows, expected = (
        dict[str, Cost](),
        list[FidelityRow](),
        dict[Configuration, RoundTimes](),
    )
    for each in found:
        cost, pace = each.decisions.cost, each.predicted()
        if steps_of_run and pace.phases["compute"] > 0:
            factor = each.measured.phases["compute"] / pace.phases["compute"]
            cost = replace(cost, step_seconds=cost.step_seconds * factor)
            pace = each.predicted(cost)
        prices[each.name], expected[each] = cost, pace
    made = fit(found, prices)
    for each in found:
        held = None if made is None else made.held_out[each.name]
        rows.append(
            FidelityRow(
                each.name,
                each.scheme,
                len(each.runs),
                each.spread,
                each.measured,
                expected[each],
                held,
            )
        )
    measured = {row.name: row.measured.seconds for row in rows}
    plain = ranking(measured, {row.name: row.plain.seconds for row in rows})
    fitted = None if made is None else ranking(measured, made.held_out)
    return FidelityTable(tuple(rows), plain, fitted, made, tuple(warnings(expected)))


def markdown(found: FidelityTable) -> str:
    """The comparison as a table and a few sentences for a document."""
    lines = [
        "| configuration | runs | deployed, ms | apart | simulated | error | held out | error |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in found.rows:
        cells = [row.name, str(row.runs), f"{row.measured.seconds * 1e3:.0f}"]
        cells += [f"{row.spread * 100:.1f} %", f"{row.plain.seconds * 1e3:.0f}"]
        cells += [f"{row.error * 100:+.1f} %"]
        if row.held_out is not None and row.fitted_error is not None:
            cells += [f"{row.held_out * 1e3:.0f}", f"{row.fitted_error * 100:+.1f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"* {text}" for text in summary(found))]
    return "\n".join(lines) + "\n"


def summary(found: FidelityTable) -> Iterator[str]:
    """How good the predictions are, and which pairs they get wrong."""
    parts = [("as simulated", found.plain, found.errors)]
    if found.fitted is not None:
        parts.append(("held out", found.fitted, found.held_out_errors))
    for name, order, errors in parts:
        tau = f"Kendall tau {order.tau:.3f} over {order.pairs} pairs, " if order.pairs else ""
        yield (
            f"{name}: {tau}median error {median(errors) * 100:.1f} %, worst "
            f"{max(errors) * 100:.1f} %"
        )
        for faster, slower in order.discordant:
            yield f"{name}, discordant: {faster} is not faster than {slower}"
    if found.fit is not None:
        for n, fold in enumerate(found.fit.folds):
            yield f"held out together, {n + 1}: {', '.join(fold)}"
