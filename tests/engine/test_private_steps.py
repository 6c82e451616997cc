"""DP-SGD: a step moves by clipped gradients and fresh noise, and native leaves it to the loop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sdfeel.core.errors import InputError
from sdfeel.data.federated import Examples
from sdfeel.engine.base import PrivateSteps, Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.engine import NativeEngine

BATCH = 6


def workload(private: PrivateSteps | None, module: nn.Module | None = None, **options: Any) -> Any:
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(18, 4, generator=draws), torch.randint(3, (18,), generator=draws)
    data = Examples(x, y)
    torch.manual_seed(1)
    own = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)) if module is None else module
    training = Training(0.1, BATCH, private=private, **options)
    return Workload(own, data, [np.arange(18)], data, training, 7)


def trained(work: Workload, start: Tensor | None = None, steps: int = 1) -> Tensor:
    engine = LoopEngine(work)
    begin = engine.initial() if start is None else start
    return next(iter(engine.train([Task(0, begin, steps, 0)]))).clone()


def test_without_noise_and_with_a_wide_clip_it_is_the_plain_step() -> None:
    for options in ({}, {"optimizer": "adam"}, {"proximal": 0.5, "options": {"momentum": 0.9}}):
        wide = trained(workload(PrivateSteps(1e9, 0.0, 7), **options), steps=4)
        torch.testing.assert_close(wide, trained(workload(None, **options), steps=4))


@pytest.mark.parametrize("clip", [0.01, 0.3])
def test_no_example_moves_a_step_by_more_than_the_clip(clip: float) -> None:
    """Change one example in any way: the step moves by at most rate * 2 * clip / batch."""
    work = workload(PrivateSteps(clip, 1.0, 7))
    for n in range(0, 18, 5):
        x = work.train.x.clone()
        x[n] *= -100
        other = replace(work, train=Examples(x, work.train.y))
        moved = float((trained(work) - trained(other)).norm())
        assert moved <= 0.1 * 2 * clip / BATCH * (1 + 1e-4)


def test_noise_has_its_size_and_follows_the_secret_and_the_start() -> None:
    module = nn.Linear(4, 3000)
    work = workload(PrivateSteps(0.5, 2.0, 7), module)
    silent = trained(workload(PrivateSteps(0.5, 0.0, 7), module))
    noise = trained(work) - silent
    assert float(noise.std()) == pytest.approx(0.1 * 0.5 * 2.0 / BATCH, rel=0.05)
    assert torch.equal(trained(work), trained(work))
    secret = workload(PrivateSteps(0.5, 2.0, 8), module)
    assert not torch.equal(trained(secret), trained(work))
    start = LoopEngine(work).initial() + 1e-3
    other = trained(work, start) - trained(workload(PrivateSteps(0.5, 0.0, 7), module), start)
    alike = float(torch.corrcoef(torch.stack([noise, other]))[0, 1])
    assert abs(alike) < 0.05  # else two messages of the same step would cancel the noise


def test_what_would_look_at_examples_again_is_refused_and_native_says_why_not() -> None:
    private = PrivateSteps(1.0, 1.0, 7)
    with pytest.raises(InputError, match="newton-diagonal may look at the examples again"):
        LoopEngine(workload(private, optimizer="newton-diagonal"))
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(InputError, match="BatchNorm mixes the examples of a batch"):
        LoopEngine(workload(private, normed))
    assert "clip every example's gradient" in str(NativeEngine.create(workload(private)))
