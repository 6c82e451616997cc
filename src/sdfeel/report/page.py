"""One HTML file with everything about some runs: it opens anywhere and needs no network.

What it says is gathered here; how it looks is in `page.html` and `page.css`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from sdfeel.core.run_files import write_atomic
from sdfeel.report import bound, bound_picture, confusion, personal_models
from sdfeel.report.compare import (
    TableEntry,
    cells,
    columns,
    comparison_records,
    notes,
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
from sdfeel.report.history import History, clock_of
from sdfeel.report.styles import styles_of
from sdfeel.report.units import count, duration, goal, percent

WORDS = ("scheme", "engine", "end")  # columns of words, aligned to the left


@dataclass(frozen=True)
class Drawn:
    """A chart, and what a screen reader says in its place."""

    svg: Markup
    spoken: str


@dataclass(frozen=True)
class Share:
    """A part of a run's time, as a bar."""

    share: float
    seconds: float

    @property
    def percent(self) -> str:
        return percent(self.share)

    @property
    def duration(self) -> str:
        return duration(self.seconds)


@dataclass(frozen=True)
class PageTable:
    """Rows whose first cell is a name, and a sentence below them."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str | TableEntry | Share]]
    note: str = ""
    chart: Drawn | None = None


def page(
    title: str,
    histories: Sequence[History],
    target: float | None,
    experiment: str,
    notes: Sequence[str] = (),
) -> str:
    """A whole HTML document; all user text is escaped."""
    return _template().render(
        title=title,
        words=WORDS,
        facts=_facts(histories, target),
        notes=notes,
        comparison=_comparison(histories, target),
        legend=_legend(histories, target),
        charts=[_chart(histories, *pair, target) for pair in _pairs(histories)],
        bound=_bound(histories),
        phases=_phases(histories),
        confusions=_confusions(histories),
        own=_own_models(histories),
        warnings=_warnings(histories),
        setups=_setups(histories),
        experiment=experiment,
    )


def write_page(path: Path | str, html: str) -> None:
    """Write the page to `path` atomically."""
    # Half a surrogate pair, as in odd file names, must not cost the whole report.
    write_atomic(Path(path), html.encode("utf-8", errors="replace"))


@cache
def _template() -> Template:
    here = FileSystemLoader(Path(__file__).parent)
    made = Environment(
        loader=here,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return made.get_template("page.html")


def _facts(histories: Sequence[History], target: float | None) -> list[str]:
    facts = [f"{len(histories)} run{'s' * (len(histories) != 1)}"]
    records = comparison_records(histories, target)
    scored = [(r["accuracy"], r["label"]) for r in records if r["accuracy"] is not None]
    if scored:
        best, label = max(scored)
        facts.append(f"best final accuracy {percent(best)} ({label})")
    if target is not None and scored:
        facts.append(f"target {goal(target)}")
    return facts


def _comparison(histories: Sequence[History], target: float | None) -> PageTable:
    records = comparison_records(histories, target)
    layout = columns(records, target)
    rows = cells(records, layout)
    titles = [column.title.replace("-\n", "").replace("\n", " ") for column in layout]
    note = notes(histories, rows, "★")
    return PageTable(titles, rows, f"{note[0].upper()}{note[1:]}.")


def _pairs(histories: Sequence[History]) -> list[tuple[CostAxis, LearningAxis]]:
    pairs = [(cost, measure) for measure in measures_of(histories) for cost in COSTS]
    return pairs + [(TIME, own) for own in (SPREAD, *map(own_measure, own_names(histories)))]


def _chart(
    histories: Sequence[History], cost: CostAxis, measure: LearningAxis, target: float | None
) -> Drawn:
    spoken = f"{measure.name} against {named(cost, histories)}, {len(histories)} lines"
    return Drawn(Markup(svg(panel(histories, cost, measure, target))), spoken)


def _legend(histories: Sequence[History], target: float | None) -> list[dict[str, str]]:
    labels = [each.label for each in histories]
    lines: list[tuple[int | None, str]] = list(zip(styles_of(histories), labels, strict=True))
    if target is not None and _pairs(histories)[0][1].share:
        lines.append((None, f"target {goal(target)}"))
    return [{"svg": Markup(svg(swatch(style))), "label": label} for style, label in lines]


def _bound(histories: Sequence[History]) -> PageTable | None:
    """What the theorem promises, next to what was measured, where a run has estimates."""
    if not bound.estimated(histories):
        return None
    note = (
        "Theorem 1 bounds the mean of the squared gradients so far. L, sigma² and kappa² are the "
        "largest seen so far; the least possible loss is taken to be 0."
    )
    if beyond := bound.beyond(histories):
        note += (
            f" The learning rate of {', '.join(beyond)} is larger than any for which the "
            f"theorem holds: it promises nothing there, and the bound is for the proven rate."
        )
    spoken = "squared gradients, their mean and its bound against local iterations"
    chart = Drawn(Markup(svg(bound_picture.picture(histories))), spoken)
    return PageTable(bound.TITLES, bound.rows(histories), note, chart)


def _confusions(histories: Sequence[History]) -> list[Drawn]:
    """A picture for each line of which classes its final model confuses."""
    found = [(each.label, each.last.confusion) for each in histories if each.last is not None]
    return [
        Drawn(Markup(svg(confusion.picture(label, counts))), confusion.spoken(label, counts))
        for label, counts in found
        if counts
    ]


def _own_models(histories: Sequence[History]) -> list[Drawn]:
    """A picture for each line of how well each client's own model does in the end."""
    found = [(each.label, each.last.personal) for each in histories if each.last is not None]
    return [
        Drawn(
            Markup(svg(personal_models.picture(label, each))), personal_models.spoken(label, each)
        )
        for label, each in found
        if each
    ]


def _phases(histories: Sequence[History]) -> PageTable | None:
    spent = [(history.label, phase_seconds(history)) for history in histories]
    names = list(dict.fromkeys(name for _, seconds in spent for name in seconds))
    rows: list[Sequence[str | TableEntry | Share]] = []
    for label, seconds in spent:
        if total := sum(seconds.values()):
            parts = [seconds.get(name, 0.0) for name in names]
            rows.append([label, *(Share(part / total, part) for part in parts)])
    note = f"Shares of the rounds' {clock_of(histories)} time, summed over all rounds."
    return PageTable(["run", *names], rows, note) if rows else None


def _warnings(histories: Sequence[History]) -> dict[str, list[str]]:
    """Each warning once, with the runs that it concerns."""
    concerned: dict[str, list[str]] = {}
    for history in histories:
        for message in history.warnings:
            concerned.setdefault(message, []).append(history.label)
    return concerned


def _setups(histories: Sequence[History]) -> PageTable:
    titles = ["run", "scheme", "clients", "servers", "zeta", "parameters", "engine", "seed", "end"]
    return PageTable(titles, [_setup(history) for history in histories])


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
