"""Lanes that do not wait for one another are trained together, so that no core waits for them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, TypeVar

from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.engine.base import Engine, Task

EACH_WORKER = 16  # models trained ahead; the more, the less often workers wait for one another
ROOM_BYTES = 256e6  # but no more than this

Coming = Callable[[int], Iterator[tuple[int, list[Task]]]]  # the next lanes, and their tasks
Key = tuple[int, int, int]  # of a task: lane, client, local iterations before it


Queued = TypeVar("Queued", bound=tuple[Any, ...])


def in_order(heap: Sequence[Queued]) -> Iterator[Queued]:
    """The items of a heap, smallest first; each takes the logarithm of those before it."""
    front = [(heap[0], 0)] if heap else []
    while front:
        item, n = heappop(front)
        yield item
        for child in range(2 * n + 1, min(2 * n + 3, len(heap))):
            heappush(front, (heap[child], child))


class Ahead:
    """Trains the lanes whose rounds end next while there are free cores; the same bits.

    What a lane trains from is fixed when its round begins, and a model depends only on its task. So
    results are computed before they are needed, in any order, and kept until then. Whatever goes
    wrong with a task is reported when its own lane asks for it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # An engine that trains while it is asked for other things keeps training between two
        # rounds.
        self._open: bool = getattr(engine, "trains_beside", False)
        self._workers: int = getattr(engine, "workers", 1)
        self._ready: dict[Key, tuple[Task, Tensor]] = {}
        self._expected: list[tuple[Key, Task]] = []  # still to come from `_models`, last one first
        self._pending: set[Key] = set()  # their keys
        self._models: Iterator[Tensor] = iter(())

    def train(self, lane: int, tasks: Sequence[Task], coming: Coming) -> Iterator[Tensor]:
        """The models of a lane's tasks, in order; each is valid until the next."""
        if self._workers == 1:
            yield from self._engine.train(tasks)
            return
        for n, task in enumerate(tasks):
            found = self._found(lane, task)
            if found is None:
                self._begin(lane, tasks[n:], coming)
                found = self._found(lane, task)
            if found is None:  # it failed while others were collected: let it raise its error
                yield from self._engine.train([task])
            else:
                yield found

    def _found(self, lane: int, task: Task) -> Tensor | None:
        """The model, if it was trained, or is in training."""
        key = _key(lane, task)
        if key in self._pending:
            self._collect(key)
        before, model = self._ready.pop(key, (None, None))
        return model if before is not None and _alike(before, task) else None

    def _begin(self, lane: int, tasks: Sequence[Task], coming: Coming) -> None:
        """Train these tasks, and others that will be needed soon."""
        self._collect(None)
        row = max(1, tasks[0].start.numel() * tasks[0].start.element_size())
        most = int(min(self._workers * EACH_WORKER, max(self._workers, ROOM_BYTES // row)))
        chosen, known = [(lane, task) for task in tasks], {each for each, _, _ in self._ready}
        for other, theirs in coming(len(known) + most + 1):
            if len(chosen) + len(self._ready) >= most:
                break
            if other != lane and other not in known:
                chosen += [(other, task) for task in theirs]
        self._expected = [(_key(*each), each[1]) for each in chosen[::-1]]
        self._pending = {key for key, _ in self._expected}
        self._models = self._engine.train([task for _, task in chosen])
        if not self._open:
            self._collect(None)

    def _collect(self, until: Key | None) -> None:
        """Take models as they come, up to this one; None: all."""
        while self._expected:
            key, task = self._expected[-1]
            try:
                self._ready[key] = task, next(self._models).clone()
            except SdfeelError:
                self._expected, self._pending = [], set()
                if key == until:
                    raise
                return  # not an error of the lane that asks now: its own will raise it
            self._expected.pop()
            self._pending.remove(key)
            if not self._expected:
                with suppress(StopIteration):
                    next(self._models)  # let it end, so that it tidies up
            if key == until:
                return


def _key(lane: int, task: Task) -> Key:
    return lane, task.client, task.first


def _alike(one: Task, other: Task) -> bool:
    """Is it the same task? Its start and its shift are the lane's, and fixed."""
    return (one.steps, one.rate, one.pull) == (other.steps, other.rate, other.pull) and (
        one.own is other.own
    )
