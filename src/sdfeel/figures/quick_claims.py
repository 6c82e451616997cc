"""Which claims quick scale may judge: a rule that does not look at where the scales differ.

The full scale's seeds are halved. Quick scale may judge a claim if it reaches a verdict, and the
first half shows an effect on the same side of the margin. Whether that was right is then tested
on the second half, which the rule has not seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdfeel.figures import kept_curves
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.curves import Curve, Curves
from sdfeel.figures.figure import Claim, ClaimView, Figure
from sdfeel.figures.settings import Reading
from sdfeel.figures.verdicts import Verdict

LEAST = 4  # seeds at full scale: two for the rule, two for its test


@dataclass(frozen=True)
class Compared:
    """A claim at both scales."""

    figure: str
    claim: str
    reading: Reading
    quick: Verdict
    first: Verdict  # of the seeds that the rule sees
    second: Verdict  # of those that test it

    @property
    def may(self) -> bool:
        """May quick scale judge it?"""
        decided = self.quick.state in ("holds", "does not hold")
        return decided and side(self.quick) == side(self.first) != 0

    @property
    def confirmed(self) -> bool:
        """Do the seeds that the rule has not seen agree?"""
        return self.may and side(self.second) == side(self.quick)


def side(verdict: Verdict) -> int:
    """On which side of its margin an effect lies; seeds decide where only signs are known."""
    if verdict.agree != verdict.against:
        return 1 if verdict.agree > verdict.against else -1
    return 0


def compared(results: Path) -> list[Compared]:
    """All claims of which there are curves at both scales."""
    found = []
    for figure in FIGURES.values():
        if "quick" not in figure.scales or "full" not in figure.scales:
            continue
        quick, full = (kept_curves.load(results, scale, figure) for scale in ("quick", "full"))
        if quick is None or full is None:
            continue
        small, large = quick.curves(figure, "quick"), full.curves(figure, "full")
        for reading in figure.readings:
            if reading in small and len(full.seeds(figure, "full", reading)) >= LEAST:
                found += [
                    _compared(figure, claim, reading, small[reading], large[reading])
                    for claim in figure.claims
                ]
    return [each for each in found if each.quick.state != "report only" and each.quick.seeds]


def _compared(
    figure: Figure, claim: Claim, reading: Reading, small: Curves, large: Curves
) -> Compared:
    seeds = min(len(curve.runs) for curve in large.values())
    half = seeds // 2
    views = [
        ClaimView(figure.setting("quick", reading), small, claim.axis),
        ClaimView(figure.setting("full", reading), part(large, range(half)), claim.axis),
        ClaimView(figure.setting("full", reading), part(large, range(half, seeds)), claim.axis),
    ]
    return Compared(figure.name, claim.id, reading, *(claim.judge(view) for view in views))


def part(curves: Curves, seeds: Sequence[int]) -> Curves:
    """The same curves with some of their runs."""
    return {
        label: Curve(label, tuple(curve.runs[seed] for seed in seeds))
        for label, curve in curves.items()
    }
