"""The local engine over a Ray cluster: the same bits from any number of actors and nodes.

Every actor keeps the data of its clients and gets their tasks in blocks. A start that many clients
share is put into Ray's object store once per round, the trained models of a block come back
together, and are handed out in the order of the tasks. Plain rounds of native engines are added up
by the actors (`sums`): their starts go with the call, and only sums come back. Bits are the same on
machines of one kind; torch itself computes differently on different CPUs.
"""

import copy
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Singles
from sdfeel.engine.base import ModuleEngine, OverWorkers, Scores, Task
from sdfeel.engine.estimates import probing
from sdfeel.engine.evaluate import Tally, total
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.ray.actor import Failure, Measured, Order, Recipe, Trained, pack, unpack
from sdfeel.engine.ray.pool import SESSION, ActorPool, Call, check, load
from sdfeel.engine.ray.sums import SummedHere, SummedThere, apart
from sdfeel.engine.tasks import Crowd, InTraining, folding

CLIENTS_PER_BLOCK = (
    32  # enough that a call, a millisecond or more, costs little compared with the work
)
BLOCK_BYTES = 64e6  # but no more than this in one answer
BLOCKS_PER_ACTOR = 2  # one in work, one waiting

Key = tuple[int, int, torch.dtype]  # of a row: where it lies in memory


class RayEngine(OverWorkers):
    """An engine in every actor, all built by one recipe."""

    name = "ray"
    works_ahead = True  # keeps training while the caller uses a model

    def __init__(
        self,
        engine: ModuleEngine,  # built here: it knows the module, and measures if actors cannot
        recipe: Recipe,
        actors: int | None = None,  # one per CPU of the cluster
        address: str | None = None,  # of a running cluster; otherwise $RAY_ADDRESS, or a new one
    ) -> None:
        load(address)  # if Ray is missing, say so at once
        # A copy: the caller's module may change before actors are started again.
        own = replace(recipe.workload, module=copy.deepcopy(recipe.workload.module))
        recipe = replace(recipe, workload=own)
        super().__init__(engine)
        self._recipe = recipe
        self._actors, self._address = actors, address
        self._ray: Any = None
        self._pool: ActorPool | None = None

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        pool = self._open()
        rows = StoredRows(self._ray, tasks)
        lanes = [
            Lane(pool, actor, rows, [t for t in tasks if pool.owners[t.client] == actor])
            for actor in range(pool.size)
        ]
        model = self.initial()
        try:
            for task in tasks:
                # A copy: Ray's memory is read only, and is given back with the block.
                yield model.copy_(lanes[pool.owners[task.client]].next())
        finally:
            pool.forget()

    @property
    def folds(self) -> bool:
        """Do the engines in the actors make sums?"""
        return folding(self._engine) is not None

    def gather(self, crowd: Crowd, totals: Floats | Sequence[Singles]) -> InTraining:
        """Begin to train a crowd, whose sums are made by the actors; the same bits."""
        pool = self._open(crowd)
        if apart(crowd, pool.owners):
            return SummedThere(pool, crowd, totals, self.train)
        return SummedHere(crowd, totals, self.train)

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        """Like the loop engine's, computed where the run was started."""
        return probing(self._engine).loss_and_gradient(client, model, step)

    def evaluate(self, model: Tensor) -> Scores:
        """Blocks of examples over the actors, summed in order."""
        # The user's metrics need all outputs in one place.
        if not isinstance(self._engine, LoopEngine) or self._engine.metrics:
            return self._engine.evaluate(model)
        pool = self._open()
        ref = self._ray.put(pack(model))
        calls = [pool.submit(actor, "measure", ref) for actor in range(pool.size)]
        found: dict[str, list[Tally]] = {"measured": [], "test": []}
        try:
            for call in calls:
                measured: Measured = pool.result(call)
                part, failure = measured
                check(failure)
                for which in found:
                    found[which] += part[which]
        finally:
            pool.forget()
        loss, _ = total(found["measured"])
        test_loss, accuracy = total(found["test"])
        return Scores(loss, test_loss, accuracy)

    def _open(self, crowd: Crowd | None = None) -> ActorPool:
        if self._pool is None:
            self._ray = SESSION.join(self._address, self._actors)
            try:
                self._pool = ActorPool(self._ray, self._recipe, self._actors, crowd)
            except BaseException:
                SESSION.leave(self._ray)
                raise
        return self._pool

    def close(self) -> None:
        """End the actors, and Ray if it was started here; the next call starts new ones."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()
            SESSION.leave(self._ray)


class StoredRows:
    """What tasks start from and are shifted by, each put into Ray's store once, then forgotten."""

    def __init__(self, ray: Any, tasks: Sequence[Task]) -> None:
        self._ray = ray
        self._left = Counter(_key(row) for task in tasks for row in _needed(task))  # still needed
        self._refs: dict[Key, Any] = {}

    def ref(self, row: Tensor) -> Any:
        key = _key(row)
        if key not in self._refs:
            self._refs[key] = self._ray.put(pack(row))
        self._left[key] -= 1
        return self._refs[key] if self._left[key] else self._refs.pop(key)


def _needed(task: Task) -> list[Tensor]:
    return [task.start] if task.shift is None else [task.start, task.shift]


def _key(row: Tensor) -> Key:
    # Views of one server's model are different objects; their place in memory is the same.
    return row.data_ptr(), row.numel(), row.dtype


@dataclass(eq=False)
class TrainedBlock:
    """The answer to one call, handed out row by row."""

    models: Tensor
    failure: Failure | None
    given: int = 0


class Lane:
    """One actor's tasks of a round, block by block."""

    def __init__(self, pool: ActorPool, actor: int, rows: StoredRows, tasks: list[Task]) -> None:
        self._pool, self._actor, self._rows = pool, actor, rows
        row = tasks[0].start.numel() * tasks[0].start.element_size() if tasks else 1
        size = max(1, min(CLIENTS_PER_BLOCK, int(BLOCK_BYTES // row)))
        self._waiting = deque(tasks[n : n + size] for n in range(0, len(tasks), size))
        self._calls: deque[Call] = deque()
        self._block: TrainedBlock | None = None
        for _ in range(BLOCKS_PER_ACTOR):
            self._submit()

    def next(self) -> Tensor:
        """The model of the next task, or its error."""
        if self._block is None or (
            self._block.given == len(self._block.models) and self._block.failure is None
        ):
            self._block = None  # before the wait: it holds Ray's memory
            answer: Trained = self._pool.result(self._calls.popleft())
            self._submit()
            self._block = TrainedBlock(unpack(answer[0]), answer[1])
        block = self._block
        if block.given == len(block.models):
            check(block.failure)
        block.given += 1
        return block.models[block.given - 1]

    def _submit(self) -> None:
        if not self._waiting:
            return
        tasks = self._waiting.popleft()
        places: dict[Key, int] = {}  # rows of this block, numbered
        refs: list[Any] = []
        orders: list[Order] = []
        for task in tasks:
            for row in _needed(task):
                ref = self._rows.ref(row)
                if _key(row) not in places:
                    places[_key(row)] = len(refs)
                    refs.append(ref)
            start, shift = places[_key(task.start)], task.shift
            shifted = None if shift is None else places[_key(shift)]
            orders.append(
                (task.client, task.steps, task.first, task.rate, start, shifted, task.pull)
            )
        self._calls.append(self._pool.submit(self._actor, "train", orders, *refs))
