"""A run at a glance, for the list: from the two ends of its log, however long it is."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from sdfeel.core.events import Evaluated, Finished, Round, Started
from sdfeel.core.json_values import finite
from sdfeel.core.run_files import EVENTS
from sdfeel.dashboard.logs.files import NotHere, Root, RunFolder
from sdfeel.dashboard.logs.parsing import HEAD, parse

State = Literal["running", "finished", "stopped", "waiting", "damaged"]
BLOCK, DEEPEST = 1 << 14, 1 << 20  # bytes of an end that are read at first, and at most
SCHEME = re.compile(rb'^\{"event": "started", "scheme": "([^"\\]{1,100})"')
SEED = re.compile(rb'"seed": (\d{1,18})\b')


@dataclass(frozen=True)
class Ends:
    """What the two ends of a log tell."""

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
class Glance:
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


def glance(place: RunFolder, ends: Ends, running: bool) -> Glance:
    """A run's row, from what is known of its log and of who is at work."""
    return Glance(
        name=place.name,
        folder=str(PurePosixPath(place.name).parent),
        kind="deployed" if place.nodes else "simulated",
        state=_state(place, ends, running),
        modified=place.log.modified / 1e9 if place.log else 0.0,
        ends=ends,
    )


def _state(place: RunFolder, ends: Ends, running: bool) -> State:
    if ends.damaged:
        return "damaged"
    if ends.reason is not None:
        return "finished"
    if running:
        return "running"
    return "stopped" if place.log is not None else "waiting"


def read_ends(root: Root, place: RunFolder) -> Ends:
    """Look at the beginning and the end of a log."""
    if place.log is None:
        return Ends()
    try:
        with os.fdopen(root.open(place.name, EVENTS), "rb") as file:
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
    """Scheme and seed; a first line may be long, for it lists where the clients belong."""
    for line in head.split(b"\n"):
        event = parse(line)
        if isinstance(event, Started):
            return event.scheme, event.seed
        found = SCHEME.match(line)
        if found is not None:
            seed = SEED.search(line)
            return found[1].decode(errors="replace"), int(seed[1]) if seed else None
    return "unknown", None
