"""Many clients' steps in one kernel: torch.func over blocks of clients, on a CPU or a GPU.

Each client of a block has its own numbers, and `vmap` runs one step of all of them together. That
is the right shape for a GPU; on a CPU, the other engines are faster. It agrees with the loop up to
rounding, and its bits depend on the kind of device.

Only `Device` knows about devices. Its authors have never run it on a GPU: `sdfeel bench
--device cuda --check` compares it with the loop there.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, SdfeelError, told
from sdfeel.engine.base import Scores, Task, Training, Workload, one_thread
from sdfeel.engine.batches import Picker
from sdfeel.engine.dropout import Address, AddressedDropout, address_dropout, dropout_calls
from sdfeel.engine.evaluate import Which, evaluate
from sdfeel.engine.loop import LoopEngine, two_examples
from sdfeel.engine.tasks import diverged
from sdfeel.models.flat import VARIANCE_FLOOR, FlatModule, Layout

# Optimisers that treat every number on its own: so a step on many models side by side is the same
# as a step on each of them.
ELEMENTWISE = {
    name.lower(): getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad")
}
TOLERANCE = 1e-3  # allowed difference from the loop's model, as a share of how far a step moves it


@dataclass(frozen=True)
class Device:
    """Where a block is trained."""

    name: str = "cpu"  # cpu, cuda or mps

    def __post_init__(self) -> None:
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        if not there.get(self.name, True):
            raise InputError(
                f"training.device is {self.name}, but torch finds no such device here: choose cpu"
            )

    @property
    def clients(self) -> int:
        """The most clients that are trained side by side."""
        return 32 if self.name == "cpu" else 512

    @property
    def room(self) -> float:
        """Bytes for the numbers of a block's models; gradients and activations take more."""
        return 64e6 if self.name == "cpu" else 512e6

    def exactly(self) -> AbstractContextManager[Any]:
        """Use no reduced precision, and no kernels that give other bits from call to call."""
        if self.name == "cuda":
            flags: AbstractContextManager[Any] = torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=False
            )
            return flags
        return one_thread() if self.name == "cpu" else nullcontext()


class Unbatched(InputError):
    """Why clients cannot be trained side by side, in one line."""


class Masked(nn.Module):
    """Dropout by a mask that was made beforehand: vmap cannot look up addresses."""

    def __init__(self, of: AddressedDropout, masks: dict[int, Tensor]) -> None:
        super().__init__()
        self.of, self._masks = of, masks
        self.shape: tuple[int, ...] = ()  # of its masks, once a batch was seen

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.of.p == 0:
            return x
        if self.of.layer not in self._masks:  # in a pass that only looks for the shape
            self.shape = self.of.mask_shape(x)
            return x
        return x * self._masks[self.of.layer].to(x.dtype)


class BatchedEngine:
    """Trains blocks of clients side by side."""

    name = "batched"
    works_ahead = False

    def __init__(self, workload: Workload) -> None:
        fault = _fault(workload.training)
        if fault:
            raise Unbatched(fault)
        device = workload.training.device
        self.device, self._workload = Device(device), workload
        self._loop = LoopEngine(workload)  # lays out rows, and does what is done one by one
        own = copy.deepcopy(workload.module)
        self._address = Address(workload.seed)
        address_dropout(own, self._address, two_examples(workload, own))
        self._masks: dict[int, Tensor] = {}
        self._drops = _with_masks(own, self._masks)
        self._module = own.to(device).train()
        trainable: dict[str, Tensor] = {
            name: p for name, p in own.named_parameters() if p.requires_grad
        }
        others: dict[str, Tensor] = {
            name: p for name, p in own.named_parameters() if not p.requires_grad
        }
        others.update((n, b) for n, b in own.named_buffers() if b.is_floating_point())
        self._shapes = {name: tuple(t.shape) for name, t in (trainable | others).items()}
        self._trainable = list(trainable)
        self._counters = {n: b for n, b in own.named_buffers() if not b.is_floating_point()}
        like = self._loop.initial()
        self._dtype, self._row = like.dtype, like.numel()
        self._train = workload.train.to(like.dtype)
        training = workload.training
        self._picker = Picker(workload.parts, training.batch_size, workload.seed, len(self._train))
        self._masked: dict[int, list[Masked]] = {}  # layers that have seen a batch, by its size

    @classmethod
    def create(cls, workload: Workload) -> Self | str:
        """The engine, or in one line the reason why it cannot run this."""
        try:
            engine = cls(workload)
            fault = engine.mismatch()
        except Unbatched as reason:
            return str(reason)
        return engine if fault is None else fault

    @property
    def bits(self) -> str:
        return f"batched on {self.device.name}"

    @property
    def workers(self) -> int:
        """How many models it likes to be given at a time."""
        return max(2, self.together // 8)

    @property
    def together(self) -> int:
        """Clients side by side."""
        fits = int(self.device.room // (self._row * self._loop.initial().element_size()))
        return max(1, min(self.device.clients, fits))

    @property
    def parameters(self) -> int:
        return self._loop.parameters

    @property
    def layout(self) -> Layout:
        return self._loop.layout

    def initial(self) -> Tensor:
        return self._loop.initial()

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        return self._loop.state_dict(model)

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        return self._loop.loss_and_gradient(client, model, step)

    def outputs(self, model: Tensor, rows: Ints, which: Which = "train") -> tuple[Tensor, Tensor]:
        return self._loop.outputs(model, rows, which)

    def close(self) -> None:
        """There is nothing to release."""

    def evaluate(self, model: Tensor) -> Scores:
        """Measured on the device; blocks are added up as the loop adds them."""
        if self.device.name == "cpu":
            return self._loop.evaluate(model)
        flat, loss, workload = self._flat_on_device, self._workload.training.loss, self._workload
        flat.load(model.to(self.device.name))
        there = _OnDevice(flat.module, self.device.name)
        with self.device.exactly():
            train = evaluate(there, workload.losses_on.to(self._dtype), loss)
            test = evaluate(there, workload.test.to(self._dtype), loss, workload.metrics)
        return Scores(train.loss, test.loss, test.accuracy, test.metrics)

    @cached_property
    def _flat_on_device(self) -> FlatModule:
        return FlatModule(copy.deepcopy(self._workload.module).to(self.device.name))

    def mismatch(self) -> str | None:
        """Compare one step with the loop's: why this engine must not be used, or None."""
        parts = self._workload.parts
        tasks = [Task(c, self.initial(), 1, 0) for c in range(min(2, len(parts)))]
        try:
            expected = [row.clone() for row in self._loop.train(tasks)]
        except SdfeelError:
            return None  # whatever is wrong is wrong with the loop, too, and shows up in the run
        try:
            found = [row.clone() for row in self.train(tasks)]
        except Unbatched as reason:
            return str(reason)
        for task, a, b in zip(tasks, expected, found, strict=True):
            moved, off = float((a - task.start).abs().max()), float((a - b).abs().max())
            if not off <= TOLERANCE * moved + 1e-6 * float(a.abs().max()):
                return f"its models differ from the loop's by {off:.1e}, and a step is {moved:.1e}"
        return None

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        window = 4 * self.together
        for begin in range(0, len(tasks), window):
            some = tasks[begin : begin + window]
            rows = torch.empty(len(some), self._row, dtype=self._dtype)
            for block in self._blocks(some):
                rows[block] = self._trained([some[n] for n in block])
            for task, row in zip(some, rows, strict=True):
                if not torch.isfinite(row.sum()):
                    raise diverged(task, self._workload.training.learning_rate)
                yield row

    def _blocks(self, tasks: Sequence[Task]) -> Iterator[list[int]]:
        """Places of tasks that go well together: batches and rates alike, steps nearly so."""
        groups: dict[tuple[int, float], list[int]] = {}
        for n, task in enumerate(tasks):
            size = min(self._workload.training.batch_size, len(self._workload.parts[task.client]))
            groups.setdefault((size, task.rate), []).append(n)
        for group in groups.values():
            group.sort(key=lambda n: tasks[n].steps)
            yield from (group[n : n + self.together] for n in range(0, len(group), self.together))

    def _trained(self, tasks: Sequence[Task]) -> Tensor:
        """(N, P) the models of a block."""
        where, training = self.device.name, self._workload.training
        rows = torch.stack([task.start for task in tasks]).to(where)  # (N, P)
        values = self._split(rows)
        for name, value in values.items():
            if "running_var" in name:
                value.clamp_(min=VARIANCE_FLOOR)
        parameters = {name: values.pop(name).requires_grad_() for name in self._trainable}
        starts = {name: p.detach().clone() for name, p in parameters.items()}
        shifts = self._shifts(tasks)
        strengths = [task.pull + training.proximal for task in tasks]
        pulls = torch.tensor(strengths, dtype=self._dtype).to(where) if any(strengths) else None
        optimizer = ELEMENTWISE[training.optimizer.lower()](
            list(parameters.values()),
            lr=training.learning_rate * tasks[0].rate,
            **training.options,
        )
        counters = {
            name: b.expand(len(tasks), *b.shape).clone() for name, b in self._counters.items()
        }
        each = [self._batches_per_iteration(task.client) for task in tasks]
        picked = [
            self._picker.picked(task.client, task.first * n, task.steps * n)
            for task, n in zip(tasks, each, strict=True)
        ]
        out = self._joined(parameters, values)
        longest = max(map(len, picked), default=0)
        for step in range(longest):
            gradients, values = self._step(
                parameters, values | counters, starts, self._batch(tasks, picked, each, step)
            )
            counters = {name: values.pop(name) for name in counters}
            for name, parameter in parameters.items():
                gradient = gradients[name]
                if pulls is not None:
                    gap = parameter.detach() - starts[name]
                    gradient = gradient + pulls.view(-1, *[1] * (gap.ndim - 1)) * gap
                if shifts is not None:
                    gradient = gradient + shifts[name]
                parameter.grad = gradient
            _clip(parameters, training.clip_norm)
            optimizer.step()
            ended = [n for n, rows_of in enumerate(picked) if len(rows_of) == step + 1]
            if ended:
                out[ended] = self._joined(parameters, values)[ended]
        return out.to("cpu")

    def _step(
        self,
        parameters: Mapping[str, Tensor],
        others: dict[str, Tensor],
        starts: Mapping[str, Tensor],
        batch: tuple[Tensor, Tensor, dict[int, Tensor]],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The gradients (N, ...) of one step, and what else it changed."""
        loss_of, penalties = self._workload.training.loss, self._workload.training.penalties

        def one(
            own: dict[str, Tensor],
            rest: dict[str, Tensor],
            start: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            masks: dict[int, Tensor],
        ) -> tuple[Tensor, dict[str, Tensor]]:
            self._masks.clear()
            self._masks.update(masks)
            rest = {name: value.clone() for name, value in rest.items()}
            loss = loss_of(functional_call(self._module, {**own, **rest}, (x,)), y)
            for penalty in penalties.values():
                for name, value in own.items():
                    loss = loss + penalty(value, start[name])
            return loss, rest

        plain = {name: value.detach() for name, value in parameters.items()}
        try:
            with self.device.exactly():
                gradients, (_, changed) = vmap(grad_and_value(one, has_aux=True))(
                    plain, others, dict(starts), *batch
                )
        except SdfeelError:
            raise
        except Exception as error:
            raise Unbatched(f"clients cannot be trained side by side: {told(error)}") from None
        finally:
            self._masks.clear()
        return gradients, {name: value.detach() for name, value in changed.items()}

    def _batch(
        self, tasks: Sequence[Task], picked: Sequence[Ints], each: Sequence[int], step: int
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """Inputs and targets (N, B, ...), and dropout's masks; finished clients repeat a batch."""
        seed, pairs, masks = self._workload.seed, [], dict[int, list[Tensor]]()
        for task, rows, n in zip(tasks, picked, each, strict=True):
            at = min(step, len(rows) - 1)
            if not len(rows):  # no step at all: any batch will do, and is thrown away
                rows, at = self._picker.picked(task.client, 0, 1), 0
            absolute = task.first * n + at
            chosen = torch.from_numpy(np.array(rows[at]))
            pairs.append(self._train.batch(chosen, (seed, task.client, absolute)))
            self._address.set(task.client, absolute)
            for each_layer in self._layers_of_masks(pairs[-1][0]):
                mask = each_layer.of.mask(each_layer.shape)
                masks.setdefault(each_layer.of.layer, []).append(mask)
        where = self.device.name
        x, y = (torch.stack(column).to(where) for column in zip(*pairs, strict=True))
        return x, y, {layer: torch.stack(made).to(where) for layer, made in masks.items()}

    def _layers_of_masks(self, x: Tensor) -> list[Masked]:
        """Dropout layers that know what their masks look like for such a batch."""
        if not self._drops:
            return []
        if len(x) not in self._masked:
            with torch.no_grad():
                own = copy.deepcopy(self._module).train()  # BatchNorm must not learn from this
                own(x.to(self.device.name))
            found = [each for each in _all_masked(own) if each.shape]
            for each in found:
                each.of.address = self._address
            self._masked[len(x)] = found
        return self._masked[len(x)]

    def _shifts(self, tasks: Sequence[Task]) -> dict[str, Tensor] | None:
        if all(task.shift is None for task in tasks):
            return None
        none = torch.zeros(self._row, dtype=self._dtype)
        rows = torch.stack([none if t.shift is None else t.shift for t in tasks])
        return self._split(rows.to(self.device.name))

    def _split(self, rows: Tensor) -> dict[str, Tensor]:
        """Copies of (N, P) rows with the shapes of the module's tensors: (N, ...) each."""
        parts = rows.split_with_sizes([prod(shape) for shape in self._shapes.values()], dim=1)
        return {
            name: part.reshape(len(rows), *shape).clone()
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def _joined(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Tensor:
        """(N, P) rows from such tensors: the reverse of `_split`."""
        own = {name: value.detach() for name, value in parameters.items()} | dict(others)
        return torch.cat([own[name].reshape(len(own[name]), -1) for name in self._shapes], dim=1)

    def _batches_per_iteration(self, client: int) -> int:
        """Mini-batches in one local iteration of a client."""
        training = self._workload.training
        return 1 if training.iteration == "batch" else self._picker.passes(client)


class _OnDevice(nn.Module):
    """A module on a device, for callers that know only the CPU."""

    def __init__(self, inner: nn.Module, device: str) -> None:
        super().__init__()
        self._inner, self._device = inner, device

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self._inner(x.to(self._device))
        return found.to("cpu")


def _with_masks(module: nn.Module, masks: dict[int, Tensor]) -> bool:
    """Let all dropout layers take their masks from `masks`; are there any?"""
    calls = dropout_calls(module)
    if calls is not None:
        calls.made = lambda layer: Masked(layer, masks)
    found = False
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, AddressedDropout):
                setattr(parent, name, Masked(child, masks))
                found = True
    return found or calls is not None


def _all_masked(module: nn.Module) -> Iterator[Masked]:
    """The module's dropout layers, and the calls of functions that it has made."""
    calls = dropout_calls(module)
    for each in (*module.modules(), *(calls.layers.values() if calls is not None else ())):
        if isinstance(each, Masked):
            yield each


def _clip(parameters: Mapping[str, Tensor], largest: float | None) -> None:
    """Make each client's gradient no longer than `largest`."""
    if largest is None:
        return
    parts = [p.grad.flatten(1) for p in parameters.values() if p.grad is not None]
    norms = torch.cat(parts, dim=1).norm(dim=1)
    scale = torch.where(norms > largest, largest / norms, torch.ones_like(norms))
    for parameter in parameters.values():
        if parameter.grad is not None:
            parameter.grad *= scale.view(-1, *[1] * (parameter.ndim - 1))


def _fault(training: Training) -> str | None:
    """Why this training cannot be done side by side."""
    if training.private is not None:
        return "its steps clip every example's gradient (privacy.protects = examples)"
    if training.own is not None or training.optimizer.lower() not in ELEMENTWISE:
        known = ", ".join(ELEMENTWISE)
        return f"its optimiser is {training.optimizer}, not one of {known}"
    return None
