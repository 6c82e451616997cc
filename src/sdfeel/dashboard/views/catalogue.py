"""All runs below the root, looked at again only where something changed."""

import time
from collections import OrderedDict
from threading import Lock

from sdfeel.dashboard.logs.files import Root, RunFolder, Stamp
from sdfeel.dashboard.logs.locks import held, lock_inode
from sdfeel.dashboard.logs.log import LogReader
from sdfeel.dashboard.views.summary import Ends, Glance, glance, read_ends

FRESH = 20.0  # a log without a lock that changed so many seconds ago is being written
OPEN = 48  # logs of which the thinned content stays in memory


class Catalogue:
    """What is known of the runs; safe to use from several threads."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lock = Lock()
        self._ends: dict[str, tuple[Stamp | None, Ends]] = {}
        self._readers: OrderedDict[str, LogReader] = OrderedDict()
        self._listed: tuple[float, list[Glance]] = (-1.0, [])

    def runs(self, age: float = 0.0) -> list[Glance]:
        """All runs by name; a list that is younger than `age` seconds is good enough."""
        with self._lock:
            now = time.monotonic()
            if self._listed[0] < 0 or now - self._listed[0] >= age:
                places = sorted(self.root.runs(), key=lambda place: place.name)
                self._ends = {p.name: self._known(p) for p in places}
                locked = held()
                found = [self._glance(place, locked) for place in places]
                self._listed = (time.monotonic(), found)
            return self._listed[1]

    def one(self, name: str) -> Glance:
        """One run; NotHere if there is none of this name."""
        place = self.root.place(name)
        with self._lock:
            self._ends[place.name] = self._known(place)
            return self._glance(place, held())

    def log(self, name: str) -> LogReader:
        """The newest content of a run's log."""
        name = self.root.place(name).name
        with self._lock:
            reader = self._readers.pop(name, None) or LogReader(self.root, name)
            self._readers[name] = reader
            while len(self._readers) > OPEN:
                self._readers.popitem(last=False)
        reader.refresh()
        return reader

    def _known(self, place: RunFolder) -> tuple[Stamp | None, Ends]:
        known = self._ends.get(place.name)
        if known is not None and known[0] == place.log:
            return known
        return place.log, read_ends(self.root, place)

    def _glance(self, place: RunFolder, locked: set[int] | None) -> Glance:
        ends = self._ends[place.name][1]
        running = ends.reason is None and self._running(place, locked)
        return glance(place, ends, running)

    def _running(self, place: RunFolder, locked: set[int] | None) -> bool:
        inode = lock_inode(self.root.path / place.name)
        if inode is not None and locked is not None:
            return inode in locked
        return place.log is not None and time.time() - place.log.modified / 1e9 < FRESH
