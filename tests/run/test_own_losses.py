"""A loss of the user's own that training cannot follow is refused before anything starts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import sdfeel

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
DATA = sdfeel.federate((X, Y), (X, Y), clients=4)
NET = sdfeel.network(DATA, servers=2)


def run(loss: Any, **given: Any) -> list[sdfeel.Event]:
    parts = {"iterations": 2, "engine": "loop", **given}
    return list(
        sdfeel.Run(sdfeel.SDFeel(tau1=1), NET, torch.nn.Linear(3, 2), DATA, loss=loss, **parts)
    )


def numbers(outputs: Tensor, targets: Tensor) -> Any:
    return functional.cross_entropy(outputs, targets).detach().numpy()


def without(outputs: Tensor, targets: Tensor) -> Tensor:
    with torch.no_grad():
        return functional.cross_entropy(outputs, targets)


BAD: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "float": (lambda o, t: functional.cross_entropy(o, t).item(), r"got \d.*: return the tensor"),
    "numpy": (numbers, "return the tensor itself, without .item"),
    "nothing": (lambda o, t: None, "got None: return the tensor itself"),
    "detached": (lambda o, t: functional.cross_entropy(o, t).detach(), "cut off from the model's"),
    "no grad": (without, "compute it from them without .detach"),
    "constant": (lambda o, t: torch.zeros(()), "cut off from the model's outputs"),
    "each": (
        lambda o, t: functional.cross_entropy(o, t, reduction="none"),
        r"got a tensor of shape \(10,\): return its mean",
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("engine", ["loop", "auto"])
def test_a_loss_that_cannot_be_followed_is_refused_in_a_sentence(name: str, engine: str) -> None:
    loss, words = BAD[name]
    with pytest.raises(sdfeel.InputError, match=words) as caught:
        run(loss, engine=engine)
    assert str(caught.value).startswith("training.loss must give one number that torch can")


def once(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)[None]


@pytest.mark.parametrize("loss", [torch.nn.CrossEntropyLoss(label_smoothing=0.1), once])
def test_other_losses_run(loss: Any) -> None:
    assert isinstance(run(loss)[-1], sdfeel.Finished)


def test_a_loss_that_fails_on_the_examples_it_is_tried_with_is_left_to_the_run() -> None:
    tried = []

    def moody(outputs: Tensor, targets: Tensor) -> Tensor:
        tried.append(len(outputs))
        if len(tried) == 1:
            raise ValueError("not these")
        return functional.cross_entropy(outputs, targets)

    assert isinstance(run(moody)[-1], sdfeel.Finished)
