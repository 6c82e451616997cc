"""What is pushed to open pages: the whole once, and from then on only what has changed."""

import time
from collections.abc import Callable
from typing import Any

from sdfeel.dashboard.jobs import Jobs
from sdfeel.dashboard.log_files import UNREADABLE, NotHere
from sdfeel.dashboard.views.federation import nodes, verification
from sdfeel.dashboard.views.graph import graph
from sdfeel.dashboard.views.run import log_of, overview
from sdfeel.dashboard.views.run_list import Catalogue

News = list[tuple[str, Any]]
AGE = 0.35  # seconds: browsers that ask at the same time share one look at the directory


def list_updates(catalogue: Catalogue, jobs: Jobs) -> Callable[[], News]:
    """Rows of the list that are new or changed, and names of runs that are gone."""
    known: dict[str, dict[str, Any]] = {}
    told: list[Any] = [None]
    gathered: list[Any] = [[]]
    first = [True]

    def news() -> News:
        now = {found.name: found.record() for found in catalogue.runs(AGE)}
        changed = [record for name, record in now.items() if known.get(name) != record]
        gone = [name for name in known if name not in now]
        known.clear()
        known.update(now)
        found: News = []
        if changed or gone or first[0]:
            whole = first[0]  # a page that connects again may have missed runs that are gone
            found.append(("runs", {"changed": changed, "gone": gone, "whole": whole}))
        first[0] = False
        groups = catalogue.groups()
        if groups != gathered[0]:
            gathered[0] = groups
            found.append(("groups", groups))
        return found + _job_news(jobs, told)

    return news


APART = 0.8  # seconds between two messages about a run that never rests
CUT, NEXT = "\0", "+"  # of a list: this many of its entries stay, and these follow


def delta(old: Any, new: Any) -> Any:
    """What turns `old` into `new`: of an object the entries that differ, of a list its new end.

    >>> delta({"a": [1, 2], "b": 1}, {"a": [1, 2, 3], "b": 1})
    {'a': {'\\x00': 2, '+': [3]}}
    """
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return {key: delta(old[key], each) for key, each in new.items() if old[key] != each}
    if isinstance(old, list) and isinstance(new, list) and old and new:
        if len(old) == len(new) and isinstance(new[0], list | dict):
            pairs = enumerate(zip(old, new, strict=True))
            return {CUT: len(new), **{str(i): delta(a, b) for i, (a, b) in pairs if a != b}}
        both = min(len(old), len(new))
        same = next((i for i in range(both) if old[i] != new[i]), both)
        if 2 * same >= len(new):
            return {CUT: same, NEXT: new[same:]}
    return new if not isinstance(new, dict) else {**new, CUT: True}


def run_updates(catalogue: Catalogue, jobs: Jobs, name: str) -> Callable[[], News]:
    """A run's page: everything at first (`run`), and afterwards what has changed (`more`)."""
    told: list[Any] = [None]
    known: dict[str, Any] = {}
    last: dict[str, Any] = {"mark": None, "time": 0.0}

    def news() -> News:
        try:
            found, folder = catalogue.one(name), catalogue.root.folder(name)
        except NotHere as error:
            gone = known.get("gone") != str(error)
            known.clear()
            known["gone"] = str(error)
            last["mark"] = None
            return [*([("gone", {"gone": str(error)})] if gone else []), *_job_news(jobs, told)]
        now: dict[str, Any] = {"nodes": None, "verification": None}
        if folder.nodes:
            now["nodes"] = nodes(catalogue.root, found.name)
            now["verification"] = verification(catalogue.root, found.name)
        mark = (found.state, folder.log, now["nodes"], now["verification"])
        if mark == last["mark"] or (known and time.monotonic() - last["time"] < APART):
            return _job_news(jobs, told)
        now |= _content(catalogue, found.name)
        last.update(mark=mark, time=time.monotonic())
        first = not known or "gone" in known
        message = ("run", now) if first else ("more", delta(known, now))
        known.clear()
        known.update(now)
        return [message, *_job_news(jobs, told)]

    return news


def _content(catalogue: Catalogue, name: str) -> dict[str, Any]:
    """What the page shows of a run; if it is too damaged to show, the page says so."""
    found, log = catalogue.one(name), log_of(catalogue, name)
    try:
        run = {**overview(catalogue, found, log), "files": catalogue.root.files(name)}
        drawn = graph(log.events(), log.rounds.stride) if log is not None else graph([])
    except UNREADABLE as error:
        return {"run": None, "graph": None, "why": f"{type(error).__name__}: {error}"}
    return {"run": run, "graph": drawn, "why": None}


def _job_news(jobs: Jobs, told: list[Any]) -> News:
    records = jobs.records()
    if records == told[0]:
        return []
    told[0] = records
    return [("jobs", records)]
