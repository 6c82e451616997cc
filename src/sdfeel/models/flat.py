"""Any nn.Module as one row of numbers, and back.

A row holds everything that is exchanged: the trainable parameters first, then whatever else is
float (frozen parameters, BatchNorm's running statistics), then what an optimiser lets travel with
the model. Servers average rows; nobody else needs to know what is inside.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sdfeel.core.errors import InputError

VARIANCE_FLOOR = 1e-5


@dataclass(frozen=True)
class Layout:
    """Elements of each tensor of a row, in the row's order."""

    trainable: tuple[int, ...]
    other: tuple[int, ...]  # frozen parameters and running statistics
    carried: tuple[int, ...] = ()  # of the optimiser

    @property
    def sizes(self) -> tuple[int, ...]:
        """All tensors of a row."""
        return self.trainable + self.other + self.carried

    @property
    def priced(self) -> tuple[int, ...]:
        """What a message is charged for; the paper counts parameters, not running statistics."""
        return self.trainable + self.carried


@dataclass(frozen=True)
class TensorInRow:
    """One tensor of a row."""

    name: str
    size: int
    trained: bool
    frozen: bool  # a parameter that is never trained; running statistics are neither


def tensors_of(module: nn.Module) -> tuple[TensorInRow, ...]:
    """The tensors of a module's row, in its order."""
    own = list(module.named_parameters())
    found = [TensorInRow(name, p.numel(), True, False) for name, p in own if p.requires_grad]
    found += [TensorInRow(name, p.numel(), False, True) for name, p in own if not p.requires_grad]
    buffers = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
    return (*found, *(TensorInRow(name, b.numel(), False, False) for name, b in buffers))


class FlatModule:
    """A module whose numbers live in one vector: loading a model is one copy."""

    def __init__(self, module: nn.Module, carried: tuple[int, ...] = ()) -> None:
        self.module = module
        self.trainable, others = checked_tensors(module)
        floats: list[Tensor] = [*self.trainable, *others]
        numbers = [tensor.numel() for tensor in floats]
        own = len(self.trainable)
        self.layout = Layout(tuple(numbers[:own]), tuple(numbers[own:]), carried)
        room = self.trainable[0].new_zeros(sum(carried))
        self.row = torch.cat([*(t.detach().reshape(-1) for t in floats), room])  # (P,)
        *places, self.carried = self.row.split_with_sizes([*numbers, len(room)])
        self.parameters = sum(self.layout.trainable)
        variances = {id(b) for name, b in module.named_buffers() if "running_var" in name}
        self._variances: list[Tensor] = []
        for tensor, place in zip(floats, places, strict=True):
            tensor.data = view = place.view_as(tensor)
            if id(tensor) in variances:
                self._variances.append(view)
        self._counters = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]

    def load(self, row: Tensor) -> None:
        """Take over the numbers of `row`.

        Gossip weights may be negative, and so may a mixed running variance: it is raised to a
        small positive floor here, where it is used, so that mixing itself stays linear.
        """
        self.row.copy_(row)
        for variance in self._variances:
            variance.clamp_(min=VARIANCE_FLOOR)
        for counter, fresh in self._counters:
            counter.copy_(fresh)

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """`row` as a state_dict that the plain module loads."""
        self.load(row)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}


def raw(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes of a tensor of any type: numpy has no bfloat16."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def checked_tensors(module: nn.Module) -> tuple[list[nn.Parameter], list[Tensor]]:
    """The tensors of a module's row, those that are trained and the others; InputError if it cannot
    be trained as a row."""
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"{name} is a TorchScript module, which cannot be looked into: give the module that it "
            f"was made from (torch.compile may stay)"
        )
    if any(is_lazy(p) for p in module.parameters()):
        raise InputError(f"{name} has lazy layers: run one batch through it first")
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        raise InputError(
            f"{name} has no trainable parameters, so there is nothing to learn: add some"
        )
    frozen = [p for p in module.parameters() if not p.requires_grad]
    others = [t for t in (*frozen, *module.buffers()) if t.is_floating_point()]
    kinds = {t.dtype for t in (*trainable, *others)}
    if len(kinds) > 1 or not trainable[0].is_floating_point():
        raise InputError(
            f"{name} has {', '.join(sorted(map(str, kinds)))}: convert it to one type of real "
            f"numbers, for example module.float()"
        )
    for what, tensor in (*module.named_parameters(), *module.named_buffers()):
        _check_tensor(f"{what} of {name}", tensor)
    return trainable, others


def _check_tensor(what: str, tensor: Tensor) -> None:
    """Refuse what cannot be a part of a row."""
    if tensor.device.type != "cpu":
        raise InputError(
            f"{what} is on the device {tensor.device}, but servers average in the computer's own "
            f"memory: call module.cpu() (training.device says where the engine batched computes)"
        )
    if any(step == 0 < size - 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InputError(
            f"{what} holds some of its numbers at one place in memory (expand?): give it a "
            f".clone() of them"
        )
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise InputError(
            f"{what} has nan or infinity in it, and so would every average: give it finite numbers "
            f"(a mask of infinities belongs in forward)"
        )
