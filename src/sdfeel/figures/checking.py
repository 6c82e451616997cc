"""Today's verdicts beside those that are kept: what flipped is a regression, or a finding."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLEAR = 2.0  # standard errors: what is closer may flip with a compiler


@dataclass(frozen=True)
class Flip:
    """A claim that is judged otherwise than it was."""

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
    """What two records of the same figure at the same scale do not agree on."""
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
