"""Writes docs/reproduce.md and the pages that belong to it: `python -m sdfeel.figures.document`.

Everything comes from the kept curves and verdicts; nothing on these pages is typed in by hand but
the explanations.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdfeel.figures import effect_sizes, kept_curves
from sdfeel.figures.all_figures import FIGURES
from sdfeel.figures.figure import Claim, Figure
from sdfeel.figures.fixed_texts import (
    ALL,
    CHOSEN,
    DESIGN,
    HEAD,
    LINKS,
    OPEN,
    QUICK,
    READ,
    VERDICTS,
)
from sdfeel.figures.pictures import picture, well_named
from sdfeel.figures.quick_claims import compared
from sdfeel.figures.settings import READINGS, Reading, Scale
from sdfeel.figures.summary import (
    ORDER,
    WORDS,
    drawn_at,
    first_screen,
    paragraph,
    places,
    record_of,
    verdicts_of,
)
from sdfeel.figures.verdict_changes import changes
from sdfeel.figures.verdicts_together import together
from sdfeel.figures.wanted_runs import PLANNED, seeds_planned
from sdfeel.report import drawing

RESULTS, PAGE, PAGES = Path("results"), Path("docs/reproduce.md"), Path("docs/reproduce")
Column = tuple[Scale, Reading]
COLUMNS: tuple[Column, ...] = (
    ("full", "A"),
    ("full", "E"),
    ("small", "A"),
    ("quick", "A"),
    ("quick", "E"),
)


def documents(results: Path) -> dict[Path, str]:
    """All pages by their place."""
    found = {PAGE: page(results), PAGES / "changes.md": changes(results)}
    found[PAGES / "verdicts.md"] = VERDICTS + _table(results) + together(results)
    for figure in FIGURES.values():
        found[PAGES / f"{figure.name}.md"] = details(figure, results)
    return found


def page(results: Path) -> str:
    """The page that people read."""
    parts = [HEAD, first_screen(results), READ]
    parts += [f"* **{name}**: {text}.\n" for name, text in READINGS.items()]
    parts += [DESIGN, _sizes(), ALL, _open(results), _quick(results), CHOSEN, "\n", places()]
    return "".join(parts)


def _sizes() -> str:
    rows = ["| word | size | why |\n", "|---|---|---|\n"]
    rows += [f"| {e.word} | {e.size:g} {e.unit} | {e.reason} |\n" for e in effect_sizes.TABLE]
    return "".join(rows)


def _table(results: Path) -> str:
    heads = " | ".join(f"{scale} {reading}" for scale, reading in COLUMNS)
    rows = [f"| claim | | {heads} |\n", "|---|---|" + "---|" * len(COLUMNS) + "\n"]
    for figure in FIGURES.values():
        for claim in figure.claims:
            cells = " | ".join(_cell(results, column, figure, claim) for column in COLUMNS)
            name = f"[{figure.name}]({figure.name}.md)"
            rows.append(f"| {name} {claim.id} | {_short(claim.sentence)} | {cells} |\n")
    return "".join(rows)


def _short(sentence: str) -> str:
    return sentence if len(sentence) < 90 else sentence[:86].rsplit(" ", 1)[0] + " ..."


def _cell(results: Path, column: Column, figure: Figure, claim: Claim) -> str:
    scale, reading = column
    if not figure.data:
        found = verdicts_of(results, "quick", figure.name).get(claim.id, {})
        return WORDS[found[None]["verdict"]] if found and column == ("full", "A") else ""
    each = verdicts_of(results, scale, figure.name).get(claim.id, {}).get(reading)
    if each is None:
        return "-" if seeds_planned(figure.name, scale, reading) else ""
    return WORDS[each["verdict"]]


def _open(results: Path) -> str:
    """What the design asks for and is not there, and the command that computes it."""
    missing: dict[tuple[Scale, Reading, int, int], list[str]] = {}
    for (scale, reading), planned in PLANNED.items():
        for name, wanted in planned.items():
            kept = kept_curves.load(results, scale, FIGURES[name])
            have = len(kept.seeds(FIGURES[name], scale, reading)) if kept else 0
            if have < wanted:
                missing.setdefault((scale, reading, have, wanted), []).append(name)
    if not missing:
        return ""
    rows = ["| scale | reading | seeds | command |\n|---|---|---|---|\n"]
    for (scale, reading, have, wanted), names in missing.items():
        options = f"--scale {scale} --reading {reading} --seeds {wanted}"
        command = f"`sdfeel figure {','.join(names)} {options} --run --keep --data DIRECTORY`"
        rows.append(f"| {scale} | {reading} | {have} of {wanted} | {command} |\n")
    return OPEN + "".join(rows)


def _quick(results: Path) -> str:
    found = compared(results)
    may = [each for each in found if each.may]
    kept = sum(each.confirmed for each in may)
    told = QUICK.format(pairs=len(found), may=len(may), kept=kept)
    names = ", ".join(sorted({f"{each.claim} {each.reading}" for each in may}))
    if not found:
        return told
    return told + "\n" + paragraph(f"Quick scale may judge: {names or 'nothing yet'}.") + "\n"


def details(figure: Figure, results: Path) -> str:
    """One figure."""
    lines = [f"# {figure.name}: {figure.title}\n\n", paragraph(figure.caption), "\n"]
    lines.append(f"{LINKS}\n")
    if figure.picture is not None or drawn_at(results, figure) is not None:
        lines.append(f"\n![{figure.title}]({figure.name}.svg)\n")
    for scale in ORDER:
        record = record_of(results, scale, figure.name)
        if record is not None and record["lines"]:
            told = f"**{scale}**: {well_named(record['setting'])}."
            lines += ["\n", paragraph(told), "\n", _ends(record)]
            lines.append(_made(results, scale, figure))
    for claim in figure.claims:
        lines += [f"\n## {claim.id}\n\n", paragraph(claim.sentence), "\n"]
        kept = [
            (scale, reading, each)
            for scale in ORDER
            for reading, each in verdicts_of(results, scale, figure.name).get(claim.id, {}).items()
        ]
        for scale, reading, each in kept:
            where = "calculated" if reading is None else f"{scale}, reading {reading}"
            lines.append(paragraph(f"* {where}: {_verdict(each)}", "  "))
        if not kept:
            lines.append("* not computed with this rule yet\n")
        if claim.note:
            lines += ["\n", paragraph(claim.note)]
        if claim.otherwise and any(each["verdict"] != "holds" for *_, each in kept):
            lines += ["\n", paragraph(f"Where it does not hold or is open: {claim.otherwise}")]
    return "".join(lines)


def _ends(record: dict[str, Any]) -> str:
    """Where every line ended."""
    head = "| line | reading | iterations | seconds | accuracy | loss |\n"
    rows = [head, "|---|---|---|---|---|---|\n"]
    for reading, lines in record["lines"].items():
        for label, line in lines.items():
            size = f"{_number(line['iterations'])} | {_number(line['seconds'])}"
            rows.append(f"| {label} | {reading} | {size} | {_end(line)} |\n")
    return "".join(rows)


def _end(line: Mapping[str, Any]) -> str:
    """Accuracy and loss at the end: means over the runs that did not diverge.

    >>> _end({"diverged": 1, "accuracy": [0.9, 0.0, 0.8], "loss": [0.2, "never", 0.4]})
    '85.0 % (1 of 3 diverged) | 0.300'
    >>> _end({"diverged": 2, "accuracy": [0.0, 0.0], "loss": ["never", "never"]})
    'none (all diverged) | none'
    """
    lasting = [
        (accuracy, loss)
        for accuracy, loss in zip(line["accuracy"], line["loss"], strict=True)
        if isinstance(loss, float | int)
    ]
    if not lasting:
        return "none (all diverged) | none"
    accuracy, loss = (sum(each) / len(lasting) for each in zip(*lasting, strict=True))
    gone = f" ({line['diverged']} of {len(line['loss'])} diverged)" if line["diverged"] else ""
    return f"{100 * accuracy:.1f} %{gone} | {f'{loss:.3f}' if loss < 1e4 else f'{loss:.1e}'}"


def _made(results: Path, scale: Scale, figure: Figure) -> str:
    kept = kept_curves.load(results, scale, figure)
    if kept is None:
        return ""
    commits: dict[tuple[str, str], set[str]] = {}
    for each in kept.made():
        if each:
            by = f"sdfeel {each['versions']['sdfeel']}"
            where = f"torch {each['versions']['torch']}, {each['machine']['CPU']}"
            where += f" ({each['machine']['instruction set']}), engine {each['engine']}"
            changed = " with changes" if each["changed"] == "yes" else ""
            commits.setdefault((by, where), set()).add(each["commit"][:10] + changed)
    told = [
        f"{by} (commit{'s' if len(names) > 1 else ''} {', '.join(sorted(names))}), {where}"
        for (by, where), names in sorted(commits.items())
    ]
    return "\n" + paragraph(f"Made by {'; '.join(told)}.") if told else ""


def _verdict(each: dict[str, Any]) -> str:
    said = "**does not hold**" if each["verdict"] == "does not hold" else each["verdict"]
    if each["effect"] is not None:
        said += f", effect {_number(each['effect'])} {each['unit']}".rstrip()
        if each["low"] is not None and each["low"] != each["high"]:
            said += f" [{_number(each['low'])}, {_number(each['high'])}]"
        if each["margin"]:
            said += f", margin {_number(each['margin'])}"
    if each["seeds"]:
        said += f"; {each['for']} of {each['seeds']} seeds for it, {each['against']} against"
    if each["numbers"]:
        told = (f"{_named(name)}: {_number(value)}" for name, value in each["numbers"].items())
        said += f" ({'; '.join(told)})"
    return said


def _named(number: str) -> str:
    """A number of a record by a name that explains itself.

    >>> _named("SD-FEEL, there")
    'SD-FEEL, seeds that reach it'
    """
    return re.sub(r", there$", ", seeds that reach it", number)


def _number(value: float | str | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def draw(results: Path, folder: Path) -> None:
    """The pictures on the pages."""
    for figure in FIGURES.values():
        scale = drawn_at(results, figure) or "quick"
        kept = kept_curves.load(results, scale, figure) or kept_curves.KeptFigure()
        drawn = picture(figure, scale, kept.curves(figure, scale))
        if drawn is not None:
            file = folder / f"{figure.name}.svg"
            drawing.save(drawn, file)
            file.write_text(slim(file.read_text(encoding="utf-8")), encoding="utf-8")


def slim(svg: str) -> str:
    """The same picture in half the bytes: tenths of a pixel, one font, no indentation, no names.

    >>> slim('  <text style="font-family: A, sans-serif" y="1.23456"\\n  >0.25; x</text>')
    '<text style="font-family: sans-serif" y="1.2"\\n>0.25; x</text>'
    >>> slim('<g id="line2d_7">')
    '<g>'
    """
    svg = re.sub(r"<[^>]*>", lambda tag: _slim_tag(tag[0]), svg)
    return re.sub(r"^ +", "", svg, flags=re.MULTILINE)


def _slim_tag(tag: str) -> str:
    """What is written between tags is for people, and stays."""
    tag = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", tag)
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    return re.sub(r"\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", tag)


def main() -> None:
    """Rewrite the pages and redraw the pictures."""
    PAGES.mkdir(exist_ok=True)
    for place, text in documents(RESULTS).items():
        place.write_text(text, encoding="utf-8")
    draw(RESULTS, PAGES)


if __name__ == "__main__":
    main()
