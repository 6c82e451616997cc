"""A summary of a run for the list, from the two ends of its log, however long it is."""

import os
import re
import time
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from threading import Lock
from typing import Any, Literal

from sdfeel.core.events import Evaluated, Finished, Round, Started
from sdfeel.core.run_files import CHECKPOINT, EVENTS, EXPERIMENT, GROUP, PROVENANCE, finite, of_toml
from sdfeel.dashboard.log import LogReader
from sdfeel.dashboard.log_files import (
    PLAN,
    UNREADABLE,
    GroupFolder,
    NotHere,
    Root,
    RunFolder,
    Stamp,
    lock_inode,
    locked_inodes,
)
from sdfeel.dashboard.log_lines import HEAD, parse
from sdfeel.dashboard.notes import Notes, read_notes
from sdfeel.report.lines import Group
from sdfeel.report.styles import style_of

NUMBERS = ("accuracy", "loss", "seconds", "joules", "test_loss", "spread")
OWN = 24  # metrics of a run in the list
State = Literal["running", "finished", "stopped", "crashed", "waiting", "damaged"]
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
    joules: float | None = None
    test_loss: float | None = None
    spread: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)  # the user's own
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
    style: int = 0  # of its line (`report/styles.py`)
    notes: Notes = field(default_factory=Notes)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        ends = asdict(self.ends)
        numbers: dict[str, Any] = {key: finite(ends[key]) for key in NUMBERS}
        numbers["metrics"] = {key: finite(value) for key, value in ends["metrics"].items()}
        if self.kind == "deployed":
            numbers["joules"] = None  # it is not measured there
        own: dict[str, Any] = {
            "name": self.name,
            "folder": self.folder,
            "kind": self.kind,
            "state": self.state,
        }
        own["style"] = self.style
        written = {"tags": list(self.notes.tags), "note": self.notes.note}
        return {**own, **written, "modified": self.modified, **ends, **numbers}


def summarise(run: RunFolder, ends: Ends, running: bool, style: int, notes: Notes) -> RunSummary:
    """A run's row, from what is known about its log and about running processes."""
    return RunSummary(
        name=run.name,
        folder=str(PurePosixPath(run.name).parent),
        kind="deployed" if run.nodes else "simulated",
        state=_state(run, ends, running),
        modified=run.log.modified / 1e9 if run.log else 0.0,
        ends=ends,
        style=style,
        notes=notes,
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
    except UNREADABLE:
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
        joules=latest.joules if latest else None,
        test_loss=measured.test_loss if measured else None,
        spread=measured.spread if measured else None,
        metrics=_own(measured) if measured else {},
        reason=ended,
        damaged=damaged or not begun,
        half=half,
    )


def _own(measured: Evaluated) -> dict[str, float]:
    return {key: measured.metrics[key] for key in list(measured.metrics)[:OWN]}


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


def plain_keys(text: bytes) -> dict[str, Any]:
    """The plain values of a TOML file by dotted key; empty if it is not valid.

    >>> plain_keys(b'seed = 1\\n[scheme]\\nname = "feel"\\ntau1 = 5\\n[model.options]\\nhidden = 8')
    {'seed': 1, 'scheme.name': 'feel', 'scheme.tau1': 5, 'model.options.hidden': 8}
    """
    found: dict[str, Any] = {}

    def walk(values: dict[str, Any], before: str, depth: int) -> None:
        for key, value in values.items():
            if isinstance(value, dict) and depth < 4:
                walk(value, f"{before}{key}.", depth + 1)
            elif isinstance(value, str | int | float | bool):
                found[f"{before}{key}"] = value

    try:
        walk(of_toml(text), "", 0)
    except ValueError:
        return {}
    return found


LOGGED = re.compile(rb'log_bytes\\": (\d{1,18})')  # in the head of a checkpoint
HEADER = 1 << 20  # bytes of it that are read
FRESH = 20.0  # a log without a lock is being written if it changed in the last so many seconds
PACES = 30  # moments of a running run that are remembered, at least a second apart
OPEN = 48  # logs of which the thinned content stays in memory


class Catalogue:
    """What is known about the runs; safe to use from several threads."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lock = Lock()
        self._ends: dict[str, tuple[Stamp | None, Ends]] = {}
        self._crashes: dict[str, tuple[Stamp | None, bool]] = {}
        self._asked: dict[str, tuple[Stamp | None, dict[str, Any]]] = {}
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        self._notes: dict[str, tuple[Stamp | None, Notes]] = {}
        self._titles: dict[str, tuple[Stamp, str]] = {}
        self._groups: dict[str, tuple[Stamp, dict[str, int]]] = {}
        self._readers: OrderedDict[str, LogReader] = OrderedDict()
        self._listed: tuple[float, list[RunSummary]] = (-1.0, [])
        self._gathered: list[dict[str, Any]] = []

    def runs(self, age: float = 0.0) -> list[RunSummary]:
        """All runs by name; a list younger than `age` seconds is good enough."""
        with self._lock:
            now = time.monotonic()
            if self._listed[0] < 0 or now - self._listed[0] >= age:
                seen = list(self.root.walk())
                groups = [each for each in seen if isinstance(each, GroupFolder)]
                runs = [each for each in seen if isinstance(each, RunFolder)]
                runs.sort(key=lambda run: run.name)
                self._gathered = [self._group_row(group) for group in groups]
                here = {run.name for run in runs}
                self._ends = {name: each for name, each in self._ends.items() if name in here}
                locked = locked_inodes()
                found = [self._row(run, locked) for run in runs]
                self._listed = (time.monotonic(), found)
            return self._listed[1]

    def groups(self) -> list[dict[str, Any]]:
        """Comparisons, sweeps, figures and plans at the last look, newest first."""
        return sorted(self._gathered, key=lambda group: -group["modified"])

    def _group_row(self, group: GroupFolder) -> dict[str, Any]:
        known = self._titles.get(group.name)
        if known is None or known[0] != group.stamp:
            title = "A plan" if group.file == PLAN else self._title(group.name)
            self._titles[group.name] = known = (group.stamp, title)
        modified = group.stamp.modified / 1e9
        plan = group.file == PLAN
        return {"name": group.name, "plan": plan, "title": known[1], "modified": modified}

    def _title(self, name: str) -> str:
        try:
            group = Group.read(self.root.read(name, GROUP, limit=1 << 22))
        except (NotHere, OSError):
            group = None
        return (group.title if group is not None else "")[:100] or "Runs"

    def one(self, name: str) -> RunSummary:
        """One run; NotHere if there is none of this name."""
        run = self.root.folder(name)
        with self._lock:
            self._ends[run.name] = self._known(run)
            return self._summary(run, locked_inodes())

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

    def pace(self, found: RunSummary) -> float | None:
        """Iterations per real second: as seen here lately, or else since the run began."""
        done = found.ends.iterations or 0
        seen = self._seen.setdefault(found.name, deque(maxlen=PACES))
        now = found.modified
        if seen and seen[-1][1] > done:
            seen.clear()  # it began again
        if not seen or now - seen[-1][0] >= 1.0:
            seen.append((now, done))
        then, before = seen[0]
        if now - then >= 3.0 and done > before:
            return (done - before) / (now - then)
        try:
            began = os.fstat(file := self.root.open(found.name, PROVENANCE)).st_mtime
            os.close(file)
        except NotHere:
            return None
        return done / (now - began) if now > began and done else None

    def style(self, name: str, line: str | None = None) -> int:
        """The style of a run or, with `line`, of the line that it forms with other runs."""
        place = PurePosixPath(name)
        return style_of(line or place.name or self.root.path.name, self._group(str(place.parent)))

    def _group(self, folder: str) -> dict[str, int]:
        """The styles in a folder, read again only if its record of the group has changed."""
        try:
            with os.fdopen(self.root.open(folder, GROUP), "rb") as file:
                stamp = Stamp.of(os.fstat(file.fileno()))
                known = self._groups.get(folder)
                if known is None or known[0] != stamp:
                    group = Group.read(file.read(1 << 22))
                    self._groups[folder] = stamp, group.styles if group else {}
                return self._groups[folder][1]
        except (NotHere, OSError):
            return {}

    def _known(self, run: RunFolder) -> tuple[Stamp | None, Ends]:
        known = self._ends.get(run.name)
        if known is not None and known[0] == run.log:
            return known
        return run.log, read_ends(self.root, run)

    def _row(self, run: RunFolder, locked: set[int] | None) -> RunSummary:
        """A run's row; a run that cannot be read, or disappears meanwhile, counts as damaged."""
        try:
            self._ends[run.name] = self._known(run)
            return self._summary(run, locked)
        except UNREADABLE:
            return summarise(run, Ends(damaged=True), running=False, style=0, notes=Notes())

    def _summary(self, run: RunFolder, locked: set[int] | None) -> RunSummary:
        ends = self._ends[run.name][1]
        running = ends.reason is None and self._running(run, locked)
        found = summarise(run, ends, running, self.style(run.name), self._written(run))
        crashed = found.state == "stopped" and run.experiment and not run.nodes
        return replace(found, state="crashed") if crashed and self._crashed(run) else found

    def _written(self, run: RunFolder) -> Notes:
        if run.notes is None:
            return Notes()
        known = self._notes.get(run.name)
        if known is None or known[0] != run.notes:
            self._notes[run.name] = known = (run.notes, read_notes(self.root, run.name))
        return known[1]

    def _crashed(self, run: RunFolder) -> bool:
        """Did it end without a last checkpoint? Then its newest one covers less than its log."""
        known = self._crashes.get(run.name)
        if known is None or known[0] != run.log:
            try:
                head = self.root.read(run.name, CHECKPOINT, limit=HEADER)
                told = LOGGED.search(head)
            except NotHere:
                told = None
            whole = told is not None and run.log is not None and int(told[1]) == run.log.size
            self._crashes[run.name] = known = (run.log, not whole)
        return known[1]

    def keys(self) -> dict[str, dict[str, Any]]:
        """Every run's experiment, key by key: numbers, words, true and false, but no lists."""
        with self._lock:
            names = [run.name for run in self.root.runs() if run.experiment]
            self._asked = {name: self._keys_of(name) for name in names}
            return {name: keys for name, (_, keys) in self._asked.items()}

    def _keys_of(self, name: str) -> tuple[Stamp | None, dict[str, Any]]:
        try:
            with os.fdopen(self.root.open(name, EXPERIMENT), "rb") as file:
                stamp = Stamp.of(os.fstat(file.fileno()))
                known = self._asked.get(name)
                if known is not None and known[0] == stamp:
                    return known
                return stamp, plain_keys(file.read(1 << 20))
        except (NotHere, OSError):
            return None, {}

    def _running(self, run: RunFolder, locked: set[int] | None) -> bool:
        inode = lock_inode(self.root.path / run.name)
        if inode is not None and locked is not None:
            return inode in locked
        return run.log is not None and time.time() - run.log.modified / 1e9 < FRESH
