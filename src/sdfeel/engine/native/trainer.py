"""Training tasks with a compiled model: block by block, in bounded memory."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import SdfeelError
from sdfeel.data.examples import Examples
from sdfeel.engine.base import Task
from sdfeel.engine.dropout import key_of
from sdfeel.engine.loop import Training, diverged
from sdfeel.engine.native.indices import Picker
from sdfeel.engine.native.library import Library, Tasks
from sdfeel.engine.threads import one_thread

# Trained by each thread in one call: few, so that the sums of one block are made while the next
# one trains and its models are still in the last cache; several, so that threads end together.
EACH_CLIENTS = 12
BLOCK_BYTES = 6 << 20


class Trainer:
    """Takes the local steps of loop.py with a library."""

    def __init__(
        self,
        library: Library,
        train: Examples,
        parts: Sequence[Ints],
        training: Training,
        seed: int,
        row: int,  # numbers of a model
        threads: int,
        block: int | None = None,  # clients trained in one call
    ) -> None:
        self._library, self._training, self._row = library, training, row
        self._x, self._y = train.x.contiguous(), train.y.contiguous()
        self._picker = Picker(parts, training.batch_size, seed, len(train))
        self._key, self._threads, self._given_block = key_of(seed), threads, block
        self._spare: list[Tensor] = []  # memory for a block's models: new pages cost time

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        # While C++ trains one block, this thread prepares the next and hands out the last.
        # One torch thread: whoever adds the models up shall not take the cores that train.
        size = self._block(len(tasks))
        with one_thread(), ThreadPoolExecutor(max_workers=1) as background:
            running = None
            for begin in range(0, len(tasks), size):
                block = self.prepared(tasks[begin : begin + size])
                done = running.result() if running is not None else None
                running = background.submit(self.trained, block)
                if done is not None:
                    yield from self._rows(done)
            if running is not None:
                yield from self._rows(running.result())

    def _block(self, tasks: int) -> int:
        """How many tasks make a block; no result depends on it."""
        if self._given_block is not None:
            return self._given_block
        each = min(EACH_CLIENTS, max(1, BLOCK_BYTES // (4 * self._row * self._threads)))
        blocks = max(1, ceil(tasks / (each * self._threads)))
        return self._threads * ceil(tasks / (blocks * self._threads)) or 1

    def prepared(self, tasks: Sequence[Task]) -> "Block":
        """All that C++ needs to train `tasks`."""
        starts, picked, first = [], [], []
        for task in tasks:
            try:
                each = self._each(task.client)
                picks = self._picker.picked(task.client, task.first * each, task.steps * each)
                starts.append(self._checked(task.start))
            except Exception as error:
                raise SdfeelError(
                    f"client {task.client} failed in its local iteration {task.first}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            picked.append(picks)
            first.append(task.first * each)
        rate = self._training.learning_rate
        room = self._room(len(tasks) * self._row)
        return Block(
            tasks,
            starts,
            picked,
            start_places=np.array([start.data_ptr() for start in starts], dtype=np.uint64),
            picked_places=np.array([picks.ctypes.data for picks in picked], dtype=np.uint64),
            clients=np.array([task.client for task in tasks], dtype=np.int64),
            first=np.array(first, dtype=np.int64),
            steps=np.array([len(picks) for picks in picked], dtype=np.int64),
            sizes=np.array([picks.shape[1] for picks in picked], dtype=np.int64),
            rates=np.array([rate * task.rate for task in tasks], dtype=np.float32),
            room=room,
            models=room[: len(tasks) * self._row].view(len(tasks), self._row),
            finite=np.zeros(len(tasks), dtype=np.uint8),
        )

    def _checked(self, start: Tensor) -> Tensor:
        """`start` as C++ reads it, which looks at no size."""
        if start.shape != (self._row,):
            raise ValueError(f"a model of {tuple(start.shape)} where ({self._row},) is needed")
        return start.to(torch.float32).contiguous()

    def _room(self, size: int) -> Tensor:
        """(size or more,) memory that nobody else writes to."""
        fits = [room for room in self._spare if len(room) >= size]
        self._spare = fits[1:]
        return fits[0] if fits else torch.empty(size)

    def trained(self, block: "Block", threads: int | None = None) -> "Block":
        """`block` with its models trained."""
        options = self._training.options
        call = Tasks(
            count=len(block.tasks),
            starts=block.start_places.ctypes.data,
            models=block.models.data_ptr(),
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
        self._library.train(call, threads or self._threads)
        return block

    def _rows(self, block: "Block") -> Iterator[Tensor]:
        for task, model, finite in zip(block.tasks, block.models, block.finite, strict=True):
            if not finite:
                raise diverged(task, self._training)
            yield model
        self._spare.append(block.room)

    def _each(self, client: int) -> int:
        """Mini-batches in one local iteration of a client."""
        return 1 if self._training.iteration == "batch" else self._picker.passes(client)


@dataclass(frozen=True, eq=False)
class Block:
    """What one call trains. It owns all memory that the C++ side sees."""

    tasks: Sequence[Task]
    starts: list[Tensor]
    picked: list[Ints]
    start_places: NDArray[np.uint64]  # addresses of `starts`
    picked_places: NDArray[np.uint64]  # addresses of `picked`
    clients: Ints
    first: Ints
    steps: Ints
    sizes: Ints
    rates: NDArray[np.float32]
    room: Tensor
    models: Tensor  # (tasks, P) the trained models, in `room`
    finite: NDArray[np.uint8]
