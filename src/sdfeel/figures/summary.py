"""The first screen of docs/reproduce.md: what holds, what does not, what depends on the reading."""

import csv
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

from sdfeel.figures import kept_curves
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.figure import Claim, Figure
from sdfeel.figures.fixed_texts import FIRST, HEADLINES, PLACES
from sdfeel.figures.judging import load
from sdfeel.figures.settings import READINGS, Reading, Scale

ORDER: tuple[Scale, ...] = ("full", "small", "quick")
WORDS = {
    "holds": "holds",
    "does not hold": "**no**",
    "not decided": "open",
    "report only": "numbers",
}
TOLD = {"holds": "holds", "does not hold": "fails", "not decided": "open", "report only": "numbers"}
TITLES = {
    "holds": "Holds",
    "does not hold": "Fails",
    "depends": "Depends",
    "not decided": "Open",
    "digits": "Only on digits so far",
    "ours": "Our [tiers] beat",
    "none": "Not computed",
}
PICTURED = ("holds", "does not hold", "depends", "not decided", "digits", "ours")
Verdicts = dict[str, dict[Reading | None, dict[str, Any]]]  # by claim and reading


@dataclass(frozen=True)
class ShownClaim:
    """A claim's verdicts at the costliest scale that has any."""

    figure: Figure
    claim: Claim
    scale: Scale | None
    verdicts: Mapping[Reading | None, dict[str, Any]]

    @property
    def kind(self) -> str:
        """The group in which the first screen shows it."""
        states = {each["verdict"] for each in self.verdicts.values()} - {"report only"}
        if not states:
            return "none"
        if self.scale == "quick" and self.figure.data:
            return "digits"
        if self.claim.id.startswith("S"):
            return "ours"
        if len(states) == 1:
            return str(states.pop())
        return "depends" if {"holds", "does not hold"} <= states else "not decided"

    def told(self, known: Collection[Reading | None]) -> str:
        """What is claimed, where it is judged, and what a reader must know besides its group;
        `known` are the readings that any claim has at full scale."""
        by = {reading: each["verdict"] for reading, each in self.verdicts.items() if reading}
        marks = ["small model"] if self.scale == "small" else []
        if (
            self.kind == "depends"
        ):  # two readings: where it does not hold in one, it does in the other
            marks += [f"{r} only" for r, state in by.items() if state == "holds"]
        elif len(set(by.values())) > 1:  # what is open needs no word where its group says so
            dull = self.kind if self.kind == "not decided" else None
            marks += [f"{r}: {TOLD[state]}" for r, state in by.items() if state != dull]
        elif self.kind == "digits" or (self.kind == "ours" and "holds" not in by.values()):
            marks += {TOLD[state] for state in by.values()}
        elif len(by) == 1 < min(len(self.figure.readings), len(known)):
            marks += [f"under {reading}" for reading in by]
        told = f" ({', '.join(marks)})" if marks else ""
        return f"[{HEADLINES[self.claim.id]}][{self.claim.id}]{told}"


def first_screen(results: Path) -> str:
    """A paragraph for each kind of verdict, and a picture of each."""
    shown = [_best(results, *figure_and_claim(claim)) for claim in HEADLINES]
    groups = {kind: [each for each in shown if each.kind == kind] for kind in TITLES}
    known = {reading for each in shown if each.scale == "full" for reading in each.verdicts}
    intro = paragraph(f"{FIRST} {_counts(results)}")
    return "\n".join((intro, bullets(groups, known), _pictures(results, groups)))


def bullets(groups: Mapping[str, Sequence[ShownClaim]], known: Collection[Reading | None]) -> str:
    """A paragraph for each kind of verdict."""
    return "".join(
        paragraph(
            f"* **{_title(kind, known)}:** {'; '.join(each.told(known) for each in those)}.", "  "
        )
        for kind in TITLES
        if (those := groups[kind])
    )


def places() -> str:
    """Where the links of the first screen lead, as Markdown has it apart from the text."""
    claims = (f"[{claim}]: reproduce/{figure_and_claim(claim)[0].name}.md\n" for claim in HEADLINES)
    return PLACES + "".join(claims)


def _counts(results: Path) -> str:
    """How many of the paper's claims hold on MNIST, for each reading, and on CIFAR-10."""
    known = [(r, states) for r in READINGS if (states := _states(results, "mnist", "full", r))]
    if not known:
        return "**Nothing of this has been computed on MNIST so far.**"
    (first, states), *others = known
    told = f"{_numbered(states)} under {first}"
    told += "".join(f"; {_counted(states)} under {reading}" for reading, states in others)
    alone = "" if others else " (nothing else is computed)"
    text = f"**Of the paper's claims on MNIST, {told}**{alone}"
    if states := _states(results, "cifar10", "small", "A"):
        text += f"; on CIFAR-10 ([a small model]), {_counted(states)}"
    return f"{text}."


def _states(results: Path, data: str, scale: Scale, reading: Reading) -> Counter[str]:
    """How many claims of the paper have which verdict on a data set; a claim that several figures
    judge (at another rate, say) counts once, as its first figure says."""
    with (results / "claims.csv").open(encoding="utf-8", newline="") as file:
        listed = {
            name for row in csv.DictReader(file) for name in row["claims"].split()
        }  # not ours
    found: dict[str, str] = {}
    for figure in FIGURES.values():
        for claim, verdicts in verdicts_of(results, scale, figure.name).items():
            if figure.data == data and claim in listed and reading in verdicts:
                found.setdefault(claim, verdicts[reading]["verdict"])
    return Counter(found.values())


def _numbered(states: Mapping[str, int]) -> str:
    """How many of each verdict, as a sentence has it."""
    words = {"holds": ("holds", "hold"), "does not hold": ("fails", "fail")}
    words["not decided"] = ("is open", "are open")
    found = [f"{states[s]} {one if states[s] == 1 else many}" for s, (one, many) in words.items()]
    return f"{', '.join(found[:-1])} and {found[-1]}"


def _counted(states: Mapping[str, int]) -> str:
    """The same numbers in the same order, where the words have just been said."""
    return "{}, {} and {}".format(*(states[s] for s in ("holds", "does not hold", "not decided")))


def _title(kind: str, known: Collection[Reading | None]) -> str:
    """A group's title, which names the reading where there is only one."""
    alone = len(known) == 1 and kind in ("holds", "does not hold", "not decided")
    return f"{TITLES[kind]} under {next(iter(known))}" if alone else TITLES[kind]


def _pictures(results: Path, groups: Mapping[str, list[ShownClaim]]) -> str:
    """One of each kind, no figure twice."""
    chosen: dict[str, tuple[str, Figure]] = {}
    for kind in PICTURED:
        drawn = [each for each in groups[kind] if drawn_at(results, each.figure) == each.scale]
        fresh = next((e for e in drawn if e.figure.name not in chosen), None)
        if fresh is not None:
            told = f"{TITLES[kind]}: {HEADLINES[fresh.claim.id]}"
            chosen[fresh.figure.name] = (told, fresh.figure)
    if not chosen:
        return ""
    heads = " | ".join(told for told, _ in chosen.values())
    cells = " | ".join(
        f"[![{figure.title}](reproduce/{name}.svg)](reproduce/{name}.md)"
        for name, (_, figure) in chosen.items()
    )
    return f"| {heads} |\n{'|---' * len(chosen)}|\n| {cells} |\n"


def figure_and_claim(claim: str) -> tuple[Figure, Claim]:
    return next((f, c) for f in FIGURES.values() for c in f.claims if c.id == claim)


def _best(results: Path, figure: Figure, claim: Claim) -> ShownClaim:
    """The verdicts of the costliest scale that has any."""
    for scale in ORDER:
        found = verdicts_of(results, scale, figure.name).get(claim.id, {})
        if found:
            return ShownClaim(figure, claim, scale, found)
    return ShownClaim(figure, claim, None, {})


@cache
def record_of(results: Path, scale: Scale, name: str) -> dict[str, Any] | None:
    """A figure's record; read once."""
    return load(results, scale, name)


def verdicts_of(results: Path, scale: Scale, name: str) -> Verdicts:
    """A figure's verdicts at a scale."""
    found: Verdicts = {}
    record = record_of(results, scale, name)
    for each in record["claims"] if record is not None else ():
        found.setdefault(each["id"], {})[each["reading"]] = each
    return found


def drawn_at(results: Path, figure: Figure) -> Scale | None:
    """The costliest scale of which there are curves."""
    return next((s for s in ORDER if kept_curves.file_of(results, s, figure.name).is_file()), None)


def paragraph(text: str, indent: str = "") -> str:
    """The same text in lines of at most 100 characters."""
    return (
        fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        + "\n"
    )
