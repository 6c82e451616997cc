"""What the page of a run, or of several, shows, as plain values."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.core.events import Started, to_record
from sdfeel.core.run_files import EXPERIMENT, PROVENANCE, of_toml
from sdfeel.dashboard.log import FEW, LogReader
from sdfeel.dashboard.log_files import NotHere, Root
from sdfeel.dashboard.log_lines import parse
from sdfeel.dashboard.views.curves import charts, drawable
from sdfeel.dashboard.views.run_list import Catalogue, RunSummary
from sdfeel.experiment.loading import keys
from sdfeel.experiment.schema import Experiment
from sdfeel.report.compare import cells, columns, comparison_records, phase_seconds
from sdfeel.report.gantt import WORDS
from sdfeel.report.history import History, default_target
from sdfeel.report.holdups import absences, holdups
from sdfeel.report.lines import Line, same_but_for_seed
from sdfeel.report.personal_models import named
from sdfeel.report.timeline import Played, Timeline, waiting
from sdfeel.report.units import (
    NOT_MEASURED,
    TIMES,
    amount,
    count,
    duration,
    joules,
    number,
    percent,
)

LINES, LONG = 4000, 4000  # of the log for one timeline; characters of an event in the table
HOLDUPS = 10  # for whom rounds waited
ROWS, MANY = 72, 1000  # rows of a timeline; servers to choose from
Rows = list[tuple[str, str]]


def overview(catalogue: Catalogue, found: RunSummary, log: LogReader | None) -> dict[str, Any]:
    """Facts, figures, curves, phases and warnings of one run."""
    history = History.of(found.name, log.events() if log is not None else ())
    history = replace(history, style=found.style)
    return {
        **found.record(),
        "facts": [*_facts(history), *_command(catalogue.root, found.name)],
        "figures": _figures(history),
        "warnings": [*history.warnings, *_of_the_log(found, log)],
        "charts": charts([history]),
        "phases": _phases(history),
        "own": _own_models(history),
        "pace": _pace(history),
        "progress": progress(catalogue, found) if found.state == "running" else None,
        "lines": log.lines if log is not None else 0,
        "thinned": _thinned(log),
    }


def progress(catalogue: Catalogue, found: RunSummary) -> dict[str, Any] | None:
    """How much of a running run is done, and about how many real seconds are left."""
    try:
        asked = read_experiment(catalogue.root, found.name).get("training", {})
        planned = int(asked["iterations"])
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None
    done = found.ends.iterations or 0
    if planned < 1:
        return None
    pace = catalogue.pace(found)
    early = any(asked.get(key) is not None for key in ("target_accuracy", "max_seconds"))
    return {
        "done": min(done, planned),
        "planned": planned,
        "left": max(0, planned - done) / pace if pace else None,
        "early": early,  # it may end before
    }


def _command(root: Root, name: str) -> Rows:
    """The exact command that made a run, and the hash of its data."""
    try:
        made = json.loads(root.read(name, PROVENANCE))
        words, data = made["command"], made.get("data")
        rows = [("command", shlex.join(map(str, words)))]
    except (NotHere, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []
    return [*rows, ("data's sha256", data)] if isinstance(data, str) else rows


def _facts(history: History) -> Rows:
    started = history.started
    if started is None:
        return []
    apart = sum(home < 0 for home in started.home)
    return [
        ("scheme", started.scheme),
        ("clients", count(started.clients) + (f", {count(apart)} take no part" if apart else "")),
        ("servers", count(started.servers)),
        ("zeta", f"{number(started.zeta)} (0: servers agree at once, 1: never)"),
        ("model", f"{count(started.parameters)} parameters"),
        ("engine", started.engine),
        *([("why this engine", started.engine_reason)] if started.engine_reason else []),
        ("seed", str(started.seed)),
        *([("ended", history.finished.reason)] if history.finished else []),
        *([("model's sha256", history.finished.model_sha256)] if history.finished else []),
    ]


def _figures(history: History) -> Rows:
    last, end = history.last, history.end
    rows: Rows = []
    if last is not None:
        if last.accuracy is not None:
            rows.append(("test accuracy", percent(last.accuracy)))
        rows += [("training loss", number(last.loss)), ("test loss", number(last.test_loss))]
        rows.append(("servers' spread", number(last.spread)))
    if end is not None:
        rows += [
            (f"{history.clock} time", duration(end.seconds)),
            ("iterations", count(end.iterations)),
            ("data moved", amount(end.bytes)),
            ("modelled energy", joules(end.joules))
            if history.energy_known
            else ("energy", NOT_MEASURED),
        ]
    return rows


def _own_models(history: History) -> list[dict[str, Any]]:
    """The accuracy of each client's own model when it was last measured, the worst first."""
    if history.last is None or not history.last.personal:
        return []
    clients = None if history.started is None else history.started.clients
    found = named(history.last.personal, clients)
    return [{"name": name, "share": share, "text": percent(share)} for name, share in found]


def _phases(history: History) -> list[dict[str, Any]]:
    seconds = phase_seconds(history)
    total = sum(seconds.values())
    return [
        {"name": name, "share": part / total, "text": f"{percent(part / total)}"}
        for name, part in seconds.items()
        if 0 < total < float("inf")
    ]


def _pace(history: History) -> float | None:
    """About how long a round takes."""
    lengths = [sum(each.phases.values()) for each in history.rounds[-50:]]
    return drawable(fmean(lengths)) if lengths else None


def _of_the_log(found: RunSummary, log: LogReader | None) -> list[str]:
    """What is wrong with the file itself."""
    if log is None:
        return []
    notes = []
    if log.damages:
        first = ", ".join(map(str, log.damaged[:5])) + (" ..." if log.damages > 5 else "")
        what = "line that is not an event" if log.damages == 1 else "lines that are not events"
        notes.append(
            f"The log is damaged: {count(log.damages)} {what} (line {first}), left out here."
        )
    if log.half and found.state != "running":
        notes.append("The last line of the log is incomplete; it is left out.")
    return notes


def _thinned(log: LogReader | None) -> str | None:
    if log is None or not log.thinned:
        return None
    return (
        f"{count(log.lines)} events: one in {count(log.rounds.stride)} rounds is read, so that "
        f"shares and traffic are estimates; of every {count(log.evaluations.stride)} measurements "
        f"the lowest and the highest are kept."
    )


def timeline(log: LogReader, begin: float, end: float, servers: list[int] | None) -> dict[str, Any]:
    """Spans of a window, row by row, or `why`: the reason why there are none."""
    started = next((p.event for p in reversed(log.others) if isinstance(p.event, Started)), None)
    rounds = log.between(begin, end, LINES)
    if started is None or not rounds:
        return {"why": "No round is finished yet."}
    if started.servers > MANY:
        return {"why": f"A timeline of {count(started.servers)} servers is too large to draw."}
    shown = [s for s in servers if s < started.servers] if servers else _fitting(started)
    line = Timeline.of([started, *rounds])
    found = line.spans(begin, end, shown)
    rows: dict[str, list[tuple[str, float, float, int]]] = {}
    for span in found:
        rows.setdefault(span.who, []).append((span.kind, span.begin, span.end, span.round))
    away = _away(log, begin, end)
    for server in shown:
        if f"server {server}" in away:
            rows.setdefault(f"server {server}", [])  # even if it was away all the time
    return {
        "begin": begin,
        "end": end,
        "away": away,
        "kinds": WORDS,
        "units": [asdict(unit) for unit in TIMES],
        "rows": [{"who": who, "spans": parts} for who, parts in rows.items()],
        "servers": started.servers,
        "left_out": 0 if servers else started.servers - len(shown),
        "holdups": _holdups([each for each in line.rounds if begin < each.end <= end]),
        "waiting": {"clients": waiting(found, "client"), "servers": waiting(found, "server")},
    }


def _away(log: LogReader, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
    """Who was away in a window, and when; nothing where the log is too long to be kept whole."""
    if len(log.others) >= FEW:
        return {}
    found: dict[str, list[tuple[float, float]]] = {}
    for who, intervals in absences(log.events()).items():
        inside = [
            (max(first, begin), end if last is None else min(last, end))
            for first, last in intervals
            if first < end and (last is None or last > begin)
        ]
        found |= {who: inside} if inside else {}
    return found


def _holdups(rounds: Sequence[Played]) -> dict[str, Any]:
    """For whom the rounds of a window waited, the longest wait first."""
    whole = sum(each.end - each.begin for each in rounds)
    rows = [{**asdict(each), "share": each.seconds / whole} for each in holdups(rounds)[:HOLDUPS]]
    return {"rounds": len(rounds), "rows": rows if 0 < whole < float("inf") else []}


def _fitting(started: Started) -> list[int]:
    """As many servers as fit together with their clients."""
    sizes = Counter(started.home)
    rows = accumulate(1 + sizes[server] for server in range(started.servers))
    return [server for server, end in enumerate(rows) if server == 0 or end <= ROWS]


def events(log: LogReader, before: int | None, size: int, kind: str | None) -> dict[str, Any]:
    """A page of the table of events, newest first."""
    page = log.tail(before, size, kind)
    rows = []
    for line in page.lines:
        event = parse(line.data)
        record = None if event is None else to_record(event)
        text = line.data.decode(errors="replace")
        rows.append(
            {
                "offset": line.offset,
                "kind": "damaged" if record is None else record.pop("event"),
                "seconds": duration(record.get("seconds")) if record else None,
                "fields": _short(record) if record is not None else {"line": text[:LONG]},
            }
        )
    return {"rows": rows, "before": page.before}


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """An event's fields; long lists only by their length."""
    return {
        key: f"{len(value)} entries" if isinstance(value, tuple) and len(value) > 24 else value
        for key, value in record.items()
        if value not in (None, (), {}, "")
    }


def experiment(root: Root, name: str, file: str = EXPERIMENT) -> dict[str, Any]:
    """The experiment by sections: each key with its value, help and whether it is the default."""
    values = read_experiment(root, name, file)
    helps, defaults = keys(), flat(Experiment().model_dump())
    sections: dict[str, list[dict[str, Any]]] = {}
    for key, value in flat(values).items():
        section, _, short = key.rpartition(".")
        sections.setdefault(section, []).append(
            {
                "key": short,
                "value": value,
                "help": helps.get(key, ""),
                "changed": key in defaults and defaults[key] != value,
            }
        )
    return {"sections": [{"name": n, "keys": rows} for n, rows in sections.items()]}


def read_experiment(root: Root, name: str, file: str = EXPERIMENT) -> dict[str, Any]:
    """A run's experiment file; an error if it cannot be read."""
    try:
        return of_toml(root.read(name, file))
    except NotHere:
        raise InputError(f"{name} has no {file}") from None
    except ValueError as error:
        raise InputError(f"{file} of {name} is not valid TOML: {error}") from None


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Keys of sections by dotted names.

    >>> flat({"seed": 1, "model": {"name": "mlp", "options": {"hidden": 8}}})
    {'seed': 1, 'model.name': 'mlp', 'model.options': {'hidden': 8}}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": part for inner, part in value.items()}
        else:
            found[key] = value
    return found


def log_of(catalogue: Catalogue, name: str) -> LogReader | None:
    """A run's log; None if it has not written anything yet."""
    try:
        return catalogue.log(name)
    except NotHere:
        return None


def view(catalogue: Catalogue, name: str) -> dict[str, Any]:
    """The overview of a run by its name."""
    found, log = catalogue.one(name), log_of(catalogue, name)
    return {**overview(catalogue, found, log), "files": catalogue.root.files(found.name)}


MOST = 60  # runs in one comparison
Values = dict[str, Any]


def comparison(
    catalogue: Catalogue, names: Sequence[str], seeds: bool, target: float | None
) -> dict[str, Any]:
    """Curves, table and differences; with `seeds`, runs that differ only in the seed are merged."""
    histories = merged(catalogue, names, seeds)
    experiments = {name: flat(_asked(catalogue, name)) for name in names}
    chosen = target if target is not None else default_target(histories)
    return {
        "charts": charts(histories, chosen),
        "table": _table(histories, chosen),
        "target": chosen,
        "thinned": _thinned_ones(catalogue, names),
        **_differences(experiments),
    }


def _thinned_ones(catalogue: Catalogue, names: Sequence[str]) -> str | None:
    found = [name for name in names if catalogue.log(name).evaluations.stride > 1]
    if not found:
        return None
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"{', '.join(found[:3])}{more}: there are so many measurements that only the lows and the "
        f"highs are read."
    )


def merged(catalogue: Catalogue, names: Sequence[str], seeds: bool) -> list[History]:
    """A history per run, or per group of runs that differ only in the seed."""
    if len(names) > MOST:
        raise InputError(f"{len(names)} runs are too many to compare: choose at most {MOST}")
    groups = [[name] for name in names]
    if seeds:
        groups = _groups({name: _asked(catalogue, name) for name in names})
    return [_history(catalogue, group) for group in groups]


def _asked(catalogue: Catalogue, name: str) -> Values:
    catalogue.one(name)
    try:
        return read_experiment(catalogue.root, name)
    except InputError:
        return {}


def _groups(experiments: dict[str, Values]) -> list[list[str]]:
    """Runs grouped by what was asked for; a run whose experiment is unknown stays alone."""
    found: dict[str, list[str]] = {}
    for name, values in experiments.items():
        found.setdefault(same_but_for_seed(values) if values else name, []).append(name)
    return list(found.values())


def _history(catalogue: Catalogue, group: Sequence[str]) -> History:
    members = [History.of(name, catalogue.log(name).events()) for name in group]
    if len(members) == 1:
        return replace(members[0], style=catalogue.style(group[0]))
    label = _common(group)
    mean = History.mean(f"{label} (mean of {len(group)} seeds)", members)
    return replace(mean, style=catalogue.style(group[0], PurePosixPath(label).name))


def lines(catalogue: Catalogue, names: Sequence[str]) -> list[Line]:
    """Lines for a paper's table: runs that differ only in the seed form one line."""
    if len(names) > MOST:
        raise InputError(f"{len(names)} runs are too many to compare: choose at most {MOST}")
    found: dict[str, dict[int, History]] = {}
    for group in _groups({name: _asked(catalogue, name) for name in names}):
        label = _common(group) if len(group) > 1 else group[0]
        for name in group:
            history = History.of(name, catalogue.log(name).events())
            seed = history.started.seed if history.started is not None else 0
            own = label if seed not in found.get(label, {}) else name
            found.setdefault(own, {})[seed] = history
    return [Line(label, runs) for label, runs in found.items()]


def _common(names: Sequence[str]) -> str:
    """What the names of runs share.

    >>> _common(["race/fedavg-seed0", "race/fedavg-seed1"]), _common(["a", "b"])
    ('race/fedavg', 'a')
    """
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    text = first[:same].rstrip("-_= ").removesuffix("seed").rstrip("-_= /")
    return text or PurePosixPath(first).name


def _table(histories: Sequence[History], target: float | None) -> dict[str, Any]:
    """The table of `sdfeel compare`."""
    records = comparison_records(histories, target)
    layout = columns(records, target)
    return {
        "columns": [
            {"title": " ".join(c.title.replace("-\n", "").split()), "numeric": c.numeric}
            for c in layout
        ],
        "rows": [
            [{"text": cell.text, "best": cell.best} for cell in row]
            for row in cells(records, layout)
        ],
    }


def _differences(experiments: dict[str, Values]) -> dict[str, Any]:
    """The keys whose values differ; keys with the same value everywhere are only counted."""
    keys = list(dict.fromkeys(key for values in experiments.values() for key in values))
    rows = {key: [_shown(values, key) for values in experiments.values()] for key in keys}
    return {
        "differences": [
            {"key": key, "values": row} for key, row in rows.items() if len({*row}) > 1
        ],
        "alike": sum(len({*row}) == 1 for row in rows.values()),
        "names": list(experiments),
    }


def _shown(values: Values, key: str) -> str:
    if key not in values:
        return "not set"
    value = values[key]
    return value if isinstance(value, str) else json.dumps(value, default=str)
