"""Dropout by address: the mask of a layer is a function of (seed, client, step, layer) alone.

torch's own dropout draws from a stream, which no other engine could follow. Here the random
words come from a counter-based generator (Philox4x64-10, as NumPy implements it), so that any
engine, in any language, makes the same masks.

    key      (a number from the run's seed, client)
    counter  (block, step, layer, 0), blocks counted from 1
    word e of the stream belongs to element e of the batch, in memory order;
    the element is kept if word >= p * 2^64, and scaled by 1 / (1 - p)

Layers are the module's dropout layers, in the order of `modules()`, and after them its calls of
`F.dropout` and the like, in the order of a forward pass: in a model that has only layers, or only
calls in the same order, masks are the same.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sdfeel.core.seeds import alone, number
from sdfeel.engine.batches import DROPOUT

WORDS = 2**64


class Address:
    """The current client and step; the layers look here for their masks."""

    def __init__(self, seed: int) -> None:
        self._key = np.array([number(seed, DROPOUT), 0], dtype=np.uint64)
        self._counter = np.zeros(4, dtype=np.uint64)
        # Setting a generator's state is several times cheaper than making a generator.
        self._generator = np.random.Philox(key=self._key, counter=self._counter)
        self._state: dict[str, Any] = dict(self._generator.state)
        self._state["state"] = {"key": self._key, "counter": self._counter}

    def set(self, client: int, step: int) -> None:
        """`step`: mini-batches that this client has taken before."""
        self._key[1], self._counter[1] = client, step

    def words(self, layer: int, count: int) -> NDArray[np.uint64]:
        """The first `count` random words of a layer."""
        self._counter[2] = layer
        self._generator.state = self._state  # type: ignore[assignment]
        words: NDArray[np.uint64] = self._generator.random_raw(count)
        return words


class AddressedDropout(nn.Module):
    """Dropout of elements (`channels` False) or of whole channels."""

    def __init__(self, p: float, channels: bool, layer: int, address: Address) -> None:
        super().__init__()
        self.p, self.channels, self.layer, self.address = p, channels, layer, address
        self._threshold = np.uint64(min(int(p * WORDS), WORDS - 1))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return torch.zeros_like(x)
        return x * self.mask(self.mask_shape(x)).to(x.dtype)

    def mask_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of the mask for a batch like this."""
        return (*x.shape[:2], *[1] * (x.ndim - 2)) if self.channels else tuple(x.shape)

    def mask(self, shape: tuple[int, ...]) -> Tensor:
        """What a batch is multiplied by at the present address."""
        if self.p == 1:
            return torch.zeros(shape)
        kept = self.address.words(self.layer, prod(shape)) >= self._threshold
        # In NumPy, whose small operations are several times cheaper than torch's.
        mask = kept.astype(np.float32) * np.float32(1 / (1 - self.p))
        return torch.from_numpy(mask.reshape(shape))


ELEMENTS = (nn.Dropout,)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


DROPPING: dict[Any, bool] = {  # does it drop whole channels?
    functional.dropout: False,
    functional.dropout1d: True,
    functional.dropout2d: True,
    functional.dropout3d: True,
}


class DropoutCalls(TorchFunctionMode):
    """Gives addresses to calls of F.dropout and the like during a module's forward pass."""

    def __init__(self, first: int, address: Address) -> None:
        super().__init__()
        self.first, self.address = first, address  # the number of the first call
        self.count = 0  # calls in this pass
        self.off = False
        self.layers: dict[tuple[int, float, bool], nn.Module] = {}  # one per call, share and kind
        self.made: Callable[[AddressedDropout], nn.Module] = lambda layer: layer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func in DROPPING:
            return self._dropped(DROPPING[func], *args, **options)
        return func(*args, **options)

    def _dropped(
        self,
        channels: bool,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        layer = self.first + self.count
        self.count += 1
        if not training or self.off:
            return input
        key = layer, p, channels
        if key not in self.layers:
            self.layers[key] = self.made(AddressedDropout(p, channels, layer, self.address))
        dropped: Tensor = self.layers[key](input)
        return input.copy_(dropped) if inplace else dropped

    def begin(self, module: nn.Module, given: Any) -> None:
        """A forward pass begins; one that only measures is left alone."""
        if module.training:
            self.count = 0
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self, module: nn.Module, given: Any, found: Any) -> None:
        """The forward pass is over, or has failed."""
        if module.training:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def address_dropout(module: nn.Module, address: Address, x: Tensor | None = None) -> int:
    """Give addresses to the module's dropout; return the number of its layers.

    Calls of functions are found by a forward pass of `x`.
    """
    layer = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in ELEMENTS or type(child) in CHANNELS:
                assert isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
                channels = type(child) in CHANNELS
                setattr(parent, name, AddressedDropout(child.p, channels, layer, address))
                layer += 1
    if x is not None and _calls(module, x):
        calls = DropoutCalls(layer, address)
        module.dropout_calls = calls  # type: ignore[assignment]
        module.register_forward_pre_hook(calls.begin)
        module.register_forward_hook(calls.end, always_call=True)
    return layer


def dropout_calls(module: nn.Module) -> DropoutCalls | None:
    """What gives addresses to the module's calls of functions, if it has any."""
    found: DropoutCalls | None = getattr(module, "dropout_calls", None)
    return found


def _calls(module: nn.Module, x: Tensor) -> int:
    """How often the module calls a function of dropout in a forward pass."""
    if all(type(each).__module__.startswith(("torch.", __name__)) for each in module.modules()):
        return 0  # torch's own modules have layers
    calls = DropoutCalls(0, Address(0))
    ours = alone(), torch.random.fork_rng(devices=[])
    with suppress(Exception), torch.no_grad(), ours[0], ours[1], calls:
        copy.deepcopy(module).train()(x)
    return calls.count


@contextmanager
def no_dropout(module: nn.Module) -> Iterator[None]:
    """The module in training mode, but without dropout."""
    was_training = module.training
    module.train()
    for child in module.modules():
        if isinstance(child, AddressedDropout | nn.AlphaDropout | nn.FeatureAlphaDropout):
            child.eval()
    calls = dropout_calls(module)
    if calls is not None:
        calls.off = True
    try:
        yield
    finally:
        module.train(was_training)
        if calls is not None:
            calls.off = False
