"""Turns curves into verdicts, and verdicts into the small file that is kept."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdfeel.core.errors import DataError
from sdfeel.core.run_files import write_atomic
from sdfeel.figures.curves import Curve, Curves
from sdfeel.figures.figure import Claim, ClaimView, Figure, Scale
from sdfeel.figures.settings import Reading
from sdfeel.figures.verdicts import State, Verdict

DIGITS = 4  # kept of each number


@dataclass(frozen=True)
class Judged:
    """A claim, the reading under which it was judged, and the verdict."""

    claim: Claim
    reading: Reading | None  # None: it is calculated
    verdict: Verdict


def judge(figure: Figure, scale: Scale, found: Mapping[Reading, Curves]) -> list[Judged]:
    """Every claim under every reading of which there are curves."""
    if not figure.data:
        view = ClaimView(figure.setting(scale), {})
        return [Judged(claim, None, claim.judge(view)) for claim in figure.claims]
    views = {
        (reading, timed): ClaimView(
            figure.setting(scale, reading), curves, "seconds" if timed else "iterations"
        )
        for reading, curves in found.items()
        for timed in (False, True)
    }
    return [
        Judged(claim, reading, claim.judge(views[reading, claim.timed]))
        for claim in figure.claims
        for reading in found
    ]


def record(figure: Figure, scale: Scale, found: Mapping[Reading, Curves]) -> dict[str, Any]:
    """Everything that is kept of a figure in addition to its curves."""
    return {
        "figure": figure.name,
        "scale": scale,
        "setting": told(figure, scale) if found else "calculated, nothing is trained",
        "seeds": {reading: seeds_of(curves) for reading, curves in found.items()},
        "lines": {
            reading: {label: _summary(curve) for label, curve in curves.items()}
            for reading, curves in found.items()
        },
        "claims": [_claim(each) for each in judge(figure, scale, found)],
    }


def seeds_of(curves: Curves) -> int:
    """How many seeds the curves have."""
    return min(len(curve.runs) for curve in curves.values())


def _claim(each: Judged) -> dict[str, Any]:
    verdict = each.verdict
    return {
        "id": each.claim.id,
        "reading": each.reading,
        "verdict": verdict.state,
        "effect": _short(verdict.effect),
        "low": _short(verdict.low),
        "high": _short(verdict.high),
        "margin": _short(verdict.margin),
        "unit": verdict.unit,
        "seeds": verdict.seeds,
        "for": verdict.agree,
        "against": verdict.against,
        "numbers": {name: _short(value) for name, value in verdict.numbers.items()},
    }


def told(figure: Figure, scale: Scale) -> str:
    """What a figure's lines are trained on, for people."""
    parts = []
    for reading in figure.readings:
        setting = figure.setting(scale, reading)
        found = sorted({line.trained.training.learning_rate for line in figure.lines(setting)})
        rates = f"rate {found[0]:g}" if len(found) == 1 else f"rates {found[0]:g} to {found[-1]:g}"
        parts.append(f"{reading}: learning {rates}")
    return f"{figure.setting(scale).note}; {', '.join(parts)}"


def _summary(curve: Curve) -> dict[str, Any]:
    return {
        "iterations": _short(curve.end("iterations")),
        "seconds": _short(curve.end("seconds")),
        "accuracy": [_short(max(value, 0.0)) for value in curve.last("accuracy")],  # 0: it diverged
        "loss": [_short(value) for value in curve.last("loss")],
        "diverged": curve.diverged,
    }


def _short(value: float) -> float | str | None:
    """A number as JSON writes it."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "never" if value > 0 else "-infinity"
    return float(f"{value:.{DIGITS}g}")


def save(results: Path, document: Mapping[str, Any]) -> Path:
    """Write a figure's record."""
    file: Path = results / document["scale"] / f"{document['figure']}.json"
    write_atomic(file, (json.dumps(document, indent=1) + "\n").encode())
    return file


def load(results: Path, scale: Scale, name: str) -> dict[str, Any] | None:
    """A figure's record; None if there is none."""
    file = results / scale / f"{name}.json"
    if not file.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is not a figure's record: {error}") from None
    return found


MARKS: dict[State, str] = {
    "holds": "holds",
    "does not hold": "does NOT hold",
    "not decided": "not decided",
    "report only": "(numbers only)",
}
ACCURACY, LOSS = 0.01, 0.05  # how far a line's final mean may be off: absolute, relative


@dataclass(frozen=True)
class Flip:
    """A claim whose verdict has changed."""

    figure: str
    claim: str
    reading: Reading | None
    kept: str
    now: str
    clear: bool  # it was so clear that noise does not explain it

    def __str__(self) -> str:
        where = f"{self.figure}, claim {self.claim}"
        where += f" under reading {self.reading}" if self.reading else ""
        near = "" if self.clear else " (it was close)"
        return f"{where}: {self.kept!r} became {self.now!r}{near}"


def flips(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[Flip]:
    """Where the verdicts of two records of the same figure at the same scale disagree."""
    today = {(each["id"], each["reading"]): each["verdict"] for each in now["claims"]}
    found = []
    for each in kept["claims"]:
        verdict = today.get((each["id"], each["reading"]), "gone")
        if verdict != each["verdict"]:
            where = (now["figure"], each["id"], each["reading"])
            found.append(Flip(*where, each["verdict"], verdict, is_clear(each)))
    return found


def shifts(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lines whose final numbers differ by more than other hardware or versions explain."""
    found = []
    for reading, lines in kept["lines"].items():
        for label, line in lines.items():
            other = now["lines"].get(reading, {}).get(label)
            if other is None:
                found.append(f"{now['figure']}: the line {label} is gone under reading {reading}")
                continue
            for measure, limit in (("accuracy", ACCURACY), ("loss", LOSS)):
                then, today = _mean(line[measure]), _mean(other[measure])
                room = limit if measure == "accuracy" else limit * abs(then)
                if not (abs(then - today) <= room or then == today):
                    found.append(
                        f"{now['figure']}, {label} under reading {reading}: the final {measure} "
                        f"was {then:.4g} and is {today:.4g}, off by more than {room:.2g}"
                    )
    return found


def _mean(values: Sequence[float | str | None]) -> float:
    numbers = [float(each) if isinstance(each, float | int) else math.inf for each in values]
    return sum(numbers) / len(numbers)


def is_clear(claim: Mapping[str, Any]) -> bool:
    """Is a kept verdict further from the next than a quarter of its interval?"""
    low, high, margin = claim["low"], claim["high"], claim["margin"] or 0.0
    if claim["verdict"] == "report only":
        return False
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return bool(claim["verdict"] != "not decided")
    room = (high - low) / 4
    return bool(low - margin > room or margin - high > room or low == high)
