"""One HTML file with everything about some runs: opens anywhere, asks no network for anything."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from sdfeel.core.run_files import write_atomic
from sdfeel.report import estimates, style
from sdfeel.report.compare import (
    TableEntry,
    cells,
    columns,
    comparison_records,
    phase_seconds,
)
from sdfeel.report.curves import (
    COSTS,
    SPREAD,
    TIME,
    CostAxis,
    LearningAxis,
    measures_of,
    named,
    own_measure,
    own_names,
    panel,
    swatch,
)
from sdfeel.report.drawing import svg
from sdfeel.report.estimates import picture
from sdfeel.report.history import History, clock_of
from sdfeel.report.units import count, duration, goal, percent

WORDS = ("scheme", "engine", "end")  # columns that read from the left


def page(
    title: str,
    histories: Sequence[History],
    target: float | None,
    experiment: str,
    notes: Sequence[str] = (),
) -> str:
    """A whole HTML document; all that people wrote is escaped."""
    body = "\n".join(
        part
        for part in (
            f"<h1>{escape(title)}</h1>\n{_facts(histories, target)}",
            _listed("Notes", notes),
            _comparison(histories, target),
            _charts(histories, target),
            _bound(histories),
            _phases(histories),
            _warnings(histories),
            _setups(histories),
            _experiment(experiment),
        )
        if part
    )
    return style.DOCUMENT.format(title=escape(title), css=style.CSS, body=body)


def write_page(path: Path | str, html: str) -> None:
    """Put the page at `path` in one step."""
    # Half a character pair, as odd file names contain, must not cost the whole report.
    write_atomic(Path(path), html.encode("utf-8", errors="replace"))


def _facts(histories: Sequence[History], target: float | None) -> str:
    facts = [f"{len(histories)} run{'s' * (len(histories) != 1)}"]
    records = comparison_records(histories, target)
    scored = [(r["accuracy"], r["label"]) for r in records if r["accuracy"] is not None]
    if scored:
        best, label = max(scored)
        facts.append(f"best final accuracy {percent(best)} ({escape(label)})")
    if target is not None and scored:
        facts.append(f"target {goal(target)}")
    return f'<p class="facts">{" · ".join(facts)}</p>'


def _listed(heading: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<section><h2>{heading}</h2><ul>{items}</ul></section>"


def _comparison(histories: Sequence[History], target: float | None) -> str:
    records = comparison_records(histories, target)
    layout = columns(records, target)
    rows = cells(records, layout)
    starred = any(cell.best for row in rows for cell in row)
    note = f"Times are {clock_of(histories)}." + (" ★ best of its column." if starred else "")
    titles = [column.title.replace("-\n", "").replace("\n", " ") for column in layout]
    table = _table("comparison of runs", titles, [[_html(cell) for cell in row] for row in rows])
    return f'<section><h2>Comparison</h2>{table}<p class="note">{note}</p></section>'


def _html(cell: TableEntry) -> str:
    return f"<strong>★ {escape(cell.text)}</strong>" if cell.best else escape(cell.text)


def _table(name: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in a box of its own that scrolls; `rows` are HTML already, the first cell a name."""
    sides = [' class="word"' if title in WORDS else "" for title in titles]
    head = "".join(
        f'<th scope="col"{side}>{escape(title)}</th>'
        for title, side in zip(titles, sides, strict=True)
    )
    body = "".join(f"<tr>{_cells(row, sides)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], sides: Sequence[str]) -> str:
    first = f'<th scope="row"><span class="name">{row[0]}</span></th>'
    others = zip(row[1:], sides[1:], strict=True)
    return first + "".join(f"<td{side}>{cell}</td>" for cell, side in others)


def _charts(histories: Sequence[History], target: float | None) -> str:
    pairs = [(cost, measure) for measure in measures_of(histories) for cost in COSTS]
    pairs += [(TIME, measure) for measure in (SPREAD, *map(own_measure, own_names(histories)))]
    drawn = "".join(_chart(histories, cost, measure, target) for cost, measure in pairs)
    legend = _legend(histories, target if pairs[0][1].share else None)
    return (
        f'<section><h2>Curves</h2><div class="card">{legend}'
        f'<div class="grid">{drawn}</div></div></section>'
    )


def _chart(
    histories: Sequence[History], cost: CostAxis, measure: LearningAxis, target: float | None
) -> str:
    spoken = f"{measure.name} against {named(cost, histories)}, {len(histories)} lines"
    drawn = svg(panel(histories, cost, measure, target))
    return f'<div class="chart" role="img" aria-label="{escape(spoken)}">{drawn}</div>'


def _legend(histories: Sequence[History], target: float | None) -> str:
    entries = [(index, history.label) for index, history in enumerate(histories)]
    lines: list[tuple[int | None, str]] = [*entries]
    if target is not None:
        lines.append((None, f"target {goal(target)}"))
    items = "".join(
        f'<li><span class="swatch" aria-hidden="true">{svg(swatch(index))}</span>'
        f"<span>{escape(label)}</span></li>"
        for index, label in lines
    )
    return f'<ul class="legend" aria-label="legend">{items}</ul>'


def _bound(histories: Sequence[History]) -> str:
    """What the theorem promises beside what was measured, where a run has estimates."""
    if not estimates.estimated(histories):
        return ""
    drawn = svg(picture(histories))
    spoken = "squared gradients, their mean and its bound against local iterations"
    rows = [[escape(text) for text in row] for row in estimates.rows(histories)]
    note = (
        "Theorem 1 bounds the mean of the squared gradients so far. L, sigma² and kappa² are the "
        "largest that were seen; the least possible loss is taken as 0."
    )
    if beyond := estimates.beyond(histories):
        note += (
            f" The learning rate of {escape(', '.join(beyond))} is larger than any for which the "
            f"theorem holds: nothing is promised for it, and the bound is for the proven rate."
        )
    return (
        f'<section><h2>The bound of Theorem 1</h2><div class="card">'
        f'<div class="chart" role="img" aria-label="{spoken}">{drawn}</div></div>'
        f'{_table("bound of each run", estimates.TITLES, rows)}<p class="note">{note}</p></section>'
    )


def _phases(histories: Sequence[History]) -> str:
    spent = [(history.label, phase_seconds(history)) for history in histories]
    names = list(dict.fromkeys(name for _, seconds in spent for name in seconds))
    rows = [
        [escape(label), *(_share(seconds.get(name, 0.0), sum(seconds.values())) for name in names)]
        for label, seconds in spent
        if sum(seconds.values())
    ]
    if not rows:
        return ""
    note = (
        f'<p class="note">Shares of the rounds\' {clock_of(histories)} time, summed over all '
        f"rounds.</p>"
    )
    table = _table("seconds in each phase", ["run", *names], rows)
    return f"<section><h2>Where the time goes</h2>{table}{note}</section>"


def _share(part: float, total: float) -> str:
    share = part / total
    return (
        f'<span class="bar" style="--share: {share:.4f}" aria-hidden="true"></span>'
        f'{percent(share)} <span class="note">{duration(part)}</span>'
    )


def _warnings(histories: Sequence[History]) -> str:
    """Each warning once, with the runs that it concerns."""
    concerned: dict[str, list[str]] = {}
    for history in histories:
        for message in history.warnings:
            concerned.setdefault(message, []).append(history.label)
    items = "".join(
        f'<li>{escape(message)} <span class="note">({escape(", ".join(labels))})</span></li>'
        for message, labels in concerned.items()
    )
    return f'<section class="warn"><h2>Warnings</h2><ul>{items}</ul></section>' if items else ""


def _setups(histories: Sequence[History]) -> str:
    titles = ["run", "scheme", "clients", "servers", "zeta", "parameters", "engine", "seed", "end"]
    rows = [[escape(text) for text in _setup(history)] for history in histories]
    return f"<section><h2>Runs</h2>{_table('setup of each run', titles, rows)}</section>"


def _setup(history: History) -> list[str]:
    end = history.finished.reason if history.finished else "not finished"
    begun = history.started
    if begun is None:
        return [history.label, history.scheme, *["-"] * 6, end]
    return [
        history.label,
        begun.scheme,
        count(begun.clients),
        count(begun.servers),
        f"{begun.zeta:.3f}",
        count(begun.parameters),
        begun.engine,
        str(begun.seed),
        end,
    ]


def _experiment(text: str) -> str:
    return (
        f"<section><details><summary>The experiment</summary><pre>{escape(text)}</pre>"
        f"</details></section>"
    )
