"""The loop engine on all cores: the same bits from any number of workers.

Workers are forked, so they share the data without copying it, know classes that exist only in a
notebook, and need no main guard. Clients go out in blocks; a block's models lie in a slot of
shared memory, where the worker replaces each start by the trained model. Behind them lie the
shifts of those tasks that have one. Blocks may finish in any order but are handed out in order.
"""

import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from traceback import format_exc
from typing import Any

import torch
from torch import Tensor

from sdfeel.core.errors import Diverged, SdfeelError, told
from sdfeel.core.forks import forked
from sdfeel.engine.base import OverWorkers, Scores, Task, one_thread
from sdfeel.engine.evaluate import Tally, total
from sdfeel.engine.loop import LoopEngine

CLIENTS_PER_BLOCK = 8  # enough that a message costs little compared with the work
SLOT_BYTES = 64e6  # but no more than this in one slot
BLOCKS_PER_WORKER = 2  # one in work, one waiting
PATIENCE = 3  # workers that may die over the same block

# of a block's task: the row that it starts from, client, steps, first, rate, is it shifted? pull
Order = tuple[int, int, int, int, float, bool, float]
# of a worker: which slot, "done" or an error's kind, the result or the error's text and trace
Answer = tuple[int, str, Any]


class ParallelEngine(OverWorkers):
    """A loop engine, forked into `workers` processes of one thread each."""

    name = "parallel"
    works_ahead = True  # keeps training while the caller uses a model

    def __init__(self, engine: LoopEngine, workers: int) -> None:
        super().__init__(engine)
        self._loop = engine
        self._pool = WorkerPool(engine, workers)

    @property
    def workers(self) -> int:
        """Models that are trained at the same time."""
        return self._pool.size

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        blocks = even(tasks, self._pool.rows, self._pool.size)
        jobs = [training(block, self._pool.rows) for block in blocks]
        with one_thread():  # torch's idle threads spin, and would occupy the workers' cores
            for block, (slot, _) in zip(blocks, self._pool.run(jobs), strict=True):
                yield from slot[: len(block)]

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        """Like the loop engine's."""
        return self._loop.loss_and_gradient(client, model, step)

    def evaluate(self, model: Tensor) -> Scores:
        """Blocks of examples over the workers, summed in order."""
        if self._loop.metrics:  # the user's metrics need all outputs in one place
            return self._loop.evaluate(model)
        loss, _ = self._measure(model, "measured")
        test_loss, accuracy = self._measure(model, "test")
        return Scores(loss, test_loss, accuracy)

    def _measure(self, model: Tensor, which: str) -> tuple[float, float | None]:
        blocks = self._loop.blocks(which)
        share = -(-blocks // (self._pool.size * BLOCKS_PER_WORKER))
        spans = [(which, n, min(n + share, blocks)) for n in range(0, blocks, share)]
        jobs = [Job("evaluate", span, {0: model}) for span in spans]
        found: list[Tally] = []
        with one_thread():
            for _, part in self._pool.run(jobs):
                found += part
        return total(found)

    def close(self) -> None:
        """End the workers; the next call of train or evaluate starts new ones."""
        self._pool.close()


@dataclass(eq=False)
class Job:
    """One order to a worker, and the models it needs, by their rows in the slot."""

    what: str
    details: Any
    models: dict[int, Tensor]
    deaths: int = 0
    slot: int = -1
    answer: Answer | None = None


def even(tasks: Sequence[Task], most: int, workers: int) -> list[Sequence[Task]]:
    """Blocks of at most `most` tasks and nearly equal sizes, the same number for each worker.

    The larger ones come first, so that all workers end at about the same time.

    >>> [len(block) for block in even(range(50), 8, 2)]
    [7, 7, 6, 6, 6, 6, 6, 6]
    """
    count = -(-len(tasks) // most)
    count = min(len(tasks), -(-count // workers) * workers)
    size, larger = divmod(len(tasks), count) if count else (0, 0)
    ends = [n * size + min(n, larger) for n in range(count + 1)]
    return [tasks[a:b] for a, b in pairwise(ends)]


def training(block: Sequence[Task], rows: int) -> Job:
    """The order to train a block: its models have the first `rows` of a slot, its shifts the rest.

    Clients of one server start from the same model, which is copied once: it lies in the row of
    the last client that needs it, whose own result is the first to be written over it.
    """
    last = {task.start.data_ptr(): n for n, task in enumerate(block)}
    shifts = {rows + n: task.shift for n, task in enumerate(block) if task.shift is not None}
    orders: list[Order] = [
        (last[t.start.data_ptr()], t.client, t.steps, t.first, t.rate, t.shift is not None, t.pull)
        for t in block
    ]
    return Job("train", orders, {n: block[n].start for n in last.values()} | shifts)


@dataclass(eq=False)
class Worker:
    """A process, and the jobs that it has."""

    process: Any
    pipe: Connection
    jobs: list[Job] = field(default_factory=list)


class InWorker(Exception):
    """The traceback of an error in a worker, as text: the object dies with the process."""


class WorkerPool:
    """Processes with one copy of the engine each, and slots of shared memory."""

    def __init__(self, engine: LoopEngine, size: int) -> None:
        self._engine, self.size = engine, size
        like = engine.initial()
        row_bytes = like.numel() * like.element_size()
        self.rows = max(1, min(CLIENTS_PER_BLOCK, int(SLOT_BYTES // row_bytes)))
        slots = size * BLOCKS_PER_WORKER
        # Shared with forked children. Half of it is for shifts and costs nothing until used.
        memory = mmap.mmap(-1, slots * 2 * self.rows * row_bytes)
        self._slots = torch.frombuffer(memory, dtype=like.dtype).view(slots, 2 * self.rows, -1)
        self._workers: list[Worker] = []
        self._owner = os.getpid()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Tensor, Any]]:
        """(slot, result) of each job, in the order of `jobs`; a slot is valid until the next."""
        if not self._workers:
            self._workers = [self._fork() for _ in range(self.size)]
        free = list(range(len(self._slots)))
        waiting = list(jobs)[::-1]
        try:
            for job in jobs:
                while job.answer is None:
                    while waiting and free:
                        self._submit(waiting.pop(), free.pop())
                    self._collect()
                slot, kind, result = job.answer
                if kind != "done":
                    text, trace = result
                    error = Diverged(text) if kind == "Diverged" else SdfeelError(text)
                    raise error from InWorker(trace)
                yield self._slots[slot], result
                free.append(slot)
        finally:
            self._forget()

    def _submit(self, job: Job, slot: int) -> None:
        job.slot = slot
        self._send(min(self._workers, key=lambda worker: len(worker.jobs)), job)

    def _send(self, worker: Worker, job: Job) -> None:
        for row, model in job.models.items():
            self._slots[job.slot, row] = model
        worker.jobs.append(job)
        try:
            worker.pipe.send((job.what, job.slot, job.details))
        except OSError:
            self._replace(worker)

    def _collect(self) -> None:
        """Wait for at least one answer, or for a death."""
        pipes = {worker.pipe: worker for worker in self._workers if worker.jobs}
        for pipe in wait(list(pipes)):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                answer: Answer = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            (job,) = (job for job in worker.jobs if job.slot == answer[0])
            worker.jobs.remove(job)
            job.answer = answer

    def _replace(self, dead: Worker) -> None:
        """Fork another worker and give it the dead one's jobs; their starts are still known."""
        dead.process.join()
        dead.pipe.close()
        fresh = self._fork()
        self._workers[self._workers.index(dead)] = fresh
        for n, job in enumerate(dead.jobs):
            job.deaths += n == 0  # the first was in work; the others only waited
            if job.deaths >= PATIENCE:
                raise SdfeelError(
                    f"{PATIENCE} worker processes died (exit code {dead.process.exitcode}) over "
                    f"the same clients: is there enough memory? try training.engine=loop"
                )
            self._send(fresh, job)

    def _fork(self) -> Worker:
        return Worker(*forked(_serve, self._engine, self._slots, daemon=True))

    def _forget(self) -> None:
        """After an error or an early end, jobs may still be in work: start with new workers."""
        if any(worker.jobs for worker in self._workers):
            self.close()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child must not end its siblings
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers = []

    def __del__(self) -> None:
        self.close()


def _serve(pipe: Connection, engine: LoopEngine, slots: Tensor) -> None:
    """A worker's life; it ends with its parent, whose end of the pipe then closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            what, slot, details = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            result = _obey(engine, slots[slot], what, details)
            pipe.send((slot, "done", result))
        except SdfeelError as error:
            pipe.send((slot, type(error).__name__, (str(error), format_exc())))
        except Exception as error:
            pipe.send((slot, "Exception", (f"a worker failed: {told(error)}", format_exc())))


def _obey(engine: LoopEngine, slot: Tensor, what: str, details: Any) -> list[Tally] | None:
    if what == "evaluate":
        return engine.tallies(slot[0], *details)
    orders: list[Order] = details
    half = len(slot) // 2
    tasks = [
        Task(client, slot[start], steps, first, rate, slot[half + n] if shifted else None, pull)
        for n, (start, client, steps, first, rate, shifted, pull) in enumerate(orders)
    ]
    for row, trained in zip(slot, engine.train(tasks), strict=False):
        row.copy_(trained)
    return None
