"""Every verdict of the earlier rule next to today's, with the reason for each change."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.judging import load

Row = Mapping[str, str]  # of results/earlier.csv
NOT_YET, NOT_ANY_MORE = "not computed yet", "not judged any more"
HEAD = """# What changed when the rule did

[All figures](../reproduce.md)

Earlier verdicts compared means with their pooled standard error, over three seeds. That rule was
unsound: "at least" held with all seeds against it, "as good as" held with no seed near, "later"
held because one seed never arrived, and a constant difference between all pairs was "not decided".
Races were cut by iterations, so that lines ended at different times, and price list E charged for a
pass over the data but trained one batch. `results/earlier.csv` has all earlier verdicts; those at
full scale are below, with the effect and its error or interval, in the unit of the claim.

| figure | claim | reading | earlier | now | why |
|---|---|---|---|---|---|
"""
GONE = {
    "4a-pass": "reading E trains a pass in every figure now: [4a](4a.md)",
    "E": "the figure has reading A only now; the old price list E trained a batch and charged for "
    "a pass",
}
PASSES = "a pass is trained now, not only charged, at the printed rate"
ROUNDS = "12 rounds or more instead of 3, at three values of H, by three statistics"
RACE = "lines end at the same time, 50 s; paired differences of eight seeds"
AGREED = "all seeds agreed already: paired differences see it, pooled errors did not"
LOOSE = "a margin and an interval now; the earlier rule held unless it was refuted"
SPLIT = {
    "11a.2": "then about 0.1 and 1 together; now about 0.1 alone, and 11a.3 is about 1",
    "5.2": "then about FedAvg and FEEL together; now about FedAvg alone, and 5.2b is about FEEL",
}
PAIRED = "paired differences with an interval, five or eight seeds"
BOUNDS = ("4.4b", "8.2", "8.3", "11b.1", "11b.3", "D3", "R3", "K1", "K2", "L1", "L2", "M1")


def changes(results: Path) -> str:
    """The page."""
    rows = []
    with (results / "earlier.csv").open(encoding="utf-8", newline="") as file:
        for each in csv.DictReader(file):
            if each["scale"] == "full":
                now = found(results, each)
                cells = (each["figure"], each["claim"], each["prices"], earlier(each))
                why = reason(each, now)
                said = NOT_ANY_MORE if why in GONE.values() else told(now)
                rows.append(f"| {' | '.join((*cells, said, why))} |\n")
    return HEAD + "".join(rows)


def found(results: Path, each: Row) -> list[dict[str, Any]]:
    """Today's verdicts on what a row of the earlier ones was about."""
    record = load(results, "full", each["figure"])
    return [
        verdict
        for verdict in (record["claims"] if record else ())
        if each["prices"] in ("", verdict["reading"])
        and (verdict["id"] == each["claim"] or verdict["id"].startswith(f"{each['claim']}-"))
    ]


def earlier(each: Row) -> str:
    """An earlier verdict, with its effect where there was one."""
    if not each["effect"] or not float(each["error"]):
        return each["verdict"]
    return f"{each['verdict']}, {float(each['effect']):.3g} ± {float(each['error']):.2g}"


def told(now: list[dict[str, Any]]) -> str:
    """Today's verdicts, with what tells them apart where there are several."""
    if not now:
        return NOT_YET
    several = len(now) > 1
    return "; ".join(f"{_name(each, now) if several else ''}{_size(each)}" for each in now)


def _name(each: dict[str, Any], now: list[dict[str, Any]]) -> str:
    where = f"H = {each['id'].split('-')[1]}" if "-" in each["id"] else each["reading"]
    return f"{where}: " if len(now) > 1 else ""


def _size(each: dict[str, Any]) -> str:
    low, high = each["low"], each["high"]
    if not isinstance(low, float | int) or not isinstance(high, float | int) or low == high:
        return str(each["verdict"])
    return f"{each['verdict']}, {each['effect']:.3g} [{low:.2g}, {high:.2g}]"


def reason(each: Row, now: list[dict[str, Any]]) -> str:
    """Why today's verdict differs from the earlier one."""
    figure = FIGURES.get(each["figure"])
    if figure is None:
        return GONE[each["figure"]]
    if each["prices"] and each["prices"] not in figure.readings:
        return GONE[each["prices"]]
    if not now:
        return ""
    if {verdict["verdict"] for verdict in now} == {each["verdict"]}:
        return "unchanged"
    claim = next(c for c in figure.claims if c.id == now[0]["id"])
    unanimous = each["verdict"] == "not decided" and each["alike"] == each["seeds"] != "0"
    if each["claim"] in SPLIT:
        return SPLIT[each["claim"]]
    rules = (
        (each["claim"].startswith("10a"), ROUNDS),
        (each["verdict"] == "report only", "judged now, by a size fixed beforehand"),
        (each["prices"] == "E", PASSES),
        (claim.timed and figure.name[:2] in ("4a", "5a"), RACE),
        (unanimous, AGREED),
        (each["claim"] in BOUNDS, LOOSE),
    )
    return next((why for applies, why in rules if applies), PAIRED)
