"""Turns curves into verdicts, and verdicts into the small file that is kept."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdfeel.core.errors import DataError
from sdfeel.core.run_files import write_atomic
from sdfeel.figures.curves import Axis, Curve, read
from sdfeel.figures.figure import Claim, ClaimView, Figure, Scale
from sdfeel.figures.verdicts import State, Verdict

DIGITS = 4  # kept of each number


@dataclass(frozen=True)
class Judged:
    """A claim, the axis it was judged on, and the verdict."""

    claim: Claim
    axis: Axis
    verdict: Verdict

    @property
    def prices(self) -> str:
        """The price list, where time matters."""
        return self.axis if self.claim.timed else ""


def curves(figure: Figure, scale: Scale, seeds: int, data: Path | None = None) -> dict[str, Curve]:
    """The curves of a figure whose runs are in the cache."""
    lines = figure.lines(figure.setting(scale))
    return {line.label: read(line, range(seeds), data) for line in lines}


def judge(figure: Figure, scale: Scale, found: dict[str, Curve]) -> list[Judged]:
    """Every claim on every axis that it is about."""
    setting = figure.setting(scale)
    return [
        Judged(claim, axis, _judge(claim, ClaimView(setting, found, axis)))
        for claim in figure.claims
        for axis in claim.axes
    ]


def _judge(claim: Claim, seen: ClaimView) -> Verdict:
    verdict = claim.judge(seen)
    mute = seen.setting.scale == "quick" and claim.beyond_quick
    return replace(verdict, state="cannot judge") if mute else verdict


def record(
    figure: Figure, scale: Scale, seeds: int, found: dict[str, Curve], judged: Sequence[Judged]
) -> dict[str, Any]:
    """Everything that is kept of a figure."""
    return {
        "figure": figure.name,
        "scale": scale,
        "seeds": seeds if found else 0,
        "setting": told(figure, scale) if found else "calculated, nothing is trained",
        "lines": {label: _summary(curve) for label, curve in found.items()},
        "claims": [
            {
                "id": each.claim.id,
                "prices": each.prices,
                "verdict": each.verdict.state,
                "effect": _short(each.verdict.effect),
                "error": _short(each.verdict.error),
                "unit": each.verdict.unit,
                "seeds": each.verdict.seeds,
                "alike": each.verdict.alike,
                "numbers": {name: _short(value) for name, value in each.verdict.numbers.items()},
            }
            for each in judged
        ],
    }


def told(figure: Figure, scale: Scale) -> str:
    """What a figure's lines are trained on, for people."""
    setting = figure.setting(scale)
    found = sorted({line.trained.training.learning_rate for line in figure.lines(setting)})
    rates = f"rate {found[0]:g}" if len(found) == 1 else f"rates {found[0]:g} to {found[-1]:g}"
    return f"{setting.note}, learning {rates}"


def _summary(curve: Curve) -> dict[str, Any]:
    return {
        "iterations": _short(curve.end("iterations")),
        "seconds A": _short(curve.end("A")),
        "seconds E": _short(curve.end("E")),
        "accuracy": [_short(value) for value in curve.last("accuracy")],
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


def save(directory: Path, document: dict[str, Any]) -> Path:
    """Write a figure's record."""
    file: Path = directory / document["scale"] / f"{document['figure']}.json"
    write_atomic(file, (json.dumps(document, indent=1) + "\n").encode())
    return file


def load(directory: Path, scale: Scale, name: str) -> dict[str, Any] | None:
    """A figure's record; None if there is none."""
    file = directory / scale / f"{name}.json"
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
    "cannot judge": "cannot judge",
}


CLEAR = 2.0  # standard errors: a closer verdict may flip with another compiler


@dataclass(frozen=True)
class Flip:
    """A claim whose verdict has changed."""

    figure: str
    claim: str
    prices: str
    kept: str
    now: str
    clear: bool  # it was so clear that noise does not explain it

    def __str__(self) -> str:
        where = f"{self.figure}, claim {self.claim}"
        where += f" at prices {self.prices}" if self.prices else ""
        near = "" if self.clear else " (it was close)"
        return f"{where}: {self.kept!r} became {self.now!r}{near}"


def flips(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[Flip]:
    """Where two records of the same figure at the same scale disagree."""
    today = {(each["id"], each["prices"]): each["verdict"] for each in now["claims"]}
    found = []
    for each in kept["claims"]:
        verdict = today.get((each["id"], each["prices"]), "gone")
        if verdict != each["verdict"]:
            where = (now["figure"], each["id"], each["prices"])
            found.append(Flip(*where, each["verdict"], verdict, is_clear(each)))
    return found


def is_clear(claim: Mapping[str, Any]) -> bool:
    """Is a kept verdict more than noise away from the next?"""
    effect, error = claim["effect"], claim["error"] or 0.0
    if effect is None:
        return False
    return isinstance(effect, str) or abs(effect) >= CLEAR * error
