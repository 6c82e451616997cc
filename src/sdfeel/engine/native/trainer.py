"""Training tasks with a compiled model, in bounded memory."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import SdfeelError
from sdfeel.engine.base import Task, Workload
from sdfeel.engine.batches import Picker
from sdfeel.engine.dropout import key_of
from sdfeel.engine.native.library import Native, Tasks
from sdfeel.engine.task import diverged
from sdfeel.engine.threads import one_thread

# Buffers for trained models, per thread: few, so that models are still in the last cache when they
# are added up; several, so that no thread waits for the caller that adds.
EACH_CLIENTS = 12
ROOM_BYTES = 12 << 20


class Trainer:
    """Takes the local steps of loop.py with a library."""

    def __init__(
        self,
        native: Native,
        workload: Workload,
        row: int,  # numbers of a model
        threads: int,
        rooms: int | None = None,  # models that are in memory at once
    ) -> None:
        train, training = workload.train, workload.training
        self._library, self._training, self._row = native.library, training, row
        self._x, self._y = train.x.contiguous(), train.y.contiguous()
        self._picker = Picker(workload.parts, training.batch_size, workload.seed, len(train))
        self._key, self._threads, self._given_rooms = key_of(workload.seed), threads, rooms
        # Stands in for a missing shift where the library was compiled for shifts.
        self._unshifted = torch.zeros(row) if native.plan.shift else None
        self._spare: list[Tensor] = []  # memory for trained models: new pages cost time

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        block = self._block(tasks, self._rooms(len(tasks)))
        ahead, described = len(block.models) + self._threads, 0
        # One torch thread: adding models up must not take the cores that train.
        with one_thread(), self._library.stream(self._call(block), self._threads) as stream:
            for i, task in enumerate(tasks):
                while described < min(len(tasks), i + ahead):
                    self._describe(block, described)
                    described += 1
                    stream.describe(described)
                stream.wait(i)
                if not block.finite[i]:
                    raise diverged(task, self._training.learning_rate)
                yield block.models[i % len(block.models)]
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

    def prepared(self, tasks: Sequence[Task]) -> "Block":
        """Everything that C++ needs to train `tasks`, with a buffer for each model."""
        block = self._block(tasks, len(tasks))
        for i in range(len(tasks)):
            self._describe(block, i)
        return block

    def _block(self, tasks: Sequence[Task], rooms: int) -> "Block":
        room = self._room(rooms * self._row)
        return Block(tasks, room, room[: rooms * self._row].view(rooms, self._row))

    def _describe(self, block: "Block", i: int) -> None:
        """Write down everything that C++ needs to know about task `i`."""
        task = block.tasks[i]
        try:
            each = self._each(task.client)
            picked = self._picker.picked(task.client, task.first * each, task.steps * each)
            block.start_places[i] = self._placed(block, task.start)
            block.shift_places[i] = self._shift(block, task)
        except Exception as error:
            raise SdfeelError(
                f"client {task.client} failed in its local iteration {task.first}: "
                f"{type(error).__name__}: {error}"
            ) from error
        block.picked[i] = picked
        block.picked_places[i] = picked.__array_interface__["data"][0]  # ctypes.data, but fast
        block.clients[i], block.first[i] = task.client, task.first * each
        block.steps[i], block.sizes[i] = picked.shape
        block.rates[i] = self._training.learning_rate * task.rate

    def _shift(self, block: "Block", task: Task) -> int:
        """The address of what is added to the task's gradients; 0 where nothing ever is."""
        if self._unshifted is not None:
            return self._placed(block, self._unshifted if task.shift is None else task.shift)
        assert task.shift is None, "compiled without shifts"
        return 0

    def _placed(self, block: "Block", row: Tensor) -> int:
        """The address of a row for C++, which checks no sizes."""
        if id(row) not in block.rows:
            if row.shape != (self._row,):
                raise ValueError(f"a model of {tuple(row.shape)} where ({self._row},) is needed")
            block.rows[id(row)] = row.to(torch.float32).contiguous()
        return block.rows[id(row)].data_ptr()

    def _room(self, size: int) -> Tensor:
        """(size or more,) memory that nobody else writes to."""
        fits = [room for room in self._spare if len(room) >= size]
        self._spare = fits[1:]
        return fits[0] if fits else torch.empty(size)

    def trained(self, block: "Block", threads: int | None = None) -> "Block":
        """`block`, which has a buffer for each of its tasks, with its models trained."""
        self._library.train(self._call(block), threads or self._threads)
        return block

    def _call(self, block: "Block") -> Tasks:
        options = self._training.options
        return Tasks(
            count=len(block.tasks),
            starts=block.start_places.ctypes.data,
            shifts=None if self._unshifted is None else block.shift_places.ctypes.data,
            models=block.models.data_ptr(),
            rooms=block.models.shape[0],
            parameters=block.models.shape[1],
            clients=block.clients.ctypes.data,
            first=block.first.ctypes.data,
            steps=block.steps.ctypes.data,
            sizes=block.sizes.ctypes.data,
            picked=block.picked_places.ctypes.data,
            x=self._x.data_ptr(),
            y=self._y.data_ptr(),
            key=self._key,
            rates=block.rates.ctypes.data,
            momentum=options.get("momentum") or 0.0,
            decay=options.get("weight_decay") or 0.0,
            finite=block.finite.ctypes.data,
        )

    def _each(self, client: int) -> int:
        """Mini-batches in one local iteration of a client."""
        return 1 if self._training.iteration == "batch" else self._picker.passes(client)


class Block:
    """What one stream trains. It owns all memory that the C++ side sees."""

    def __init__(self, tasks: Sequence[Task], room: Tensor, models: Tensor) -> None:
        self.tasks, self.room = tasks, room
        self.models = models  # (rooms, P) in `room`; task i's is i modulo rooms
        self.rows: dict[int, Tensor] = {}  # starts and shifts by their id: many share one
        self.picked: dict[int, Ints] = {}  # (steps, B) rows of the data, by task
        count = len(tasks)
        self.start_places = np.zeros(count, dtype=np.uintp)  # addresses in `rows`
        self.shift_places = np.zeros(count, dtype=np.uintp)
        self.picked_places = np.zeros(count, dtype=np.uintp)  # addresses of `picked`
        self.clients, self.first, self.steps, self.sizes = np.zeros((4, count), dtype=np.int64)
        self.rates = np.zeros(count, dtype=np.float32)
        self.finite = np.zeros(count, dtype=np.uint8)
