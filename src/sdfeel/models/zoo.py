"""The models by name, and the user's own by `package.module:factory`."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from sdfeel.core import named
from sdfeel.core.errors import InputError, at_least, told
from sdfeel.core.named import Kind, recorded_name
from sdfeel.core.seeds import alone
from sdfeel.models.flat import checked_tensors


@contextmanager
def portable_draws() -> Iterator[None]:
    """Within this context, `uniform_` of float32 gives the same numbers on every CPU.

    torch draws 24 random bits u and computes u * (high - low) + low, rounded once where the CPU
    multiplies and adds in one step, and otherwise twice. Here it is always rounded once, because in
    float64 nothing is rounded before. All of torch's layers begin with `uniform_`; other draws stay
    as torch makes them.
    """
    own = torch.Tensor.uniform_

    def uniform_(tensor: Tensor, *bounds: float, **options: Any) -> Tensor:
        if tensor.dtype != torch.float32:
            return own(tensor, *bounds, **options)
        named = [options.pop(name, default) for name, default in (("from", 0.0), ("to", 1.0))]
        low, high = torch.tensor([*bounds, *named[len(bounds) :]], dtype=torch.float32)
        unit = own(torch.empty_like(tensor), 0.0, 1.0, **options).double()
        return tensor.copy_(unit.mul_((high - low).double()).add_(low.double()))

    torch.Tensor.uniform_ = uniform_  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.Tensor.uniform_


Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelCard:
    """A named model: how to build it for a shape of input and a number of classes."""

    build: Callable[..., nn.Module]
    about: str
    operations: float | None = None  # the paper's printed count for one sample, where it has one


def mnist_cnn(shape: Shape, classes: int) -> nn.Module:
    """The paper's CNN for 1x28x28 images: 21,840 parameters."""
    _require("mnist-cnn", shape, (1, 28, 28))
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.Dropout2d(0.5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(50, classes),
    )


def cifar_cnn(shape: Shape, classes: int) -> nn.Module:
    """The paper's CNN for 3x32x32 images: 5,852,170 parameters."""
    _require("cifar-cnn", shape, (3, 32, 32))

    def block(inside: int, middle: int, outside: int, *end: nn.Module) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, middle, 3, padding=1),
            nn.BatchNorm2d(middle),  # only after the first convolution of a block
            nn.ReLU(),
            nn.Conv2d(middle, outside, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *end,
        ]

    return nn.Sequential(
        *block(3, 32, 64),
        *block(64, 128, 128, nn.Dropout2d(0.05)),
        *block(128, 256, 256, nn.Flatten()),
        nn.Dropout(0.1),
        nn.Linear(4096, 1024),
        nn.ReLU(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(512, classes),
    )


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: Shape, classes: int, hidden: int = 64) -> nn.Module:
    """One hidden layer."""
    at_least("model.options.hidden", hidden, 1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


MODELS: dict[str, ModelCard] = {
    "mnist-cnn": ModelCard(mnist_cnn, "the paper's CNN for 28x28 images", 487_540),
    "cifar-cnn": ModelCard(cifar_cnn, "the paper's CNN for 32x32 colour images", 138.4e6),
    "logistic": ModelCard(logistic, "multinomial logistic regression"),
    "mlp": ModelCard(mlp, "one hidden layer (model.options.hidden units)"),
}


NAMED = Kind("model", {name: card.build for name, card in MODELS.items()}, "sdfeel.models")


def build(name: Any, shape: Shape, classes: int, seed: int, **options: Any) -> nn.Module:
    """The model called `name`, its weights drawn from `seed` alone.

    `name` may also be a function that builds a model, or a module, whose weights stay as they are.

    >>> sum(p.numel() for p in build("mnist-cnn", (1, 28, 28), 10, seed=0).parameters())
    21840
    """
    # torch's initialisers use only the global generator: seed it in a fork, and restore it.
    with alone(), torch.random.fork_rng(devices=[]), portable_draws():
        torch.default_generator.manual_seed(seed)
        found, told_as, given = NAMED.find(name), recorded_name(name), tuple[Any, ...]()
        if isinstance(name, str) and name in MODELS:
            given = shape, classes
            if options:
                _check_options(name, found, options)
        elif not isinstance(found, nn.Module):
            _check_callable(told_as, found)
        elif isinstance(name, str):
            raise InputError(
                f"'{name}' is a {type(found).__name__}; give a function that builds it, whose "
                f"weights are then drawn from the seed"
            )
        else:
            return found
        try:
            module = found(*given, **options)
        except InputError:
            raise
        except Exception as error:  # somebody else's code may raise anything
            raise InputError(f"model {told_as} cannot be built: {told(error)}") from None
    if not isinstance(module, nn.Module):
        raise InputError(f"model {told_as} gave a {type(module).__name__}, not a torch.nn.Module")
    return module


def _check_options(name: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    takes = list(inspect.signature(factory).parameters)[2:]
    for option in options:
        if option not in takes:
            has = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise InputError(f"model {name} does not take '{option}' in model.options: {has}")


def imported(path: str) -> Callable[..., Any]:
    """The function that `package.module:name` leads to."""
    found = named.imported(path)
    _check_callable(path, found)
    return found  # type: ignore[no-any-return]


def _check_callable(name: str, found: Any) -> None:
    if not callable(found):
        raise InputError(f"'{name}' is a {type(found).__name__}; give a function that builds it")


def taken(module: nn.Module, x: Tensor) -> Tensor:
    """A batch of inputs in the type that `module` takes.

    Whole numbers stay as they are for a model that takes them (token numbers for an embedding,
    say), and become floats for one that takes only floats.
    """
    floats = x.to(next((p.dtype for p in module.parameters()), torch.float32))
    if x.is_floating_point() or (not _takes(module, x) and _takes(module, floats)):
        return floats
    return x


def _takes(module: nn.Module, x: Tensor) -> bool:
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            module(x[:2])
    except Exception:  # the error is reported when the model is used
        return False
    finally:
        module.train(was_training)
    return True


def check_fit(module: nn.Module, example: Tensor, classes: int) -> None:
    """Refuse a model that does not fit the data, before anything is run; 0 classes: any outputs."""
    checked_tensors(module)
    was_training = module.training
    module.eval()
    try:
        with torch.enable_grad():
            out = module(taken(module, torch.stack([example, example])))
    except Exception as error:
        raise InputError(
            f"the model cannot take inputs of {_by(tuple(example.shape))}: {told(error)}"
        ) from None
    finally:
        module.train(was_training)
    if isinstance(out, Tensor) and out.is_floating_point() and not out.requires_grad:
        raise InputError(
            "the model's outputs are cut off from its parameters, so nothing can be learned: "
            "compute them without .detach(), .data, torch.no_grad() or NumPy"
        )
    if not classes and isinstance(out, Tensor) and out.is_floating_point() and len(out) == 2:
        return
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2 or not out.is_floating_point():
        what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise InputError(f"the model gives {what} for 2 examples: it must give (2, classes) scores")
    if out.shape[1] < classes:
        raise InputError(
            f"the model gives {out.shape[1]} scores, but the data has {classes} classes: "
            f"give it {classes} outputs"
        )


def operations(module: nn.Module, example: Tensor) -> float:
    """Multiply-accumulates of one example's forward pass.

    Counted as the paper's tool did: a convolution's bias is one operation, a linear layer's is
    none.

    >>> operations(build("mnist-cnn", (1, 28, 28), 10, seed=0), torch.zeros(1, 28, 28))
    487540.0
    """
    total = 0.0

    def count(layer: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += out.numel() * layer.in_features
        elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            per_output = layer.weight[0].numel() + (layer.bias is not None)
            total += out.numel() * per_output

    batch = taken(module, example[None])  # before anything is counted
    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            module(batch)
    except RuntimeError as error:
        raise InputError(
            f"the model cannot take inputs of {_by(tuple(example.shape))}: {told(error)}"
        ) from None
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return total


def _require(name: str, shape: Shape, needed: Shape) -> None:
    if tuple(shape) != needed:
        raise InputError(
            f"model {name} is made for inputs of {_by(needed)}, but the data has {_by(shape)}: "
            f"choose another model (mlp and logistic take any shape) or other data"
        )


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))
