"""Tables for papers: means over seeds, differences seed by seed, and costs to the target."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from sdfeel.core.errors import InputError, of_kind, unknown
from sdfeel.core.events import Evaluated, Finished, Round
from sdfeel.core.run_files import write_atomic
from sdfeel.report import curves, drawing
from sdfeel.report.history import History, check_target, clock_of, default_target
from sdfeel.report.intervals import (
    LEVEL,
    MARGIN,
    Difference,
    Estimate,
    Observed,
    difference,
    estimate,
)
from sdfeel.report.lines import Line, lines_of
from sdfeel.report.units import BYTES, JOULES, TIMES, Unit, goal, number, unit_for
from sdfeel.run.bounds import NAMES as ESTIMATES

Format = Literal["markdown", "latex", "csv"]
ENDINGS: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
PERCENT = (Unit("%", 0.01, 0.0),)
PLAIN = (Unit("", 1.0, 0.0),)


@dataclass(frozen=True)
class Quantity:
    """Something that every run has a value of."""

    key: str
    title: str
    ladder: Sequence[Unit]
    read: Callable[[History], Observed | None]
    best: Callable[[Iterable[float]], float] = min
    shown: bool = True  # in tables to be read; the CSV has everything

    def of(self, line: Line) -> dict[int, Observed]:
        """The values of a line by seed, as far as they are there and finite."""
        found = {seed: self.read(run) for seed, run in line.runs.items()}
        return {seed: each for seed, each in found.items() if each and isfinite(each.value)}


def export(
    *runs: Any,
    format: Format | None = None,
    out: str | Path | None = None,
    target: float | None = None,
    against: str | None = None,
    picture: str | Path | None = None,
    width: str = "column",
) -> str:
    """A table of runs for a paper, as text; `out` also writes it (.tex, .csv or .md).

    `runs` are directories of runs, or what `compare` and `sweep` return. Every line shows means
    over its seeds with 95 % intervals, and what reaching the `target` accuracy cost; then follow
    the differences from the line `against` (default: the first), seed by seed. `picture` is a file
    for the learning curves (.pdf, .svg or .png), as wide as a column of a paper, or, by `width`,
    as a page or a slide.
    """
    for name, file in (("out", out), ("picture", picture)):
        if file is not None:
            of_kind(name, file, (str, PathLike), "a file")
    if against is not None:
        of_kind("against", against, str, "the name of a line")
    kind = format or (_of_ending(Path(out)) if out is not None else "markdown")
    if kind not in get_args(Format):
        raise unknown("format", str(kind), get_args(Format))
    check_target(target)
    drawing.inches(width)  # which refuses unknown names
    lines = lines_of(runs)
    means = [line.history for line in lines]
    chosen = default_target(means) if target is None else target  # as `compare` chooses it
    text = written(lines, kind, chosen, against)
    if out is not None:
        write_atomic(Path(out), text.encode())
    if picture is not None:
        small = drawing.inches(width) == drawing.WIDTHS["column"]
        drawn = curves.column(means, chosen) if small else curves.curves(means, chosen, width=width)
        drawing.save(drawn, picture, width)
    return text


def written(
    lines: Sequence[Line], kind: Format, target: float | None, against: str | None = None
) -> str:
    """A table of lines for a paper."""
    return _WRITERS[kind](Comparison.of(lines, target, against))


def _of_ending(path: Path) -> Format:
    if path.suffix not in ENDINGS:
        raise InputError(
            f"the ending of '{path.name}' belongs to no known format: end it in "
            f"{', '.join(ENDINGS)}, or give format="
        )
    return ENDINGS[path.suffix]


def quantities(lines: Sequence[Line], target: float | None) -> list[Quantity]:
    """What is worth comparing in these runs."""
    runs = [run for line in lines for run in line.runs.values()]
    classes = any(e.accuracy is not None for run in runs for e in run.evaluations)
    found = [Quantity("loss", "training loss", PLAIN, _last(lambda e: e.loss))]
    tested = Quantity("test_loss", "test loss", PLAIN, _last(lambda e: e.test_loss))
    if classes:
        accuracy = Quantity("accuracy", "accuracy", PERCENT, _last(lambda e: e.accuracy), max)
        found = [accuracy, *found]
    else:
        found = [tested, *found]
    costs = (
        ("seconds", "time", TIMES),
        ("bytes", "data", BYTES),
        ("joules", "modelled energy", JOULES),
    )
    for key, name, ladder in costs:
        if target is not None and classes:
            reached = _to_target(target, key)
            title = f"{name} to {goal(target)}"
            found.append(Quantity(f"{key}_to_target", title, ladder, reached))
    totals = target is None or not classes
    found += [Quantity(k, f"total {n}", ladder, _at_end(k), shown=totals) for k, n, ladder in costs]
    found.append(Quantity("iterations", "iterations", PLAIN, _at_end("iterations"), shown=False))
    names = dict.fromkeys(n for run in runs for e in run.evaluations for n in e.metrics)
    own = [name for name in names if name not in ESTIMATES]
    found += [Quantity(n, n, PLAIN, _last(_metric(n)), shown=False) for n in own]
    return found if not classes else [*found, Quantity(**{**vars(tested), "shown": False})]


def _last(read: Callable[[Evaluated], float | None]) -> Callable[[History], Observed | None]:
    def found(history: History) -> Observed | None:
        value = read(history.last) if history.last is not None else None
        return None if value is None else Observed(value)

    return found


def _metric(name: str) -> Callable[[Evaluated], float | None]:
    return lambda event: event.metrics.get(name)


def _at_end(key: str) -> Callable[[History], Observed | None]:
    def found(history: History) -> Observed | None:
        end = _cost(history, history.end, key)
        return None if end is None else Observed(end)

    return found


def _to_target(target: float, key: str) -> Callable[[History], Observed | None]:
    def found(history: History) -> Observed | None:
        reached = history.reach(target)
        spent = _cost(history, history.end if reached is None else reached, key)
        return None if spent is None else Observed(spent, censored=reached is None)

    return found


def _cost(history: History, event: Round | Evaluated | Finished | None, key: str) -> float | None:
    """What was spent until an event; None if there is no event, or it was not measured."""
    known = event is not None and (key != "joules" or history.energy_known)
    return float(getattr(event, key)) if known else None


@dataclass(frozen=True)
class Comparison:
    """Lines, the quantities that are compared, and the line that they are compared with."""

    lines: Sequence[Line]
    quantities: Sequence[Quantity]
    base: Line
    target: float | None

    @classmethod
    def of(cls, lines: Sequence[Line], target: float | None, against: str | None) -> "Comparison":
        known = {line.label: line for line in lines}
        if against is not None and against not in known:
            raise unknown("line", against, known)
        base = known[against] if against is not None else lines[0]
        return cls(lines, quantities(lines, target), base, target)

    @property
    def shown(self) -> list[Quantity]:
        return [each for each in self.quantities if each.shown]

    @property
    def units(self) -> list[tuple[Quantity, Unit]]:
        """What is shown, each with the unit that suits the means of all lines."""
        found = []
        for quantity in self.shown:
            own = [estimate(quantity.of(line).values()) for line in self.lines]
            largest = max((abs(each.mean) for each in own if each is not None), default=0.0)
            found.append((quantity, unit_for(largest, quantity.ladder)))
        return found

    @property
    def others(self) -> list[Line]:
        return [line for line in self.lines if line is not self.base]

    @property
    def paired(self) -> bool:
        return any(line.runs.keys() & self.base.runs.keys() for line in self.others)

    @property
    def notes(self) -> list[str]:
        """What a reader must know to read the tables."""
        clock = clock_of(run for line in self.lines for run in line.runs.values())
        found = [
            f"Means over seeds ± {MARGIN}; the best mean of a column is bold; times are {clock}."
        ]
        outcomes = [o for q in self.shown for line in self.lines for o in q.of(line).values()]
        if any(outcome.censored for outcome in outcomes):
            found.append(
                "≥: only k of n seeds reached the target; a seed that did not counts with what it "
                "had cost when it ended, so the mean is at least this."
            )
        if any(0 < len(q.of(line)) < len(line.runs) for q in self.shown for line in self.lines):
            found.append("k of n without ≥: only k of n seeds have a finite value.")
        return found

    @property
    def paired_notes(self) -> list[str]:
        """What a reader must know to read the differences."""
        found = [
            f"Differences from {self.base.label}, each seed compared with itself: mean ± {MARGIN}."
        ]
        every = [
            difference(q.of(line), q.of(self.base)) for q in self.shown for line in self.others
        ]
        if any(each.estimate is None or each.estimate.seeds < each.pairs for each in every):
            found.append("k of n: only pairs in which both runs reached the target are compared.")
        return found


@dataclass(frozen=True)
class PaperCell:
    """A value as text, before it becomes Markdown or LaTeX."""

    mean: str
    margin: str = ""
    bound: bool = False
    count: str = ""  # how many seeds it rests on, if not on all
    bold: bool = False


def means(table: Comparison) -> tuple[list[str], list[tuple[str, list[PaperCell | None]]]]:
    """Column titles, and a row of cells for every line."""
    columns = []
    for quantity, unit in table.units:
        own = [estimate(quantity.of(line).values()) for line in table.lines]
        runs = [len(line.runs) for line in table.lines]
        sure = [
            each.mean
            for each, all_seeds in zip(own, runs, strict=True)
            if each is not None and each.certain and each.seeds == all_seeds
        ]
        rivals = len(set(sure)) > 1 or 0 < len(sure) < len(own)
        best = quantity.best(sure) if rivals else None
        columns.append([_cell(each, unit, best, n) for each, n in zip(own, runs, strict=True)])
    rows = [(line.label, [own[n] for own in columns]) for n, line in enumerate(table.lines)]
    return [_titled(quantity, unit.name) for quantity, unit in table.units], rows


def differences(table: Comparison) -> tuple[list[str], list[tuple[str, list[PaperCell | None]]]]:
    """Column titles, and a row of differences from the base for every other line."""
    rows = []
    for line in table.others:
        gaps = [(difference(q.of(line), q.of(table.base)), unit) for q, unit in table.units]
        rows.append((line.label, [_signed(gap, unit) for gap, unit in gaps]))
    titles = [_titled(q, "points" if unit.name == "%" else unit.name) for q, unit in table.units]
    return titles, rows


def _titled(quantity: Quantity, unit: str) -> str:
    return f"{quantity.title} ({unit})" if unit else quantity.title


def _cell(found: Estimate | None, unit: Unit, best: float | None, runs: int) -> PaperCell | None:
    if found is None:
        return None
    if not found.certain:
        reached = f"{found.seeds - found.censored} of {found.seeds}"
        return PaperCell(number(found.mean / unit.size), bound=True, count=reached)
    mean, margin = rounded(found.mean / unit.size, found.margin, unit.size)
    if found.seeds < runs:  # the others have no finite value: these are the survivors
        return PaperCell(mean, margin, count=f"{found.seeds} of {runs}")
    as_good = best is not None and f"{found.mean:.4g}" == f"{best:.4g}"
    return PaperCell(mean, margin, bold=as_good)


def _signed(found: Difference, unit: Unit) -> PaperCell | None:
    if found.estimate is None:
        return None
    own = found.estimate
    mean, margin = rounded(own.mean / unit.size, own.margin, unit.size)
    sign = "" if mean.startswith("-") or own.mean == 0 else "+"
    few = f"{own.seeds} of {found.pairs}" if own.seeds < found.pairs else ""
    return PaperCell(sign + mean, margin, count=few)


def rounded(mean: float, margin: float | None, size: float = 1.0) -> tuple[str, str]:
    """A mean to the digits that its margin leaves; the margin, divided by `size`, to two.

    >>> rounded(91.2345, 0.4321), rounded(12.3456, 12.3), rounded(0.5, None), rounded(3.0, 0.0)
    (('91.23', '0.43'), ('12', '12'), ('0.500', ''), ('3.00', '0'))
    >>> rounded(8.25e28, 5.7e28), rounded(2.345e-7, 1.2e-9)
    (('8.2e+28', '5.7e+28'), ('2.345e-07', '1.2e-09'))
    """
    if margin is None:
        return number(mean), ""
    scaled = margin / size
    if scaled == 0:
        return number(mean), "0"
    largest = max(abs(mean), scaled)
    if not 1e-3 <= largest < 1e6:  # as `number` writes them, but to the digits of the margin
        digits = max(0, 1 + floor(log10(largest)) - floor(log10(scaled)))
        return f"{mean:.{min(digits, 16)}e}", f"{scaled:.1e}"
    digits = max(0, 1 - floor(log10(scaled)))
    return f"{mean:.{digits}f}", f"{scaled:.{digits}f}"


def markdown(table: Comparison) -> str:
    """Two tables with their notes."""
    parts = [_markdown(*means(table)), *table.notes]
    if table.paired:
        parts += [_markdown(*differences(table)), *table.paired_notes]
    return "\n\n".join(parts) + "\n"


def _markdown(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[PaperCell | None]]]) -> str:
    head = f"| run | {' | '.join(titles)} |\n| --- |{' ---: |' * len(titles)}"
    body = [
        f"| {label.replace('|', chr(92) + '|')} | {' | '.join(_plain(cell) for cell in cells)} |"
        for label, cells in rows
    ]
    return "\n".join([head, *body])


def _plain(cell: PaperCell | None) -> str:
    if cell is None:
        return "-"
    text = ("≥ " if cell.bound else "") + cell.mean + (f" ± {cell.margin}" if cell.margin else "")
    text = f"**{text}**" if cell.bold else text
    return f"{text} ({cell.count})" if cell.count else text


def latex(table: Comparison) -> str:
    """Two booktabs tables; the document needs `\\usepackage{booktabs}`."""
    parts = [_latex(*means(table), " ".join(table.notes), "sdfeel-means")]
    if table.paired:
        told = " ".join(table.paired_notes)
        parts.append(_latex(*differences(table), told, "sdfeel-differences"))
    return "% needs \\usepackage{booktabs}\n" + "\n".join(parts)


def _latex(
    titles: Sequence[str],
    rows: Sequence[tuple[str, Sequence[PaperCell | None]]],
    caption: str,
    label: str,
) -> str:
    def row(first: str, rest: Iterable[str]) -> str:
        return f"    {' & '.join([first, *rest])} \\\\"

    lines = [
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{escaped(caption)}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{@{{}}l{'r' * len(titles)}@{{}}}}",
        "    \\toprule",
        *(row("run" if last else "", own) for last, own in _heads(titles)),
        "    \\midrule",
        *(row(escaped(name), map(_mathematical, cells)) for name, cells in rows),
        "    \\bottomrule",
        "  \\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _heads(titles: Sequence[str]) -> list[tuple[bool, list[str]]]:
    """Titles in as many lines as fit a page, the last with the units."""
    split = [
        title.replace(" to ", "\nto ", 1).replace(" (", "\n(", 1).split("\n") for title in titles
    ]
    height = max(len(parts) for parts in split)
    full = [[""] * (height - len(parts)) + parts for parts in split]
    return [(n == height - 1, [escaped(parts[n]) for parts in full]) for n in range(height)]


def _mathematical(cell: PaperCell | None) -> str:
    if cell is None:
        return "--"
    bound = "\\ge " if cell.bound else ""
    mean, margin = map(_power, (cell.mean, cell.margin))
    text = f"${bound}{mean}{f' {chr(92)}pm {margin}' if margin else ''}$"
    text = f"\\textbf{{\\boldmath{text}}}" if cell.bold else text
    return f"{text} ({cell.count})" if cell.count else text


def _power(text: str) -> str:
    r"""
    >>> _power("8.2e+28"), _power("-2.3e-07"), _power("0.5")
    ('8.2 \\cdot 10^{28}', '-2.3 \\cdot 10^{-7}', '0.5')
    """
    digits, exponent, power = text.partition("e")
    return f"{digits} \\cdot 10^{{{int(power)}}}" if exponent else text


_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "≥": "$\\ge$",
}


def escaped(text: str) -> str:
    """A text with LaTeX's special characters escaped.

    >>> print(escaped("tau1=5_a 90 %"))
    tau1=5\\_a 90 \\%
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


COLUMNS: tuple[str, ...] = ("kind", "run", "against", "quantity", "mean", "low", "high", "level")
COLUMNS += ("seeds", "censored", "above", "below")


def comma_separated(table: Comparison) -> str:
    """A row for every line and quantity, in seconds, bytes, joules and shares."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in table.lines:
        for quantity in table.quantities:
            found = estimate(quantity.of(line).values())
            if found is not None:
                record = {"kind": "mean", "run": line.label, "quantity": quantity.key}
                writer.writerow({**record, **_numbers(found)})
    for line in table.others:
        for quantity in table.quantities:
            gap = difference(quantity.of(line), quantity.of(table.base))
            if gap.pairs:
                record = {"kind": "difference", "run": line.label, "against": table.base.label}
                own = _numbers(gap.estimate) if gap.estimate is not None else {"seeds": 0}
                whole = gap.estimate.seeds if gap.estimate is not None else 0
                counts = {"censored": gap.pairs - whole, "above": gap.above, "below": gap.below}
                writer.writerow({**record, "quantity": quantity.key, **own, **counts})
    return text.getvalue()


def _numbers(found: Estimate) -> dict[str, Any]:
    """An estimate's columns; a censored mean has only a lower bound."""
    if not found.certain:
        known: dict[str, Any] = {"low": found.mean}
    elif found.margin is None:
        known = {"mean": found.mean}
    else:
        low, high = found.mean - found.margin, found.mean + found.margin
        known = {"mean": found.mean, "low": low, "high": high, "level": LEVEL}
    return {**known, "seeds": found.seeds, "censored": found.censored}


_WRITERS: dict[Format, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
