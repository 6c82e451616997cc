"""Training a crowd with a compiled model: examples, steps and sums without Python in between."""

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Floats, Ints, Singles
from sdfeel.core.errors import SdfeelError
from sdfeel.core.seeds import number, rng
from sdfeel.engine.batches import BATCHES, DROPOUT
from sdfeel.engine.native.library import Library, Tasks
from sdfeel.engine.native.trainer import Lessons
from sdfeel.engine.tasks import Crowd, TaskOf, diverged

STOPPED, NOT_YET = 4, 5  # of crowd.hpp: a task has failed; models are still being trained
CHUNK_BYTES, MOST_CHUNK = 1 << 17, 64  # models that a thread trains before it reports them
EACH_CHUNKS = 12  # chunks in memory for each thread, like Trainer's rooms
ROOM_BYTES = 12 << 20
ORDERED_BYTES = 256 << 20  # of starts and sums that are copied into the stages' own orders
NOBODYS, NO_SUMS = np.zeros(0, dtype=np.int64), np.zeros((0, 0))
NO_OPENINGS = np.zeros(0, np.uint8)
NO_BYTES = ctypes.c_char * 0  # a view of no bytes, to ask for its address


class CrowdCall(ctypes.Structure):
    """Kept in step with `SdfeelCrowd` of crowd.hpp."""

    _fields_ = (
        ("tasks", Tasks),
        ("parts", ctypes.c_void_p),
        ("part_sizes", ctypes.c_void_p),
        ("examples", ctypes.c_int64),
        ("seed", ctypes.c_void_p),
        ("words", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("begins", ctypes.c_void_p),
        ("into", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("opens", ctypes.c_void_p),
        ("totals", ctypes.c_void_p),
        ("updates", ctypes.c_int64),
        ("ordered", ctypes.c_int64),
        ("alone", ctypes.c_void_p),
    )


class Crowds:
    """Adds the models of crowds to sums."""

    def __init__(self, library: Library, lessons: Lessons, row: int, threads: int) -> None:
        self._library, self._lessons, self._row, self._threads = library, lessons, row, threads
        self._key = number(lessons.seed, DROPOUT)
        self._spare: list[tuple[Singles, Floats]] = []  # memory of `_turned`: new pages cost time
        self._last: weakref.ref[Gathered] | None = None  # the crowd before the next one
        self._seed = np.array(_words(lessons.seed) + _words(crc32(BATCHES.encode())), np.uint32)

    @cached_property
    def fits(self) -> bool:
        """Does C++ shuffle as this NumPy does, and round once?"""
        seed = self._lessons.seed
        addresses = [(0, 0), (1, 3), (123_456, 7), (2**33, 1)]
        return self._library.fuses and all(
            np.array_equal(
                self.shuffled(np.arange(count), *address),
                rng(seed, BATCHES, *address).permutation(np.arange(count)),
            )
            for address in addresses
            for count in (1, 2, 11, 600)
        )

    def shuffled(self, rows: Ints, client: int, turn: int) -> Ints:
        """`rows` in the order of a client's pass."""
        found = np.array(rows, dtype=np.int64)
        self._library.functions.sdfeel_shuffle(
            ctypes.c_void_p(self._seed.ctypes.data),
            ctypes.c_int64(len(self._seed)),
            ctypes.c_uint64(client),
            ctypes.c_uint64(turn),
            ctypes.c_void_p(found.ctypes.data),
            ctypes.c_int64(len(found)),
        )
        return found

    def gather(self, crowd: Crowd, totals: Floats | Sequence[Singles]) -> "Gathered":
        """Begin to train a crowd, whose models will be added up in the rows of `totals`.

        If another crowd is still in training, its threads come over when they have nothing left to
        do.
        """
        if isinstance(totals, np.ndarray):
            assert totals.flags.c_contiguous
            assert totals.dtype == np.float64
            return self._gather(crowd, totals, None)
        assert crowd.alone
        return self._gather(crowd, NO_SUMS, totals)

    def _gather(self, crowd: Crowd, totals: Floats, alone: Sequence[Singles] | None) -> "Gathered":
        count = len(crowd.clients)
        sizes = np.minimum(self._lessons.step.batch_size, self._part_sizes[crowd.clients])
        each = self._batches_per_iteration(crowd.clients, sizes)
        chunk = max(1, min(MOST_CHUNK, CHUNK_BYTES // (4 * self._row), count // self._threads // 8))
        ring = max(2, min(EACH_CHUNKS * self._threads, ROOM_BYTES // (4 * self._row * chunk)))
        models = np.empty((chunk * min(ring + 1, -(-count // chunk)), self._row), np.float32)
        own = self._turned(crowd, totals) if alone is None else None
        rows, sums = (crowd.starts, totals) if own is None else own
        starts = [np.ascontiguousarray(row, np.float32) for row in rows]
        kept: dict[str, NDArray[Any]] = {
            "starts": np.array(list(map(_address, starts)), np.uintp)[crowd.start],
            "clients": _numbers(crowd.clients),
            "first": _numbers(crowd.first * each),
            "steps": _numbers(crowd.steps * each),
            "sizes": _numbers(sizes),
            "picked": np.zeros(count, np.uintp),
            "rates": (self._lessons.step.learning_rate * crowd.rates).astype(np.float32),
            "finite": np.zeros(count, np.uint8),
        }
        tasks = Tasks(
            count=count,
            shifts=None,
            models=_address(models),
            rooms=len(models),
            parameters=self._row,
            x=_address(self._lessons.x),
            y=_address(self._lessons.y),
            key=self._key,
            **self._lessons.step.numbers(),
            **{name: _address(array) for name, array in kept.items()},
        )
        into = _numbers(crowd.into)
        entries: dict[str, NDArray[Any]] = {
            "begins": _numbers(crowd.begins),
            "into": into,
            "weights": np.ascontiguousarray(crowd.weights),
            "opens": _opening(into, len(totals)) if alone is None else NO_OPENINGS,
            "alone": np.array(list(map(_address, alone or ())), np.uintp),
        }
        call = CrowdCall(
            tasks=tasks,
            parts=_address(self._places),
            part_sizes=_address(self._part_sizes),
            examples=len(self._lessons.x),
            seed=_address(self._seed),
            words=len(self._seed),
            chunk=chunk,
            totals=_address(sums),
            updates=crowd.updates,
            ordered=own is not None,
            **{name: _address(array) for name, array in entries.items() if len(array)},
        )

        def restore(begin: int, end: int) -> None:
            complete = _closing(into, crowd.begins[begin], crowd.begins[end])
            self._library.restore(sums, totals, complete, self._threads)

        def end() -> None:
            if own is not None:
                self._spare = [own]

        gathered = Gathered(
            self._library,
            call,
            self._threads,
            (models, starts, totals, sums, alone, kept, entries),
            CrowdEndings(lambda: self._failed(crowd, kept["finite"]), own and restore, end),
            None if self._last is None else self._last(),
        )
        self._last = weakref.ref(gathered)
        return gathered

    def _turned(self, crowd: Crowd, totals: Floats) -> tuple[Singles, Floats] | None:
        """The starts in the orders of the model's stages, and memory for sums in these orders.

        None if that is more work than rearranging every model twice.
        """
        count, shape = len(crowd.starts), (len(crowd.starts), self._row)
        small = 4 * count * self._row + totals.nbytes <= ORDERED_BYTES
        few = 4 * (count + len(totals)) <= len(crowd.clients)
        if not (self._library.orders and small and few):
            return None
        starts = np.ascontiguousarray(crowd.starts, np.float32)
        room, sums = self._spare.pop() if self._spare else (starts[:0], totals[:0])
        if room.shape != shape:
            room = np.empty_like(starts)
        if sums.shape != totals.shape:
            sums = np.empty_like(totals)
        self._library.order(starts, room, np.unique(_numbers(crowd.start)), self._threads)
        return room, sums

    def _failed(self, crowd: Crowd, finite: NDArray[np.uint8]) -> SdfeelError:
        """The error of the first task that failed: the same as a single task's."""
        n = int((finite != 1).argmax())
        client, first, steps = int(crowd.clients[n]), int(crowd.first[n]), int(crowd.steps[n])
        if finite[n] == 0:
            task = TaskOf(client, None, steps, first, float(crowd.rates[n]))
            return diverged(task, self._lessons.step.learning_rate)
        return SdfeelError(
            f"client {client} failed in its local iteration {first}: IndexError: it has rows "
            f"beyond the {len(self._lessons.x)} examples"
        )

    def _batches_per_iteration(self, clients: Ints, sizes: Ints) -> Ints:
        """Mini-batches in one local iteration of each client."""
        if self._lessons.step.iteration == "batch":
            return np.ones(len(clients), dtype=np.int64)
        return _numbers(self._part_sizes[clients] // sizes)

    @cached_property
    def _part_sizes(self) -> Ints:
        return np.fromiter(map(len, self._lessons.parts), np.int64, len(self._lessons.parts))

    @cached_property
    def _rows(self) -> Ints:
        """All clients' rows, one client's after another's."""
        parts = [NOBODYS, *self._lessons.parts]
        return _numbers(np.concatenate(parts, dtype=np.int64, casting="unsafe"))

    @cached_property
    def _places(self) -> NDArray[np.uintp]:
        """(C,) the address of each client's rows; asking every array would take far longer."""
        before = np.cumsum(self._part_sizes) - self._part_sizes
        return (_address(self._rows) + self._rows.itemsize * before).astype(np.uintp)


@dataclass(frozen=True)
class CrowdEndings:
    """What is called when a task has failed, when tasks were added, and when the crowd is over."""

    failed: Callable[[], SdfeelError]
    added: Callable[[int, int], None] | None  # tasks from the first to before the second
    over: Callable[[], None]


class Gathered:
    """A crowd in training."""

    def __init__(
        self,
        library: Library,
        call: CrowdCall,
        threads: int,
        memory: object,  # what C++ reads and writes
        ends: CrowdEndings,
        before: "Gathered | None" = None,  # whose threads it gets
    ) -> None:
        self._library, self._threads, self._ends = library, threads, ends
        self._count, functions = int(call.tasks.count), library.functions
        self._folded = self._added = 0  # what was asked for, and what is there
        functions.sdfeel_gather.restype = ctypes.c_void_p
        functions.sdfeel_fold.restype = ctypes.c_int64
        after = None if before is None else before.here
        self._handle = ctypes.c_void_p(functions.sdfeel_gather(ctypes.byref(call), threads, after))
        self._process = os.getpid()
        # Dropping it ends it, so that no thread writes to memory that is gone.
        self.close = weakref.finalize(
            self, _disperse, functions, self._handle, self._process, memory, ends.over
        )

    @property
    def here(self) -> ctypes.c_void_p | None:
        """Its handle in C++; None if it is over, or if its threads belong to the parent process."""
        return self._handle if self.close.alive and self._process == os.getpid() else None

    def fold(self, until: int | None = None) -> None:
        """Add up the models of all tasks before `until` (default: all), in their order."""
        last, fold = self._count if until is None else until, self._library.functions.sdfeel_fold
        while self._added < last:  # in between, somebody may press Ctrl-C
            found = fold(self._handle, ctypes.c_int64(last))
            if found == -STOPPED:
                raise self._ends.failed()
            if found != -NOT_YET:
                self._library.check(max(-found, 0), self._threads)
                self._added = found
        if self._ends.added is not None and last > self._folded:
            self._ends.added(self._folded, last)
        self._folded = max(last, self._folded)


def _disperse(
    functions: ctypes.CDLL,
    handle: ctypes.c_void_p,
    process: int,
    memory: object,
    over: Callable[[], None],
) -> None:
    if os.getpid() == process:  # a forked process has none of the threads to wait for
        functions.sdfeel_disperse(handle)
        over()


def _closing(into: Ints, begin: int, end: int) -> Ints:
    """The sums whose last entry is one of these: threads may be adding to all others."""
    return np.setdiff1d(into[begin:end], into[end:])


def _opening(into: Ints, sums: int) -> NDArray[np.uint8]:
    """(E,) 1 where an entry is the first of its sum."""
    first = np.full(sums, -1)
    first[into[::-1]] = np.arange(len(into))[::-1]  # in reverse: the first stays
    found = np.zeros(len(into), np.uint8)
    found[first[first >= 0]] = 1
    return found


def _address(array: NDArray[Any]) -> int:
    """array.ctypes.data, but fast."""
    try:
        return ctypes.addressof(NO_BYTES.from_buffer(array.data))
    except TypeError:  # it is to be read only
        found: int = array.__array_interface__["data"][0]
        return found


def _numbers(array: Ints) -> Ints:
    return np.ascontiguousarray(array, np.int64)


def _words(number: int) -> list[int]:
    """A number in words of 32 bits, the lowest first, as NumPy seeds its generators."""
    words = [number & 0xFFFFFFFF]
    while number := number >> 32:
        words.append(number & 0xFFFFFFFF)
    return words
