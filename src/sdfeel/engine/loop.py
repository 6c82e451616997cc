"""The local step, defined: one client after another, one thread, any nn.Module.

Fast engines must agree with this file. It is kept lean: one module whose numbers live in one
vector, no DataLoader, no state_dict, no optimiser object for plain SGD.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import Diverged, InputError, SdfeelError, unknown
from sdfeel.core.seeds import number
from sdfeel.data.examples import Examples
from sdfeel.engine.base import Scores, Task
from sdfeel.engine.batches import batches, passes
from sdfeel.engine.dropout import Address, address_dropout
from sdfeel.engine.evaluate import Loss, Metric, Tally, blocks, evaluate, tallies
from sdfeel.engine.threads import one_thread
from sdfeel.models.flat import FlatModule


@dataclass(frozen=True)
class Training:
    """How a client takes its local iterations."""

    learning_rate: float
    batch_size: int
    optimizer: str = "sgd"
    options: dict[str, Any] = field(default_factory=dict)  # of the optimiser
    iteration: Literal["batch", "epoch"] = "batch"  # what one local iteration is
    loss: Loss = nn.functional.cross_entropy


class LoopEngine:
    """Trains clients one after another."""

    name = "loop"

    def __init__(
        self,
        module: nn.Module,
        train: Examples,
        parts: Sequence[Ints],  # each client's rows of `train`
        test: Examples,
        training: Training,
        seed: int,
        metrics: dict[str, Metric] | None = None,
        measured: Examples | None = None,  # what the training loss is measured on
    ) -> None:
        # A copy: the engine rebinds the module's tensors and replaces its dropout layers.
        own = copy.deepcopy(module)
        self._address = Address(seed)
        address_dropout(own, self._address)
        self._flat = FlatModule(own)
        self._initial = self._flat.row.clone()
        like = self._initial.dtype
        self._train, self._test, self._parts = train.to(like), test.to(like), parts
        self._measured = self._train if measured is None else measured.to(like)
        self._training, self._seed, self.metrics = training, seed, metrics or {}
        self._step = stepper(self._flat, training)

    @property
    def parameters(self) -> int:
        """Trainable numbers of the model."""
        return self._flat.parameters

    def initial(self) -> Tensor:
        return self._initial.clone()

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """`model` as a state_dict for the plain module."""
        return self._flat.state_dict(model)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        self._flat.module.train()
        with one_thread():
            for task in tasks:
                try:
                    self._local(task)
                except SdfeelError:
                    raise
                except Exception as error:
                    raise SdfeelError(
                        f"client {task.client} failed in its local iteration {task.first}: "
                        f"{type(error).__name__}: {error}"
                    ) from error
                yield self._flat.row

    def _local(self, task: Task) -> None:
        """Leave the trained model in `self._flat.row`."""
        self._flat.load(task.start)
        self._step.reset()
        first = task.first * self._each(task.client)
        with torch_seed(number(self._seed, "torch", task.client, task.first)):
            for step, picked in enumerate(torch.from_numpy(self._picked(task)), first):
                self._address.set(task.client, step)
                x = self._train.x.index_select(0, picked)
                y = self._train.y.index_select(0, picked)
                self._step(x, y)
        # One number tells whether all are finite: a NaN or an infinity survives the sum.
        if not torch.isfinite(self._flat.row.sum()):
            raise diverged(task, self._training)

    def _picked(self, task: Task) -> Ints:
        """(steps, B) rows of the training data, batch by batch."""
        each, size = self._each(task.client), self._training.batch_size
        examples = self._parts[task.client]
        return batches(
            examples, size, self._seed, task.client, task.first * each, task.steps * each
        )

    def _each(self, client: int) -> int:
        """Mini-batches in one local iteration of a client."""
        if self._training.iteration == "batch":
            return 1
        return passes(self._parts[client], self._training.batch_size)

    def evaluate(self, model: Tensor) -> Scores:
        self._flat.load(model)
        loss = self._training.loss
        try:
            with one_thread():
                train = evaluate(self._flat.module, self._measured, loss)
                test = evaluate(self._flat.module, self._test, loss, self.metrics)
        except Exception as error:
            raise SdfeelError(f"measuring failed: {type(error).__name__}: {error}") from error
        return Scores(train.loss, test.loss, test.accuracy, test.metrics)

    def close(self) -> None:
        """Nothing to give back."""

    def blocks(self, which: str) -> int:
        """Blocks of the examples called "test" or "measured"."""
        return blocks(self._examples(which))

    def tallies(self, model: Tensor, which: str, begin: int, end: int) -> list[Tally]:
        """Blocks `begin` to `end` of a measurement: `evaluate` in parts."""
        self._flat.load(model)
        with one_thread():
            return tallies(
                self._flat.module, self._examples(which), self._training.loss, range(begin, end)
            )

    def _examples(self, which: str) -> Examples:
        return {"test": self._test, "measured": self._measured}[which]


def diverged(task: Task, training: Training) -> Diverged:
    """What every engine says when a client's model is no longer finite."""
    return Diverged(
        f"training diverged at client {task.client}, local iteration {task.first + task.steps}: "
        f"the model is no longer finite with learning rate {training.learning_rate:g}; "
        f"lower training.learning_rate"
    )


class PlainSGD:
    """w := w - learning rate * gradient, and nothing else."""

    def __init__(self, flat: FlatModule, training: Training) -> None:
        self._module, self._parameters = flat.module, flat.trainable
        self._rate, self._loss = training.learning_rate, training.loss

    def reset(self) -> None:
        """Plain SGD remembers nothing."""

    def __call__(self, x: Tensor, y: Tensor) -> None:
        loss = self._loss(self._module(x), y)
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=-self._rate)


class TorchOptimizer:
    """Any optimiser of torch.optim. Its state is forgotten at every broadcast.

    A client's momentum belongs to a model that the server has just replaced.
    """

    def __init__(self, flat: FlatModule, training: Training) -> None:
        kinds = {
            name.lower(): kind
            for name, kind in vars(torch.optim).items()
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        }
        kinds.pop("optimizer")
        if training.optimizer.lower() not in kinds:
            raise unknown("optimizer", training.optimizer, kinds)
        kind: Callable[..., torch.optim.Optimizer] = kinds[training.optimizer.lower()]
        try:
            self._optimizer = kind(flat.trainable, lr=training.learning_rate, **training.options)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"optimizer {training.optimizer} refused its options: {error}"
            ) from None
        self._module, self._loss = flat.module, training.loss

    def reset(self) -> None:
        self._optimizer.state.clear()

    def __call__(self, x: Tensor, y: Tensor) -> None:
        def closure() -> float:
            self._optimizer.zero_grad()
            loss = self._loss(self._module(x), y)
            torch.autograd.backward(loss)
            return loss.item()

        self._optimizer.step(closure)


def stepper(flat: FlatModule, training: Training) -> PlainSGD | TorchOptimizer:
    """What takes one mini-batch step."""
    plain = training.optimizer.lower() == "sgd" and not any(training.options.values())
    return PlainSGD(flat, training) if plain else TorchOptimizer(flat, training)


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Other random layers draw from torch's global generator: address it, and give it back."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
