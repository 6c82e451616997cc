"""Tables for the console. Nothing here imports matplotlib: the command line must start fast."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sdfeel.report.bound import estimated, final_bound
from sdfeel.report.compare import (
    TableEntry,
    cells,
    columns,
    comparison_records,
    narrow,
    notes,
    phase_seconds,
)
from sdfeel.report.history import History
from sdfeel.report.styles import PALETTE, TYPED, styles_of
from sdfeel.report.units import (
    NOT_MEASURED,
    amount,
    count,
    duration,
    goal,
    joules,
    modelled,
    number,
    percent,
)
from sdfeel.run.bounds import NAMES as ESTIMATES

__all__ = [
    "amount",
    "comparison",
    "comparison_records",
    "duration",
    "joules",
    "label_table",
    "shares",
    "summary",
]
Rows = list[tuple[str, str]]


def comparison(histories: Sequence[History], target: float | None) -> Table:
    """Runs side by side; the best of a column is bold and starred.

    Only costs of reaching the target are starred, no totals: a run is not good for training least.
    """
    records = comparison_records(histories, target)
    layout = narrow(records, columns(records, target))
    rows = cells(records, layout)
    # One space between columns, so that it fits an 80-column terminal.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, caption_justify="left")
    table.add_column(no_wrap=True)  # how the line looks in the picture
    for column in layout:
        table.add_column(
            Text(column.title),
            justify="right" if column.numeric else "left",
            no_wrap=column.numeric,
            overflow="ellipsis" if column.numeric else "fold",
            vertical="bottom",
        )
    for style, row in zip(styles_of(histories), rows, strict=True):
        table.add_row(_dash(style), *(_text(cell) for cell in row))
    table.caption = notes(histories, rows, "*")
    return table


def summary(history: History, target: float | None) -> Table:
    """One run in full, a fact per line."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=False,
        title=Text(history.label, style="bold"),
        title_justify="left",
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for section in (_setup(history), _results(history, target), _costs(history), _ending(history)):
        for name, value in section:
            table.add_row(Text(name), Text(value))
        table.add_section()
    return table


def label_table(
    rows: Sequence[tuple[str, float, float]], title: str = "how labels are spread"
) -> Table:
    """Figures of label skew: each for single clients and for whole clusters."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title, style="bold"), title_justify="left"
    )
    table.add_column("figure", overflow="fold")
    table.add_column("clients", justify="right", no_wrap=True)
    table.add_column("clusters", justify="right", no_wrap=True)
    for name, clients, clusters in rows:
        table.add_row(Text(name), number(clients), number(clusters))
    return table


def shares(seconds: Mapping[str, float], title: str = "where the real time went") -> Table:
    """Parts of a whole, the largest first."""
    whole = sum(seconds.values())
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title, style="bold"), title_justify="left"
    )
    table.add_column("phase")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name, part in sorted(seconds.items(), key=lambda item: -item[1]):
        table.add_row(Text(name), duration(part), percent(part / whole if whole else 0.0))
    table.add_section()
    table.add_row(Text("all"), duration(whole), "")
    return table


def _dash(style: int) -> Text:
    """A piece of the line; black would not be seen on a dark terminal."""
    colour = PALETTE[style % len(PALETTE)]
    ink = "default" if colour == "#000000" else colour
    return Text(TYPED[style % len(TYPED)], style=f"bold {ink}")


def _text(cell: TableEntry) -> Text:
    # The star says it where there is no colour, or for those who cannot see it.
    return Text(f"*{cell.text}", style="bold green") if cell.best else Text(cell.text)


def _setup(history: History) -> Rows:
    started = history.started
    if started is None:
        return [("scheme", history.scheme)]
    return [
        ("scheme", started.scheme),
        ("clients", count(started.clients)),
        ("servers", f"{count(started.servers)} (zeta {started.zeta:.3f})"),
        ("model", f"{count(started.parameters)} parameters"),
        ("engine", started.engine),
        ("seed", str(started.seed)),
    ]


def _results(history: History, target: float | None) -> Rows:
    last = history.last
    if last is None:
        return [("accuracy", "not evaluated yet")]
    rows = [("training loss", number(last.loss)), ("test loss", number(last.test_loss))]
    if last.accuracy is not None:
        rows.insert(0, ("accuracy", percent(last.accuracy)))
    rows.append(("server spread", number(last.spread)))
    own = {name: value for name, value in last.metrics.items() if name not in ESTIMATES}
    rows += [(name, number(value)) for name, value in own.items()]
    rows += _promise(history)
    if target is not None and last.accuracy is not None:
        reached = history.reach(target)
        rows.append((f"time to {goal(target)}", _reached(reached.seconds if reached else None)))
    return rows


def _promise(history: History) -> Rows:
    """What Theorem 1 says about a run that has estimates."""
    if not estimated([history]):
        return []
    end = final_bound(history)
    rows = [("mean squared gradient", number(end.mean))]
    if end.bound is not None:
        at = "" if end.covered else f" at the proven rate {number(end.proven)}"
        rows.append(("  bound of Theorem 1", f"{number(end.bound)}{at}"))
    return rows


def _reached(seconds: float | None) -> str:
    return "not reached" if seconds is None else duration(seconds)


def _costs(history: History) -> Rows:
    end = history.end
    if end is None:
        return []
    return [
        (f"{history.clock} time", duration(end.seconds)),
        *_phases(history),
        ("data moved", amount(end.bytes)),
        ("energy", modelled(end.joules) if history.energy_known else NOT_MEASURED),
        ("iterations", count(end.iterations)),
        ("rounds", count(end.number)),
    ]


def _phases(history: History) -> Rows:
    """Lanes may overlap, so these are shares of the rounds' time and not of the run's."""
    seconds = phase_seconds(history)
    total = sum(seconds.values())
    if not total:
        return []
    rows = [
        (f"  {phase}", f"{percent(part / total):>7}  {duration(part)}")
        for phase, part in seconds.items()
    ]
    if history.end is not None and total > 1.001 * history.end.seconds:
        rows.insert(0, ("rounds, added up", f"{duration(total)} (they overlap)"))
    return rows


def _ending(history: History) -> Rows:
    finished = history.finished
    rows = [("note", message) for message in history.warnings]
    if finished is None:
        return [("ended", "not finished: interrupted, or still running"), *rows]
    return [("ended", finished.reason), ("model", f"sha256 {finished.model_sha256[:12]}"), *rows]
