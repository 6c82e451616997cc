"""Do the cheaper scales agree with the more expensive ones? A table for docs/reproduce.md."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.judging import load
from sdfeel.figures.settings import Scale

OPPOSITE = {"holds", "does not hold"}


@dataclass(frozen=True)
class Pair:
    """One claim, under one price list, at two scales."""

    figure: str
    claim: str
    prices: str
    dear: str  # the verdict at the more expensive scale
    quick: str
    why: str  # quick scale cannot judge it

    @property
    def same(self) -> bool:
        return self.dear == self.quick

    @property
    def mute(self) -> bool:
        """Quick scale gives numbers and no verdict."""
        return self.quick == "cannot judge"

    @property
    def contradicts(self) -> bool:
        return {self.dear, self.quick} == OPPOSITE

    @property
    def open(self) -> bool:
        """Decided at only one of the scales."""
        return not (self.same or self.mute or self.contradicts)


def pairs(results: Path, scale: Scale) -> Iterator[Pair]:
    """All verdicts that exist both at `scale` and at quick scale."""
    for figure in FIGURES.values():
        dear, quick = load(results, scale, figure.name), load(results, "quick", figure.name)
        if dear is None or quick is None or not figure.data:
            continue
        verdicts = {(each["id"], each["prices"]): each["verdict"] for each in quick["claims"]}
        reasons = {claim.id: claim.beyond_quick for claim in figure.claims}
        for each in dear["claims"]:
            claim, prices = each["id"], each["prices"]
            found = (each["verdict"], verdicts[claim, prices])
            yield Pair(figure.name, claim, prices, *found, reasons[claim])


def table(found: list[Pair], scale: Scale) -> str:
    """What differs between the scales, and why."""
    rows = [f"| figure | claim | {scale} | quick | why |\n", "|---|---|---|---|---|\n"]
    for pair in found:
        if not pair.same:
            claim = f"{pair.claim}, prices {pair.prices}" if pair.prices else pair.claim
            rows.append(f"| {pair.figure} | {claim} | {pair.dear} | {pair.quick} | {pair.why} |\n")
    return "".join(rows)
