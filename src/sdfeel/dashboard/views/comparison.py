"""Several runs side by side, and how their experiments differ."""

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.dashboard.views.catalogue import Catalogue
from sdfeel.dashboard.views.curves import charts
from sdfeel.dashboard.views.run import flat, read_experiment
from sdfeel.report.compare import Column, cells, columns, comparison_records
from sdfeel.report.history import History, default_target
from sdfeel.report.units import amount, goal

MOST = 60  # runs in one comparison
Values = dict[str, Any]


def comparison(
    catalogue: Catalogue, names: Sequence[str], seeds: bool, target: float | None
) -> dict[str, Any]:
    """Curves, table and differences; with `seeds`, runs that differ only in the seed are merged."""
    histories = merged(catalogue, names, seeds)
    experiments = {name: _experiment(catalogue, name) for name in names}
    chosen = target if target is not None else default_target(histories)
    return {
        "charts": charts(histories, chosen),
        "table": _table(histories, chosen),
        "target": chosen,
        **_differences(experiments),
    }


def merged(catalogue: Catalogue, names: Sequence[str], seeds: bool) -> list[History]:
    """A history per run, or per group of runs that differ in the seed alone."""
    if len(names) > MOST:
        raise InputError(f"{len(names)} runs are too many to compare: choose at most {MOST}")
    groups = [[name] for name in names]
    if seeds:
        groups = _groups({name: _experiment(catalogue, name) for name in names})
    return [_history(catalogue, group) for group in groups]


def _experiment(catalogue: Catalogue, name: str) -> Values:
    catalogue.one(name)
    try:
        return flat(read_experiment(catalogue.root, name))
    except InputError:
        return {}


def _groups(experiments: dict[str, Values]) -> list[list[str]]:
    """Runs grouped by their experiment without the seed; a run without one stays alone."""
    found: dict[str, list[str]] = {}
    for name, values in experiments.items():
        rest = {key: value for key, value in values.items() if key != "seed"}
        found.setdefault(json.dumps(rest or name, sort_keys=True, default=str), []).append(name)
    return list(found.values())


def _history(catalogue: Catalogue, group: Sequence[str]) -> History:
    members = [History.of(name, catalogue.log(name).events()) for name in group]
    if len(members) == 1:
        return members[0]
    return History.mean(f"{_common(group)} (mean of {len(group)} seeds)", members)


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
    """The table of `sdfeel compare`, and the bytes to the target."""
    records = comparison_records(histories, target)
    layout = columns(records, target)
    if target is not None:
        column = next(i for i, c in enumerate(layout) if c.key == "seconds_to_target")
        title = f"data to\n{goal(target)}"
        layout.insert(
            column + 1,
            Column(title, "bytes_to_target", lambda r: amount(r["bytes_to_target"]), min),
        )
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
    """Keys whose values are not all alike first; those that are alike are only counted."""
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
