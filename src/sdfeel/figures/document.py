"""Writes docs/reproduce.md from the kept verdicts: `python -m sdfeel.figures.document`."""

import json
from pathlib import Path
from textwrap import fill
from typing import Any

from sdfeel.figures import page_texts
from sdfeel.figures.agreement import pairs, table
from sdfeel.figures.catalogue import FIGURES
from sdfeel.figures.figure import Claim, Figure
from sdfeel.figures.hours import FILE, SEEDS
from sdfeel.figures.judging import load
from sdfeel.figures.settings import PRICES, Scale
from sdfeel.figures.verdicts import ENOUGH

RESULTS, DOCUMENT = Path("results"), Path("docs/reproduce.md")
SHOWN: tuple[Scale, ...] = ("full", "reduced", "quick")


def document(results: Path) -> str:
    """The whole page."""
    prices = (f"  * **{name}**: {text}.\n" for name, text in PRICES.items())
    parts = [page_texts.HEAD, *prices, page_texts.SCALES]
    parts += ["\n## All verdicts\n\n", _overview(results), _agreement(results)]
    told: set[str] = set()
    for figure in FIGURES.values():
        parts.append(_section(figure, results, told))
    parts.append(_cifar(results))
    return "".join(parts)


def _overview(results: Path) -> str:
    rows = [f"| figure | claim | {' | '.join(SHOWN)} |\n", "|---|---|---|---|---|\n"]
    for figure in FIGURES.values():
        kept = {scale: _kept(results, scale, figure) for scale in SHOWN}
        for claim in figure.claims:
            cells = (_cell(kept[scale], claim) for scale in SHOWN)
            rows.append(f"| {figure.name} | {claim.id} | {' | '.join(cells)} |\n")
    return "".join(rows) + page_texts.OVERVIEW


def _agreement(results: Path) -> str:
    parts = []
    asked: dict[Scale, str] = {"full": page_texts.AGREEMENT, "reduced": page_texts.AGREEMENT_CIFAR}
    for scale, text in asked.items():
        found = list(pairs(results, scale))
        counts = {
            "pairs": len(found),
            "same": sum(pair.same for pair in found),
            "mute": sum(pair.mute for pair in found),
            "open": sum(pair.open for pair in found),
            "wrong": sum(pair.contradicts for pair in found),
        }
        parts += [text.format(**counts), table(found, scale)] if found else []
    return "".join(parts)


def _kept(results: Path, scale: Scale, figure: Figure) -> dict[str, list[dict[str, Any]]]:
    """What is kept of a figure at a scale, by claim."""
    found = load(results, scale, figure.name)
    if found is None and not figure.data:  # what is calculated is the same at every scale
        found = load(results, "quick", figure.name)
    by_claim: dict[str, list[dict[str, Any]]] = {}
    for each in found["claims"] if found is not None else ():
        by_claim.setdefault(each["id"], []).append(each)
    return by_claim


def _cell(kept: dict[str, list[dict[str, Any]]], claim: Claim) -> str:
    found = kept.get(claim.id, [])
    if not found:
        return "-"
    states = [each["verdict"] for each in found]
    if len(set(states)) == 1:
        return _loud(states[0])
    return "; ".join(f"{each['prices']}: {_loud(each['verdict'])}" for each in found)


def _loud(state: str) -> str:
    return f"**{state}**" if state == "does not hold" else state


def _section(figure: Figure, results: Path, told: set[str]) -> str:
    """One figure; `told` are the explanations that came before and need not come again."""
    lines = [f"\n## {figure.name}: {figure.title}\n\n", _paragraph(figure.caption)]
    shown: tuple[Scale, ...] = SHOWN if figure.data else ("quick",)
    for scale in shown:
        found = load(results, scale, figure.name)
        if found is not None and found["lines"]:
            text = f"* {scale}: {found['setting']}; {found['seeds']} seeds. {_ends(found)}"
            lines += ["\n", _paragraph(text, "  ")]
    for claim in figure.claims:
        lines += ["\n", _paragraph(f"**{claim.id}** {claim.sentence}"), "\n"]
        kept = [(s, each) for s in shown for each in _kept(results, s, figure).get(claim.id, ())]
        for scale, each in kept:
            text = f"* {_heading(scale, figure, each)}: {_verdict(each)}"
            lines.append(_paragraph(text, "  "))
        open_ones = {each["verdict"] for _, each in kept} & {"does not hold", "not decided"}
        lines += _told_once(claim.note, "", told)
        if open_ones:
            lines += _told_once(claim.otherwise, "Where it does not hold or is open: ", told)
    return "".join(lines)


def _told_once(text: str, before: str, told: set[str]) -> list[str]:
    if not text or text in told:
        return []
    told.add(text)
    return ["\n", _paragraph(before + text)]


def _paragraph(text: str, indent: str = "") -> str:
    return fill(text, 100, subsequent_indent=indent, break_long_words=False) + "\n"


def _heading(scale: str, figure: Figure, each: dict[str, Any]) -> str:
    scale = scale if figure.data else "calculated"
    return f"{scale}, prices {each['prices']}" if each["prices"] else scale


def _ends(found: dict[str, Any]) -> str:
    """Where every line ended."""
    ends: dict[str, list[str]] = {}
    for label, line in found["lines"].items():
        accuracy = [value for value in line["accuracy"] if value is not None]
        mean = f"{100 * sum(accuracy) / len(accuracy):.1f} %" if accuracy else "none"
        gone = f" ({line['diverged']} diverged)" if line["diverged"] else ""
        ends.setdefault(f"{line['iterations']:,.0f}", []).append(f"{label} {mean}{gone}")
    return " ".join(
        f"Accuracy after {iterations} iterations: {'; '.join(lines)}."
        for iterations, lines in ends.items()
    )


def _verdict(each: dict[str, Any]) -> str:
    said = _loud(each["verdict"])
    if each["effect"] is not None:
        said += f", effect {_number(each['effect'])} {each['unit']}".rstrip()
        if each["error"]:
            said += f" (error {_number(each['error'])}; {each['alike']} of {each['seeds']} seeds)"
        elif 0 < each["seeds"] < ENOUGH:
            said += f" ({each['alike']} of {each['seeds']} seeds; {ENOUGH} are needed)"
    if each["numbers"]:
        told = ", ".join(f"{name} {_number(value)}" for name, value in each["numbers"].items())
        said += f" [{told}]"
    return said


def _number(value: float | str | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cifar(results: Path) -> str:
    """What all of CIFAR-10 would take."""
    file = results / FILE.name
    if not file.is_file():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    rate, rows = found["samples_per_second"], []
    for name, examples in found["examples"].items():
        hours = [
            f"{SEEDS * examples[scale] / rate / 3600:,.1f}" if scale in examples else "-"
            for scale in ("reduced", "full")
        ]
        command = f"`sdfeel figure {name} --scale full --data DIRECTORY`" if name in FIGURES else ""
        rows.append(f"| {name} | {command} | {' | '.join(hours)} |\n")
    return page_texts.CIFAR.format(rate=rate, iteration=500 / rate, rows="".join(rows))


def main() -> None:
    """Write the page anew."""
    DOCUMENT.write_text(document(RESULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
