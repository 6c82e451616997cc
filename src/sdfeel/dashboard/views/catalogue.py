"""A summary of a run for the list, from the two ends of its log, however long it is."""

import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from threading import Lock
from typing import Any, Literal

from sdfeel.core.events import Evaluated, Finished, Round, Started
from sdfeel.core.run_files import EVENTS, finite
from sdfeel.dashboard.jobs import Jobs
from sdfeel.dashboard.log import HEAD, LogReader, parse
from sdfeel.dashboard.log_files import NotHere, Root, RunFolder, Stamp, held, lock_inode
from sdfeel.dashboard.views.federation import nodes, verification

State = Literal["running", "finished", "stopped", "waiting", "damaged"]
BLOCK, DEEPEST = 1 << 14, 1 << 20  # bytes of an end that are read at first, and at most
SCHEME = re.compile(rb'^\{"event": "started", "scheme": "([^"\\]{1,100})"')
SEED = re.compile(rb'"seed": (\d{1,18})\b')


@dataclass(frozen=True)
class Ends:
    """What the two ends of a log show."""

    scheme: str = "unknown"
    seed: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    seconds: float | None = None
    iterations: int | None = None
    bytes: int | None = None
    reason: str | None = None  # why it ended; None: it did not
    damaged: bool = False
    half: bool = False  # the last line is not whole


@dataclass(frozen=True)
class RunSummary:
    """A row of the list."""

    name: str
    folder: str
    kind: Literal["simulated", "deployed"]
    state: State
    modified: float  # seconds since 1970; 0: no log
    ends: Ends

    def record(self) -> dict[str, Any]:
        """For JSON."""
        ends = asdict(self.ends)
        numbers = {key: finite(ends[key]) for key in ("accuracy", "loss", "seconds")}
        own = {"name": self.name, "folder": self.folder, "kind": self.kind, "state": self.state}
        return {**own, "modified": self.modified, **ends, **numbers}


def summarise(run: RunFolder, ends: Ends, running: bool) -> RunSummary:
    """A run's row, from what is known about its log and about running processes."""
    return RunSummary(
        name=run.name,
        folder=str(PurePosixPath(run.name).parent),
        kind="deployed" if run.nodes else "simulated",
        state=_state(run, ends, running),
        modified=run.log.modified / 1e9 if run.log else 0.0,
        ends=ends,
    )


def _state(run: RunFolder, ends: Ends, running: bool) -> State:
    if ends.damaged:
        return "damaged"
    if ends.reason is not None:
        return "finished"
    if running:
        return "running"
    return "stopped" if run.log is not None else "waiting"


def read_ends(root: Root, run: RunFolder) -> Ends:
    """Look at the beginning and the end of a log."""
    if run.log is None:
        return Ends()
    try:
        with os.fdopen(root.open(run.name, EVENTS), "rb") as file:
            head = file.read(BLOCK)
            size = os.fstat(file.fileno()).st_size
            reach = BLOCK
            while True:
                file.seek(max(0, size - reach))
                tail = file.read(reach)
                ends = _told(head, tail, whole=size <= reach)
                if ends.accuracy is not None or size <= reach or reach >= DEEPEST:
                    return ends
                reach *= 8
    except (NotHere, OSError):
        return Ends(damaged=True)


def _told(head: bytes, tail: bytes, whole: bool) -> Ends:
    lines = tail.split(b"\n")
    half = bool(lines.pop())
    lines = lines if whole else lines[1:]  # the first is cut
    scheme, seed = _beginning(head)
    measured, latest, ended = None, None, None
    damaged = any(not (line.startswith(HEAD) and line.endswith(b"}")) for line in lines)
    for line in reversed(lines):
        interesting = latest is None or line.startswith(HEAD + b"evaluated")
        event = parse(line) if interesting else None
        damaged = damaged or (interesting and event is None)
        if isinstance(event, Finished) and latest is None:
            ended = event.reason
        if isinstance(event, Round | Evaluated | Finished) and latest is None:
            latest = event
        if isinstance(event, Evaluated):
            measured = event
            break
    begun = head.startswith(HEAD) or not head
    return Ends(
        scheme=scheme,
        seed=seed,
        accuracy=measured.accuracy if measured else None,
        loss=measured.loss if measured else None,
        seconds=latest.seconds if latest else None,
        iterations=latest.iterations if latest else None,
        bytes=latest.bytes if latest else None,
        reason=ended,
        damaged=damaged or not begun,
        half=half,
    )


def _beginning(head: bytes) -> tuple[str, int | None]:
    """Scheme and seed; the first line may be long, because it lists each client's server."""
    for line in head.split(b"\n"):
        event = parse(line)
        if isinstance(event, Started):
            return event.scheme, event.seed
        found = SCHEME.match(line)
        if found is not None:
            seed = SEED.search(line)
            return found[1].decode(errors="replace"), int(seed[1]) if seed else None
    return "unknown", None


FRESH = 20.0  # a log without a lock that changed so many seconds ago is being written
OPEN = 48  # logs of which the thinned content stays in memory


class Catalogue:
    """What is known about the runs; safe to use from several threads."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lock = Lock()
        self._ends: dict[str, tuple[Stamp | None, Ends]] = {}
        self._readers: OrderedDict[str, LogReader] = OrderedDict()
        self._listed: tuple[float, list[RunSummary]] = (-1.0, [])

    def runs(self, age: float = 0.0) -> list[RunSummary]:
        """All runs by name; a list younger than `age` seconds is good enough."""
        with self._lock:
            now = time.monotonic()
            if self._listed[0] < 0 or now - self._listed[0] >= age:
                runs = sorted(self.root.runs(), key=lambda run: run.name)
                self._ends = {p.name: self._known(p) for p in runs}
                locked = held()
                found = [self._summary(run, locked) for run in runs]
                self._listed = (time.monotonic(), found)
            return self._listed[1]

    def one(self, name: str) -> RunSummary:
        """One run; NotHere if there is none of this name."""
        run = self.root.folder(name)
        with self._lock:
            self._ends[run.name] = self._known(run)
            return self._summary(run, held())

    def log(self, name: str) -> LogReader:
        """The newest content of a run's log."""
        name = self.root.folder(name).name
        with self._lock:
            reader = self._readers.pop(name, None) or LogReader(self.root, name)
            self._readers[name] = reader
            while len(self._readers) > OPEN:
                self._readers.popitem(last=False)
        reader.refresh()
        return reader

    def _known(self, run: RunFolder) -> tuple[Stamp | None, Ends]:
        known = self._ends.get(run.name)
        if known is not None and known[0] == run.log:
            return known
        return run.log, read_ends(self.root, run)

    def _summary(self, run: RunFolder, locked: set[int] | None) -> RunSummary:
        ends = self._ends[run.name][1]
        running = ends.reason is None and self._running(run, locked)
        return summarise(run, ends, running)

    def _running(self, run: RunFolder, locked: set[int] | None) -> bool:
        inode = lock_inode(self.root.path / run.name)
        if inode is not None and locked is not None:
            return inode in locked
        return run.log is not None and time.time() - run.log.modified / 1e9 < FRESH


News = list[tuple[str, Any]]
AGE = 0.35  # seconds: browsers that ask at the same time share one look at the directory


def list_updates(catalogue: Catalogue, jobs: Jobs) -> Callable[[], News]:
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


def run_updates(catalogue: Catalogue, jobs: Jobs, name: str) -> Callable[[], News]:
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
            if folder.nodes:
                now["verification"] = verification(catalogue.root, found.name)
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
