"""How many verdicts remain if all of them are to be right together, not each on its own.

Holm's method: the p-values are put in order, and the k-th smallest of n must be below 5 % / (n - k
+ 1). The chance that even one decided verdict is wrong is then 5 %, however they depend on one
another.
"""

from collections.abc import Mapping
from math import isnan
from pathlib import Path

from sdfeel.figures import kept_curves
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.judging import Judged, judge
from sdfeel.figures.summary import paragraph
from sdfeel.figures.verdicts import CHANCE, ENOUGH

TEXT = (
    "\nEach verdict is judged on its own at 95 %, so a few of many are wrong by luck. If all {all} "
    "at full scale are to be right together, at 95 % (Holm), {stay} of the {decided} decided ones "
    "are clear enough{lost}.\n"
)


def together(results: Path) -> str:
    """What Holm's method leaves of the verdicts at full scale."""
    found = _judged(results)
    chances = {name: both_sides(each) for name, each in found.items()}
    decided = [name for name, each in found.items() if each.verdict.state != "not decided"]
    stay = holm(chances)
    lost = [name for name in decided if name not in stay]
    told = f"; the others are {', '.join(lost)}" if lost else ""
    if not found:
        return ""
    text = TEXT.format(
        all=len(found), stay=len(decided) - len(lost), decided=len(decided), lost=told
    )
    return "\n" + paragraph(text.strip())


def holm(chances: Mapping[str, float], level: float = 2 * CHANCE) -> set[str]:
    """The names that remain decided.

    >>> sorted(holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}))
    ['a', 'd']
    """
    found: set[str] = set()
    for place, name in enumerate(sorted(chances, key=lambda each: chances[each])):
        if chances[name] > level / (len(chances) - place):
            break
        found.add(name)
    return found


def both_sides(each: Judged) -> float:
    """The p-value of a verdict whichever way it went; 1 with too few seeds.

    Where only signs are known, a verdict has half of its p-value, to be compared with CHANCE.
    """
    verdict = each.verdict
    if verdict.seeds < ENOUGH:
        return 1.0
    sides = 4 if isnan(verdict.low) else 2
    return min(1.0, sides * min(verdict.p_for, verdict.p_against))


def _judged(results: Path) -> dict[str, Judged]:
    """All verdicts that rest on seeds, by names that tell apart figures with the same claims."""
    found: dict[str, Judged] = {}
    for figure in FIGURES.values():
        kept = kept_curves.load(results, "full", figure) if "full" in figure.scales else None
        for each in judge(figure, "full", kept.curves(figure, "full")) if kept is not None else ():
            name = f"{each.claim.id} {each.reading}"
            name = f"{name} ({figure.name})" if name in found else name
            if each.verdict.seeds and each.verdict.state != "report only":
                found[name] = each
    return found
