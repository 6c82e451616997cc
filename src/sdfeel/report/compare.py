"""Runs side by side, as plain values: the console and the page print the same cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from sdfeel.core.events import Evaluated
from sdfeel.core.run_files import finite
from sdfeel.report.history import History, clock_of
from sdfeel.report.intervals import MARGIN, Observed, estimate
from sdfeel.report.units import (
    NOT_MEASURED,
    amount,
    count,
    duration,
    goal,
    joules,
    number,
    percent,
)

TERMINAL, DASH = 80, 3  # characters in a terminal's line, and in the dash that begins a row
PHASES = ("compute", "upload", "mix")
Record = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of the comparison: where its value is, how it is shown, which one is best."""

    title: str  # may contain a line break
    key: str
    show: Callable[[Record], str]
    best: Callable[[Sequence[float]], float] | None = None  # None: the least is not the best
    numeric: bool = True


@dataclass(frozen=True)
class TableEntry:
    """A value as text, and whether it is the best of its column."""

    text: str
    best: bool = False


def comparison_records(histories: Sequence[History], target: float | None) -> list[Record]:
    """One record per run, ready for JSON; None where something was not reached or measured."""
    return [_record(history, target) for history in histories]


def columns(records: Sequence[Record], target: float | None) -> list[Column]:
    """The columns worth printing for these records."""
    found = [Column("run", "label", lambda r: str(r["label"]), numeric=False)]
    several = len({record["scheme"] for record in records}) > 1 or len(records) == 1
    if several and any(record["scheme"] not in record["label"] for record in records):
        found.append(Column("scheme", "scheme", lambda r: str(r["scheme"]), numeric=False))
    if any(record["accuracy"] is not None for record in records):
        found.append(Column("accuracy", "accuracy", _accuracy, max))
    else:
        found.append(Column("test\nloss", "test_loss", _show("test_loss", number), min))
    found.append(Column("train\nloss", "loss", _show("loss", number), min))
    found += _whole_costs() if target is None else _costs_to(target)
    found += [
        Column("itera-\ntions", "iterations", _show("iterations", count)),
        Column("rounds", "rounds", _show("rounds", count)),
    ]
    return found


def narrow(records: Sequence[Record], found: Sequence[Column]) -> list[Column]:
    """The columns that fit a terminal; counts and the total time give way to long labels."""
    kept = list(found)
    for key in ("rounds", "iterations", "seconds"):
        if sum(1 + _width(records, column) for column in kept) + DASH <= TERMINAL:
            break
        kept = [column for column in kept if column.key != key]
    return kept


def _width(records: Sequence[Record], column: Column) -> int:
    shown = [*column.title.split("\n"), *(column.show(record) for record in records)]
    return max(map(len, shown)) + (column.best is not None)  # and a star


def _whole_costs() -> list[Column]:
    """Total costs, of which none is called the best: the run that trained least has spent least."""
    return [
        Column("total\ntime", "seconds", _show("seconds", duration)),
        Column("data\nmoved", "bytes", _show("bytes", amount)),
        Column("modelled\nenergy", "joules", _energy("joules")),
    ]


def _costs_to(target: float) -> list[Column]:
    """What reaching the target cost; the total time is there, but does not win anything."""
    to = f"to\n{goal(target)}"
    return [
        Column(f"time {to}", "seconds_to_target", _time_to_target, min),
        Column(f"data {to}", "bytes_to_target", _show("bytes_to_target", amount), min),
        Column(f"modelled\nenergy {to}", "joules_to_target", _energy("joules_to_target"), min),
        Column("total\ntime", "seconds", _show("seconds", duration)),
    ]


def cells(records: Sequence[Record], table: Sequence[Column]) -> list[list[TableEntry]]:
    """A row of cells per record."""
    best = [_best(records, column) for column in table]
    return [
        [
            TableEntry(column.show(record), value is not None and record[column.key] == value)
            for column, value in zip(table, best, strict=True)
        ]
        for record in records
    ]


def notes(histories: Sequence[History], rows: Sequence[Sequence[TableEntry]], star: str) -> str:
    """What a reader must know to read the table, as one sentence."""
    said = (
        [f"{star} marks the best in a column"] if any(c.best for row in rows for c in row) else []
    )
    if any(len(history.members) > 1 for history in histories):
        said.append(f"± is {MARGIN} over seeds")
    return "; ".join([*said, f"times are {clock_of(histories)}"])


def phase_seconds(history: History) -> dict[str, float]:
    """Seconds in each phase, summed over all rounds; the usual phases first."""
    found = {phase: 0.0 for phase in PHASES}
    for event in history.rounds:
        for phase, seconds in event.phases.items():
            found[phase] = found.get(phase, 0.0) + seconds
    return found


def _record(history: History, target: float | None) -> Record:
    last, end = history.last, history.end
    reached = history.reach(target) if target is not None else None
    return {
        "label": history.label,
        "scheme": history.scheme,
        "accuracy": finite(last.accuracy) if last else None,
        "loss": finite(last.loss) if last else None,
        "test_loss": finite(last.test_loss) if last else None,
        "target": target,
        "seconds_to_target": finite(reached.seconds) if reached else None,
        "bytes_to_target": reached.bytes if reached else None,
        "joules_to_target": finite(reached.joules) if reached and history.energy_known else None,
        "seconds": finite(end.seconds) if end else None,
        "bytes": end.bytes if end else None,
        "joules": finite(end.joules) if end and history.energy_known else None,
        "energy_known": history.energy_known,
        "iterations": end.iterations if end else None,
        "rounds": end.number if end else None,
        "reason": history.finished.reason if history.finished else None,
        "metrics": {name: finite(value) for name, value in last.metrics.items()} if last else {},
        **_over_seeds(history, target),
    }


def _over_seeds(history: History, target: float | None) -> Record:
    """For a mean of several runs: how many, their spread, how often the target was reached.

    What was learnt is that of each run's own end, as its costs and the spread are: seeds may end at
    different times, and the mean curve ends with the first of them.
    """
    if not history.members:
        return {}
    lasts = [member.last for member in history.members]
    finals = [m.last.accuracy for m in history.members if m.last and m.last.accuracy is not None]
    accuracy = estimate(map(Observed, finals))
    reached = [] if target is None else [m.reach(target) for m in history.members]
    there = [event for event in reached if event is not None]
    all_there = bool(there) and len(there) == len(reached)
    return {
        **_learnt([last for last in lasts if last is not None], all(lasts)),
        "seeds": len(history.members),
        "accuracy_spread": stdev(finals) if len(finals) > 1 else None,
        "accuracy_margin": None if accuracy is None else accuracy.margin,
        "reached": len(there),
        "seconds_to_target": fmean(event.seconds for event in there) if all_there else None,
        "bytes_to_target": round(fmean(event.bytes for event in there)) if all_there else None,
        "joules_to_target": (
            fmean(event.joules for event in there) if all_there and history.energy_known else None
        ),
    }


def _learnt(lasts: Sequence[Evaluated], complete: bool) -> Record:
    """Means over the last measurements of all seeds; None where a seed has no such value."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return finite(fmean(known)) if complete and known and len(known) == len(lasts) else None

    names = dict.fromkeys(name for last in lasts for name in last.metrics)
    return {
        "accuracy": mean([last.accuracy for last in lasts]),
        "loss": mean([last.loss for last in lasts]),
        "test_loss": mean([last.test_loss for last in lasts]),
        "metrics": {name: mean([last.metrics.get(name) for last in lasts]) for name in names},
    }


def _best(records: Sequence[Record], column: Column) -> float | None:
    """The best value; None where naming one would say nothing, or mislead."""
    if column.best is None:
        return None
    values = [value for record in records if (value := record[column.key]) is not None]
    if len(records) < 2 or not values or values.count(values[0]) == len(records):
        return None
    return column.best(values)


def _show(key: str, text: Callable[[float | None], str]) -> Callable[[Record], str]:
    return lambda record: text(record[key])


def _energy(key: str) -> Callable[[Record], str]:
    return lambda record: joules(record[key]) if record["energy_known"] else NOT_MEASURED


def _accuracy(record: Record) -> str:
    margin = record.get("accuracy_margin")
    return percent(record["accuracy"]) + (f" ±{100 * margin:.1f}" if margin is not None else "")


def _time_to_target(record: Record) -> str:
    if record.get("reached") and record["seconds_to_target"] is None:
        return f"{record['reached']} of {record['seeds']} seeds"
    if record["seconds_to_target"] is None and record["accuracy"] is not None:
        return "not reached"
    return duration(record["seconds_to_target"])
