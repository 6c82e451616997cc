"""Training tasks with a compiled model, in bounded memory and without torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Ints, Singles
from sdfeel.core.errors import SdfeelError
from sdfeel.core.seeds import number
from sdfeel.engine.batches import DROPOUT, Picker
from sdfeel.engine.native.library import Library, Tasks
from sdfeel.engine.tasks import TaskOf, diverged

if TYPE_CHECKING:
    from sdfeel.engine.base import Training, Workload

# Buffers for trained models, per thread: few, so that models are still in the last cache when they
# are added up; several, so that no thread waits for the caller that adds.
EACH_CLIENTS = 12
ROOM_BYTES = 12 << 20

ADAMW_DECAY = 0.01  # torch's default


@dataclass(frozen=True)
class LocalStep:
    """The local step that libraries take: SGD's, or Adam's if they are compiled for it."""

    learning_rate: float
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    iteration: Literal["batch", "epoch"] = "batch"  # what one local iteration is
    first_average: float = 0.9  # Adam's: how much of it a step keeps
    second_average: float = 0.999
    epsilon: float = 1e-8
    own_decay: float = 0.0  # AdamW's: apart from the gradient

    @classmethod
    def of(cls, training: "Training") -> "LocalStep":
        options, decoupled = training.options, training.optimizer.lower() == "adamw"
        first, second = options.get("betas", (cls.first_average, cls.second_average))
        return cls(
            training.learning_rate,
            training.batch_size,
            options.get("momentum") or 0.0,
            0.0 if decoupled else options.get("weight_decay") or 0.0,
            training.iteration,
            first,
            second,
            options.get("eps", cls.epsilon),
            (options.get("weight_decay", ADAMW_DECAY) or 0.0) if decoupled else 0.0,
        )

    def numbers(self) -> dict[str, float]:
        """What C++ is told about it, in addition to the rate of each task."""
        return {
            "momentum": self.momentum,
            "decay": self.weight_decay,
            "first_average": self.first_average,
            "second_average": self.second_average,
            "epsilon": self.epsilon,
            "own_decay": self.own_decay,
        }


@dataclass(frozen=True, eq=False)
class Lessons:
    """What a trainer learns from, and how."""

    x: Singles | Ints  # (N, ...) numbers, or words
    y: Ints | Singles  # (N,) class numbers, or (N, ...) numbers
    parts: Sequence[Ints]  # each client's rows of both
    step: LocalStep
    seed: int

    @classmethod
    def of(cls, workload: "Workload") -> "Lessons":
        """The same numbers in the same memory."""
        train, training = workload.train, workload.training
        x, y = train.x.contiguous().numpy(), train.y.contiguous().numpy()
        return cls(x, y, workload.parts, LocalStep.of(training), workload.seed)


class Trainer:
    """Takes the local steps of loop.py with a library."""

    def __init__(
        self,
        library: Library,
        lessons: Lessons,
        row: int,  # numbers of a model
        threads: int,
        rooms: int | None = None,  # models that are in memory at once
        shift: bool = False,  # the library was compiled for tasks with shifts
    ) -> None:
        self._library, self._step, self._row = library, lessons.step, row
        self._x, self._y = lessons.x, lessons.y
        self._picker = Picker(lessons.parts, lessons.step.batch_size, lessons.seed, len(lessons.x))
        self._key, self._threads, self._given_rooms = number(lessons.seed, DROPOUT), threads, rooms
        # Stands in for a missing shift.
        self._unshifted = np.zeros(row, np.float32) if shift else None
        self._spare: list[Singles] = []  # memory for trained models: new pages cost time

    def train(self, tasks: Sequence[TaskOf[Any]]) -> Iterator[Singles]:
        """The trained models, in the order of `tasks`; each is valid until the next.

        Starts and shifts may be NumPy's or torch's.
        """
        block = self._block(tasks, self._rooms(len(tasks)))
        rooms = len(block.models)
        ahead, described = rooms + self._threads, 0
        some = max(1, rooms // 4)  # tasks that are described at a time
        with self._library.stream(self._call(block), self._threads) as stream:
            for i, task in enumerate(tasks):
                if described < min(len(tasks), i + ahead - some + 1):
                    for each in range(described, min(len(tasks), i + ahead)):
                        self._describe(block, each)
                        if i == 0:  # nobody has anything to do yet
                            stream.describe(each + 1)
                    described = min(len(tasks), i + ahead)
                    stream.describe(described)
                stream.wait(i)
                if not block.finite[i]:
                    raise diverged(task, self._step.learning_rate)
                yield block.models[i % rooms]
                if (i + 1) % some == 0:
                    stream.give_back(i + 1)
                block.picked.pop(i)
        self._spare.append(block.room)

    def release(self) -> None:
        """Free the working memory."""
        self._library.release()

    def _rooms(self, tasks: int) -> int:
        """How many trained models are kept at once; no result depends on it."""
        if self._given_rooms is not None:
            return self._given_rooms
        each = min(EACH_CLIENTS, max(1, ROOM_BYTES // (4 * self._row * self._threads)))
        return min(tasks, each * self._threads + 1)

    def prepared(self, tasks: Sequence[TaskOf[Any]]) -> "Block":
        """All that C++ needs to train `tasks`, with a room for each model."""
        block = self._block(tasks, len(tasks))
        for i in range(len(tasks)):
            self._describe(block, i)
        return block

    def _block(self, tasks: Sequence[TaskOf[Any]], rooms: int) -> "Block":
        room = self._room(rooms * self._row)
        return Block(tasks, room, room[: rooms * self._row].reshape(rooms, self._row))

    def _describe(self, block: "Block", i: int) -> None:
        """Write down everything that C++ needs to know about task `i`."""
        task = block.tasks[i]
        try:
            each = self._batches_per_iteration(task.client)
            picked = self._picker.picked(task.client, task.first * each, task.steps * each)
            block.start_places[i] = self._placed(block, task.start)
            block.shift_places[i] = self._shift(block, task)
        except Exception as error:
            raise SdfeelError(
                f"client {task.client} failed in its local iteration {task.first}: "
                f"{type(error).__name__}: {error}"
            ) from error
        block.picked[i] = picked
        block.picked_places[i] = _address(picked)
        block.clients[i], block.first[i] = task.client, task.first * each
        block.steps[i], block.sizes[i] = picked.shape
        block.rates[i] = self._step.learning_rate * task.rate

    def _shift(self, block: "Block", task: TaskOf[Any]) -> int:
        """The address of what is added to the task's gradients; 0 where nothing ever is."""
        if self._unshifted is not None:
            return self._placed(block, self._unshifted if task.shift is None else task.shift)
        assert task.shift is None, "compiled without shifts"
        return 0

    def _placed(self, block: "Block", row: Any) -> int:
        """The address of a row for C++, which checks no sizes."""
        if id(row) not in block.rows:
            if tuple(row.shape) != (self._row,):
                raise ValueError(f"a model of {tuple(row.shape)} where ({self._row},) is needed")
            block.rows[id(row)] = np.ascontiguousarray(row, np.float32)
        return _address(block.rows[id(row)])

    def _room(self, size: int) -> Singles:
        """(size or more,) memory that nobody else writes to."""
        fits = [room for room in self._spare if len(room) >= size]
        self._spare = fits[1:]
        return fits[0] if fits else np.empty(size, np.float32)

    def trained(self, block: "Block", threads: int | None = None) -> "Block":
        """`block`, which has a buffer for each of its tasks, with its models trained."""
        self._library.train(self._call(block), threads or self._threads)
        return block

    def _call(self, block: "Block") -> Tasks:
        return Tasks(
            count=len(block.tasks),
            starts=block.start_places.ctypes.data,
            shifts=None if self._unshifted is None else block.shift_places.ctypes.data,
            models=block.models.ctypes.data,
            rooms=block.models.shape[0],
            parameters=block.models.shape[1],
            clients=block.clients.ctypes.data,
            first=block.first.ctypes.data,
            steps=block.steps.ctypes.data,
            sizes=block.sizes.ctypes.data,
            picked=block.picked_places.ctypes.data,
            x=self._x.ctypes.data,
            y=self._y.ctypes.data,
            key=self._key,
            rates=block.rates.ctypes.data,
            finite=block.finite.ctypes.data,
            **self._step.numbers(),
        )

    def _batches_per_iteration(self, client: int) -> int:
        """Mini-batches in one local iteration of a client."""
        return 1 if self._step.iteration == "batch" else self._picker.passes(client)


class Block:
    """What one stream trains. It owns all memory that the C++ side sees."""

    def __init__(self, tasks: Sequence[TaskOf[Any]], room: Singles, models: Singles) -> None:
        self.tasks, self.room = tasks, room
        self.models = models  # (rooms, P) in `room`; task i's is i modulo rooms
        self.rows: dict[int, Singles] = {}  # starts and shifts by their id: many share one
        self.picked: dict[int, Ints] = {}  # (steps, B) rows of the data, by task
        count = len(tasks)
        self.start_places = np.zeros(count, dtype=np.uintp)  # addresses in `rows`
        self.shift_places = np.zeros(count, dtype=np.uintp)
        self.picked_places = np.zeros(count, dtype=np.uintp)  # addresses of `picked`
        self.clients, self.first, self.steps, self.sizes = np.zeros((4, count), dtype=np.int64)
        self.rates = np.zeros(count, dtype=np.float32)
        self.finite = np.zeros(count, dtype=np.uint8)


def _address(array: NDArray[Any]) -> int:
    """array.ctypes.data, but fast."""
    found: int = array.__array_interface__["data"][0]
    return found
