"""Models, examples and metrics that cannot work are refused in a sentence, before anything is run.

What only looks odd, such as an array that runs backwards, works like any other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sdfeel
from sdfeel.core.errors import InputError
from sdfeel.data.adapters import tensor

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
ENGINES = ["loop", "parallel", "native", "batched"]


def run(model: nn.Module | None = None, y: Tensor = Y, **given: Any) -> sdfeel.Run:
    data = sdfeel.federate((X, y), (X[:16], y[:16]), clients=4)
    net = sdfeel.network(data, servers=2)
    own = nn.Linear(3, 2) if model is None else model
    options = {"iterations": 2, "engine": "loop", **given}
    return sdfeel.Run(sdfeel.SDFeel(tau1=2), net, own, data, **options)


class Cut(nn.Module):
    """Its outputs cannot be followed back to its parameters."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.cut = nn.Linear(3, 2), cut

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(self.layer(x))


def changed(change: Callable[[nn.Linear], object]) -> nn.Module:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        change(layer)
    return layer


def masked() -> nn.Module:
    """With a mask of infinities, as attention has."""
    layer = nn.Linear(3, 2)
    layer.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    return layer


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "nan": (lambda: changed(lambda m: m.weight.fill_(torch.nan)), "weight of Linear has nan or"),
    "infinity": (lambda: changed(lambda m: m.bias[0].fill_(torch.inf)), "bias of Linear has nan"),
    "mask": (masked, "mask of Linear has nan or infinity"),
    "elsewhere": (lambda: nn.Linear(3, 2, device="meta"), "is on the device meta"),
    "one place": (
        lambda: changed(lambda m: setattr(m, "weight", nn.Parameter(torch.ones(1).expand(2, 3)))),
        "weight of Linear holds some of its numbers at one place",
    ),
    "detached": (lambda: Cut(lambda out: out.detach()), "cut off from its parameters"),
    "data": (lambda: Cut(lambda out: out.data), "cut off from its parameters"),
    "constant": (lambda: Cut(torch.zeros_like), "cut off from its parameters"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", MODELS)
def test_models_that_cannot_learn_are_refused(what: str, engine: str) -> None:
    made, words = MODELS[what]
    with pytest.raises(InputError, match=words):
        run(made(), engine=engine)


@pytest.mark.filterwarnings("ignore:.*jit.script.*")
def test_torchscript_is_refused() -> None:
    with pytest.raises(InputError, match="is a TorchScript module"):
        run(torch.jit.script(nn.Linear(3, 2)))


def test_parameters_that_are_shared_or_not_contiguous_are_fine() -> None:
    turned = changed(lambda m: setattr(m, "weight", nn.Parameter(torch.ones(3, 2).T)))
    assert [type(each) for each in run(turned, engine="loop")][-1] is sdfeel.Finished


@pytest.mark.parametrize("key", ["metrics", "per_client", "per_cluster"])
@pytest.mark.parametrize("name", ["mae", "rmse", "r2"])
def test_errors_need_outputs_of_the_shape_of_the_targets(key: str, name: str) -> None:
    asked: Any = {key: [name]}
    with pytest.raises(InputError, match=f"metric '{name}' compares .* are \\(2, 2\\) and"):
        run(**asked)
    events = list(run(nn.Linear(3, 1), X.sum(1), loss=mse, **asked))
    *_, last = [each for each in events if isinstance(each, sdfeel.Evaluated)]
    assert any(each.startswith(name) for each in last.metrics)


@pytest.mark.parametrize("name", ["accuracy", "top-5", "perplexity"])
def test_metrics_of_classes_need_class_numbers(name: str) -> None:
    with pytest.raises(InputError, match=f"metric '{name}' needs class numbers"):
        run(nn.Linear(3, 1), X.sum(1), loss=mse, metrics=[name])


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square().mean()


def test_two_metrics_of_one_name_do_not_become_one() -> None:
    with pytest.raises(InputError, match=r"different names .two are called <lambda>."):
        run(metrics=[lambda out, y: 1.0, lambda out, y: 2.0])


PLAIN = np.arange(12, dtype=np.float32).reshape(4, 3)


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    "odd",
    [
        PLAIN[::-1][::-1],
        PLAIN[::-1, ::-1].copy()[::-1, ::-1],
        PLAIN.astype(">f4"),
        PLAIN.astype(np.longdouble),
        np.asfortranarray(PLAIN),
        readonly(PLAIN.copy()),
        np.ma.array(PLAIN),
        PLAIN.astype(">i8"),
        PLAIN.astype(np.uint64),
    ],
)
def test_the_same_numbers_are_the_same_examples(odd: NDArray[Any]) -> None:
    assert torch.equal(tensor(odd, "x").float(), torch.from_numpy(PLAIN))


def test_masked_numbers_are_not_taken_for_real_ones() -> None:
    with pytest.raises(InputError, match="some numbers of the inputs are masked: fill them in"):
        tensor(np.ma.array(PLAIN, mask=PLAIN > 5), "the inputs")
