"""What has changed since a browser was last informed."""

from collections.abc import Callable
from typing import Any

from sdfeel.dashboard.jobs import Jobs
from sdfeel.dashboard.logs.files import NotHere
from sdfeel.dashboard.views.catalogue import Catalogue
from sdfeel.dashboard.views.federation import nodes

News = list[tuple[str, Any]]
AGE = 0.35  # seconds: browsers that ask at the same time share one look at the directory


def list_news(catalogue: Catalogue, jobs: Jobs) -> Callable[[], News]:
    """Rows of the list that are new or changed, and names of runs that are gone."""
    known: dict[str, dict[str, Any]] = {}
    told: list[Any] = [None]
    first = [True]

    def news() -> News:
        now = {found.name: found.record() for found in catalogue.runs(AGE)}
        changed = [record for name, record in now.items() if known.get(name) != record]
        gone = [name for name in known if name not in now]
        known.clear()
        known.update(now)
        found: News = []
        if changed or gone or first[0]:
            found.append(("runs", {"changed": changed, "gone": gone}))
        first[0] = False
        return found + _job_news(jobs, told)

    return news


def run_news(catalogue: Catalogue, jobs: Jobs, name: str) -> Callable[[], News]:
    """Signals that a run's log or its nodes changed; the page then asks for what it shows."""
    told: list[Any] = [None]
    known: list[Any] = [None]

    def news() -> News:
        try:
            found = catalogue.one(name)
            folder = catalogue.root.folder(name)
        except NotHere as error:
            now: Any = {"gone": str(error)}
        else:
            below = nodes(catalogue.root, found.name) if folder.nodes else None
            now = {"state": found.state, "stamp": str(folder.log), "nodes": below}
        changed: News = [("run", now)] if now != known[0] else []
        known[0] = now
        return changed + _job_news(jobs, told)

    return news


def _job_news(jobs: Jobs, told: list[Any]) -> News:
    records = jobs.records()
    if records == told[0]:
        return []
    told[0] = records
    return [("jobs", records)]
