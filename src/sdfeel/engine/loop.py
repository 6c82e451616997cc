"""The local step, defined: one client after another, one thread, any nn.Module.

Fast engines must agree with this file. It is kept lean: one module whose numbers live in one
vector, no DataLoader, no state_dict, no optimiser object for plain SGD.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import SdfeelError, told
from sdfeel.core.seeds import alone, number
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Scores, Task, Workload, one_thread
from sdfeel.engine.batches import batches, passes
from sdfeel.engine.dropout import Address, address_dropout, dropout_calls, no_dropout
from sdfeel.engine.evaluate import Tally, Which, blocks, evaluate, tallies
from sdfeel.engine.optimizers import carried, stepper
from sdfeel.engine.tasks import diverged
from sdfeel.models.flat import FlatModule, Layout

# Names for the bits of models that torch trains, which differ between kinds of CPU. Runs that began
# before functions like F.dropout had addresses have the first, and other random numbers.
TORCH, TORCH_CALLS = "torch", "torch, dropout functions by address"


class LoopEngine:
    """Trains clients one after another."""

    name = "loop"

    def __init__(self, workload: Workload) -> None:
        training, seed = workload.training, workload.seed
        # A copy: the engine rebinds the module's tensors and replaces its dropout layers.
        own = copy.deepcopy(workload.module)
        self._address = Address(seed)
        address_dropout(own, self._address, two_examples(workload, own))
        self.bits = TORCH if dropout_calls(own) is None else TORCH_CALLS
        self._flat = FlatModule(own, carried(own, training))
        self._initial = self._flat.row.clone()
        like = self._initial.dtype
        self._train, self._test = workload.train.to(like), workload.test.to(like)
        self._measured = self._train if workload.measured is None else workload.measured.to(like)
        self._parts, self._training, self._seed = workload.parts, training, seed
        self.metrics = workload.metrics
        self._step = stepper(self._flat, training, seed)

    @property
    def parameters(self) -> int:
        """Trainable numbers of the model."""
        return self._flat.parameters

    @property
    def layout(self) -> Layout:
        """The tensors that a row is made of."""
        return self._flat.layout

    def initial(self) -> Tensor:
        return self._initial.clone()

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """`model` as a state_dict for the plain module."""
        return self._flat.state_dict(model)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        self._flat.module.train()
        with one_thread():
            for task in tasks:
                with naming_client(task.client, task.first):
                    self._local(task)
                yield self._flat.row

    def _local(self, task: Task) -> None:
        """Leave the trained model in `self._flat.row`."""
        self._flat.load(task.start)
        self._step.begin(task.client, task.rate, task.shift, task.pull)
        first = task.first * self._batches_per_iteration(task.client)
        with torch_seed(number(self._seed, "torch", task.client, task.first)):
            for step, picked in enumerate(torch.from_numpy(self._picked(task)), first):
                self._address.set(task.client, step)
                self._step(*self._batch(picked, task.client, step), step)
        # One number shows whether all are finite: a NaN or an infinity survives the sum.
        if not torch.isfinite(self._flat.row.sum()):
            raise diverged(task, self._training.learning_rate)

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        """A client's loss and its gradient, on the first mini-batch of local iteration `step`.

        The gradient is of the trainable parameters, with which a row begins. BatchNorm works as
        in training, since this is the function that local steps descend; dropout is off, so that
        nothing but the model and the examples makes a difference.
        """
        position, flat = step * self._batches_per_iteration(client), self._flat
        # The model that `train` handed out last lives in this memory and must survive.
        before = flat.row.clone()
        flat.load(model)
        torch_address = number(self._seed, "torch", client, step)
        with (
            naming_client(client, step),
            one_thread(),
            no_dropout(flat.module),
            torch_seed(torch_address),
        ):
            (picked,) = torch.from_numpy(self._rows(client, position, 1))
            x, y = self._batch(picked, client, position)
            loss = self._training.loss(flat.module(x), y)
            gradients = torch.autograd.grad(
                loss, flat.trainable, allow_unused=True, materialize_grads=True
            )
        flat.row.copy_(before)
        return loss.item(), torch.cat([gradient.reshape(-1) for gradient in gradients])

    def _picked(self, task: Task) -> Ints:
        """(steps, B) rows of the training data, batch by batch."""
        each = self._batches_per_iteration(task.client)
        return self._rows(task.client, task.first * each, task.steps * each)

    def _rows(self, client: int, first: int, steps: int) -> Ints:
        size = self._training.batch_size
        return batches(self._parts[client], size, self._seed, client, first, steps)

    def _batch(self, picked: Tensor, client: int, step: int) -> tuple[Tensor, Tensor]:
        return self._train.batch(picked, (self._seed, client, step))

    def _batches_per_iteration(self, client: int) -> int:
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
        except SdfeelError:
            raise
        except Exception as error:
            raise SdfeelError(f"measuring failed: {told(error)}") from error
        return Scores(train.loss, test.loss, test.accuracy, test.metrics)

    def outputs(self, model: Tensor, rows: Ints, which: Which = "train") -> tuple[Tensor, Tensor]:
        """What the model says about these examples, and their targets."""
        self._flat.load(model)
        data = (self._train if which == "train" else self._test).some(rows)
        found: list[Tensor] = []
        with one_thread():
            every = range(blocks(data))
            tallies(self._flat.module, data, self._training.loss, every, found.append)
        return torch.cat(found), data.y

    def close(self) -> None:
        """There is nothing to release."""

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


def two_examples(workload: Workload, module: nn.Module) -> Tensor:
    """A batch of two examples, of the module's own type."""
    like, x = next((p.dtype for p in module.parameters()), torch.float32), workload.train.first
    return torch.stack([x.to(like) if x.is_floating_point() else x] * 2)


@contextmanager
def naming_client(client: int, step: int) -> Iterator[None]:
    """Names the client in an error that the user's model raises."""
    try:
        yield
    except SdfeelError:
        raise
    except Exception as error:
        raise SdfeelError(
            f"client {client} failed in its local iteration {step}: {told(error)}"
        ) from error


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Other random layers draw from torch's global generator: seed it here, then restore it."""
    generator = torch.default_generator
    with alone():
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)
