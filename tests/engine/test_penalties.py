"""Terms that are added to a client's loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sdfeel
from sdfeel.core.errors import InputError
from sdfeel.core.events import Finished
from sdfeel.data.federated import Examples
from sdfeel.engine.base import L1, PENALTIES, Penalty, Proximal, Task, Training, Workload, penalties
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.lower import unsupported

WAYS: list[tuple[str, dict[str, Any]]] = [("sgd", {}), ("sgd", {"momentum": 0.9}), ("adam", {})]


def trained(training: Training) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    data = Examples(torch.randn(40, 6, generator=draws).double(), torch.arange(40) % 3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    own = LoopEngine(Workload(module, data, [np.arange(40)], data, training, 3))
    return next(iter(own.train([Task(0, own.initial(), 6, 0)]))).clone()


@pytest.mark.parametrize(("optimizer", "options"), WAYS)
def test_the_proximal_term_is_one_of_them_bit_for_bit(optimizer: str, options: Any) -> None:
    plain = Training(0.1, 5, optimizer, options)
    named = replace(plain, penalties={"mine": Proximal(0.7)})
    assert torch.equal(trained(replace(plain, proximal=0.7)), trained(named))
    assert not torch.equal(trained(plain), trained(named))


def test_l1_pulls_every_number_to_zero_by_as_much() -> None:
    module, strength = nn.Linear(2, 2, bias=False).double(), 0.25
    data = Examples(torch.zeros(4, 2).double(), torch.zeros(4).long())  # no slope of its own
    training = Training(0.1, 2, penalties=penalties({"l1": strength}))
    own = LoopEngine(Workload(module, data, [np.arange(4)], data, training, 0))
    start = torch.tensor([1.0, -1.0, 0.5, -0.5]).double()
    (row,) = own.train([Task(0, start, 3, 0)])
    torch.testing.assert_close(row, start - 3 * 0.1 * strength * start.sign())


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_is_a_number_that_grows_with_its_strength(name: str) -> None:
    parameter, start = torch.tensor([[1.0, -2.0], [0.0, 3.0]]), torch.ones(2, 2)
    weak, strong = (penalties({name: each})[name](parameter, start) for each in (0.1, 0.2))
    assert weak.shape == ()
    assert 0 < float(weak) < float(strong)
    assert penalties({name: 0.0}) == {}


def test_native_refuses_all_of_them_in_one_sentence() -> None:
    training = Training(0.1, 4, penalties={"l1": L1(0.1), "mine": Proximal(1.0)})
    found = unsupported(nn.Linear(3, 2), training, (3,))
    assert found == "its training has penalties (l1, mine)"


def test_mistakes_are_reported() -> None:
    with pytest.raises(InputError, match=r"unknown penalty 'l2': .*known: l1"):
        penalties({"l2": 0.1})
    with pytest.raises(InputError, match="the penalty l1 must have a strength of at least 0"):
        penalties({"l1": -0.1})


def largest(parameter: Tensor, start: Tensor) -> Tensor:
    return parameter.abs().max()


@pytest.mark.parametrize("given", [{"l1": 0.5}, {"mine": largest}])
def test_a_run_takes_named_ones_and_the_users_own(given: dict[str, float | Penalty]) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = sdfeel.federate((x, (x.sum(dim=1) > 0).long()), (x, (x.sum(dim=1) > 0).long()), 4)
    net = sdfeel.network(data, servers=2, graph="ring")
    ends = []
    for asked in ({}, given):
        module = nn.Linear(3, 2)
        nn.init.constant_(module.weight, 0.5)
        scheme = sdfeel.SDFeel()
        run = sdfeel.Run(scheme, net, module, data, iterations=10, penalties=asked, engine="loop")
        last = list(run)[-1]
        assert isinstance(last, Finished)
        ends.append(float(module.weight.detach().abs().sum()))
    assert ends[1] < ends[0]
