"""The native engine: the local step of loop.py in C++, all cores, one client per core at a time."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from time import process_time
from typing import Any, Self

import torch
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints, Singles
from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Scores, Task, Workload, cores, one_thread
from sdfeel.engine.evaluate import Which, measured
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.available import available
from sdfeel.engine.native.crowds import Crowds, Gathered
from sdfeel.engine.native.library import Native
from sdfeel.engine.native.trainer import Lessons, Trainer
from sdfeel.engine.tasks import Crowd
from sdfeel.models.flat import FlatModule

BITS, FIRST_BITS = "native 2", "native 1"  # runs that do not name theirs have the first
BLOCK_EXAMPLES = 250  # measured by one thread at a time
TIMED_PRODUCTS = 50e6  # multiplications of an example's forward pass; below, native is faster
TURNS = 3  # of each engine, when they are timed
MARGIN = 1.1  # how much faster torch must be, so that chance does not decide


class NativeEngine:
    """Trains clients in C++; the same bits for any number of threads."""

    name = "native"
    works_ahead = True  # keeps training while the caller uses a model
    trains_beside = True  # and while it is asked to measure, or to train something else

    def __init__(
        self,
        workload: Workload,
        threads: int | None = None,  # default: all cores that the process may use
        rooms: int | None = None,  # trained models that are in memory at once
        batch: int
        | None = None,  # the batch it is compiled for; default: the largest of these clients
    ) -> None:
        largest = max((len(part) for part in workload.parts), default=1)
        self._decoupled = workload.training.optimizer.lower() == "adamw"
        if self._decoupled and workload.training.proximal:
            raise Unavailable("AdamW's weight decay cannot stand in for a proximal term")
        self.batch = batch or max(1, min(workload.training.batch_size, largest))
        plain = pulled(workload, 0.0) if workload.training.proximal else workload
        native = available(plain, self.batch)
        if isinstance(native, str):
            raise Unavailable(native)
        self._native, self._workload = native, workload
        # It knows how a row becomes a state_dict; a copy, because its tensors are rebound.
        self._flat = FlatModule(copy.deepcopy(workload.module))
        self._initial = self._flat.row.clone()
        self.parameters, self.layout = self._flat.parameters, self._flat.layout
        self._test, self._measured = (
            Examples(data.x.contiguous(), data.y.contiguous())
            for data in (workload.test, workload.losses_on)
        )
        self.workers = threads or cores()  # models that are trained at the same time
        self._rooms = rooms
        self._others: dict[float, Trainer] = {}  # by pull: compiled when a task first needs one

    @classmethod
    def create(cls, workload: Workload, **options: Any) -> Self | str:
        """The engine, or in one line the reason why it cannot run this. Options as above."""
        try:
            return cls(workload, **options)
        except Unavailable as reason:
            return reason.reason

    @property
    def bits(self) -> str:
        """A name for the order of all sums; the previous order depended on the CPU."""
        return BITS if self._native.library.fuses else f"{BITS}, without FMA"

    @property
    def reserve(self) -> str:
        """A note for the user where the bits are not those of other CPUs."""
        own = ", with bits of its own: this CPU has no fused multiply-add"
        return "" if self._native.library.fuses else own

    @cached_property
    def _loop(self) -> LoopEngine:
        """The same in torch, for what C++ does not do: timing it, and single gradients."""
        return LoopEngine(replace(self._workload, module=self._flat.module))

    def initial(self) -> Tensor:
        return self._initial.clone()

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """`model` as a state_dict for the plain module."""
        return self._flat.state_dict(model)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        usual = self._workload.training.proximal
        shifted = any(task.shift is not None for task in tasks)
        for pull, some in groupby(tasks, lambda task: task.pull + usual):
            if pull and self._decoupled:  # its decay is not part of the gradient
                yield from self._loop.train(list(some))
            elif pull:
                yield from _rows(
                    self._shifting_trainer(pull), [_turned(task, pull) for task in some]
                )
            else:
                yield from _rows(
                    self._shifting_trainer(0.0) if shifted else self._trainer, list(some)
                )

    @property
    def folds(self) -> bool:
        """Can it train a crowd? Pulls and shifts are left to `train`."""
        return not self._workload.training.proximal and self._crowds.fits

    def gather(self, crowd: Crowd, totals: Floats | Sequence[Singles]) -> Gathered:
        """Begin to train a crowd, whose models are added up in (R, P) `totals`; the same bits."""
        return self._crowds.gather(crowd, totals)

    @cached_property
    def _trainer(self) -> Trainer:
        """What trains single clients; plain rounds train crowds, and do not need it."""
        return self._trainer_of(self._native)

    @cached_property
    def _crowds(self) -> Crowds:
        row, lessons = self._initial.numel(), Lessons.of(self._workload)
        return Crowds(self._native.library, lessons, row, self.workers)

    def _shifting_trainer(self, pull: float) -> Trainer:
        """What trains tasks that have shifts, or that are pulled to where they start."""
        if pull not in self._others:
            native = available(pulled(self._workload, pull), self.batch, shift=True)
            if isinstance(native, str):
                raise InputError(
                    f"the native engine cannot shift this model's gradients: {native}; "
                    f"choose training.engine=loop"
                )
            self._others[pull] = self._trainer_of(native, pull)
        return self._others[pull]

    def _trainer_of(self, native: Native, pull: float = 0.0) -> Trainer:
        row, lessons = self._initial.numel(), Lessons.of(pulled(self._workload, pull))
        return Trainer(native.library, lessons, row, self.workers, self._rooms, native.plan.shift)

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        """Like the loop engine's."""
        return self._loop.loss_and_gradient(client, model, step)

    def close(self) -> None:
        """Free the working memory; idle threads stay, and end with the process."""
        self._native.library.release()
        for trainer in self._others.values():
            trainer.release()

    def slower(self) -> str | None:
        """The reason not to choose this engine, if torch is faster.

        Large models are timed, once on each CPU, and the result is kept next to the library.
        """
        if self._native.plan.products <= TIMED_PRODUCTS:
            return None
        file = self._native.path.with_suffix(f".torch-{torch.__version__}.speed")
        speed: float | None = None
        with suppress(OSError, ValueError):
            speed = float(file.read_text())
        if speed is None:
            speed = self._speed()
            self._native.library.release()
        with suppress(OSError):  # if it cannot be written, the next process times again
            file.write_text(f"{speed:.3f}")
        return f"torch is {1 / speed:.1f} times as fast here" if speed * MARGIN < 1 else None

    def _speed(self) -> float:
        """How many times as fast as torch native is, both on one core.

        Measured in processor seconds, so that whatever else the machine does matters less.
        """
        parts = self._workload.parts
        client = max(range(len(parts)), key=lambda c: len(parts[c]))
        task = Task(client, self.initial(), 1, 0)
        block = self._trainer.prepared([task])
        ways: tuple[Callable[[], object], ...] = (
            lambda: self._trainer.trained(block, threads=1),
            lambda: list(self._loop.train([task])),
        )
        best = [float("inf"), float("inf")]
        for turn in range(TURNS + 1):  # the first warms up
            for which, way in enumerate(ways):
                begin = process_time()
                with suppress(SdfeelError):  # a model that diverges here does so in the run, too
                    way()
                if turn:
                    best[which] = min(best[which], process_time() - begin)
        return best[1] / max(best[0], 1e-9)

    def evaluate(self, model: Tensor) -> Scores:
        row = model.to(torch.float32).contiguous()
        train, _, _ = self._measure(row, self._measured, outputs=False)
        own = self._workload.metrics
        loss, accuracy, outputs = self._measure(row, self._test, outputs=bool(own))
        metrics = (
            {name: measured(name, metric, outputs, self._test.y) for name, metric in own.items()}
            if outputs is not None
            else {}
        )
        classes = self._native.plan.loss == "cross-entropy"
        return Scores(train, loss, accuracy if classes else None, metrics)

    def outputs(self, model: Tensor, rows: Ints, which: Which = "train") -> tuple[Tensor, Tensor]:
        """Like the loop engine's."""
        data = (self._workload.train if which == "train" else self._test).some(rows)
        row = model.to(torch.float32).contiguous()
        _, _, found = self._measure(row, data, outputs=True)
        assert found is not None  # they were asked for
        return found, data.y

    def _measure(
        self, row: Tensor, data: Examples, outputs: bool
    ) -> tuple[float, float, Tensor | None]:
        """Mean loss, share of right answers, and the outputs themselves if asked for."""
        given = torch.empty(len(data), self._native.plan.classes) if outputs else None
        losses, right = self._native.library.measure(
            row, data.x, data.y, BLOCK_EXAMPLES, self.workers, given
        )
        # Blocks are fixed and added in order, so the sum does not depend on the threads.
        return sum(losses.tolist()) / len(data), int(right.sum()) / len(data), given


def _rows(trainer: Trainer, tasks: Sequence[Task]) -> Iterator[Tensor]:
    # One torch thread: adding models up must not take the cores that train.
    with one_thread():
        for row in trainer.train(tasks):
            yield torch.from_numpy(row)


def pulled(workload: Workload, pull: float) -> Workload:
    """The same with a pull written as weight decay, which pulls to zero.

    Together with a shift by -pull times the start (`_turned`), that is a pull to the start.
    """
    training = workload.training
    decay = (training.options.get("weight_decay") or 0.0) + pull
    options = {**training.options, "weight_decay": decay} if pull else training.options
    return replace(workload, training=replace(training, options=options, proximal=0.0))


def _turned(task: Task, pull: float) -> Task:
    turn = task.start * -pull
    return replace(task, shift=turn if task.shift is None else turn + task.shift, pull=0.0)


class Unavailable(InputError):
    """The native engine cannot run what it was asked to."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the native engine cannot run this model: {reason}")
        self.reason = reason
