"""A small problem, and ways to look at processes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.data.federated import Examples
from sdfeel.engine.base import Engine, Task, Training, Workload
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.ray import RayEngine, Recipe

CLIENTS = 30
PARTS = np.array_split(np.arange(600), CLIENTS)


class Slow(nn.Module):
    """Takes its time, but only in an actor."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.home, self.seconds = os.getpid(), seconds

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home:
            time.sleep(self.seconds)
        out: Tensor = self.layer(x)
        return out


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 3))


def problem(
    module: nn.Module | None = None, rate: float = 0.1, **options: Any
) -> tuple[LoopEngine, Recipe]:
    """For one process, and for actors."""
    draws = torch.Generator().manual_seed(0)
    train, test = (
        Examples(torch.randn(n, 12, generator=draws), torch.randint(3, (n,), generator=draws))
        for n in (600, 1100)
    )
    module = layers() if module is None else module
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    training = Training(rate, 4)
    own = Workload(module, train, PARTS, test, training, 5, **options)
    return LoopEngine(own), Recipe(own)


def engines(
    module: nn.Module | None = None,
    actors: int | None = 2,
    rate: float = 0.1,
    address: str | None = None,
    **options: Any,
) -> tuple[LoopEngine, RayEngine]:
    """The same problem for one process and for Ray."""
    loop, recipe = problem(module, rate, **options)
    return loop, RayEngine(loop, recipe, actors, address)


def compiled_engines(actors: int) -> tuple[NativeEngine, RayEngine]:
    """As above with native engines; some clients have less than a batch."""
    _, over = engines(actors=actors)
    whole = over._recipe.workload
    parts = [part[: 3 + n % 4] for n, part in enumerate(whole.parts)]
    own = replace(whole, parts=parts, training=Training(0.1, 8))
    native = NativeEngine(own, threads=2)
    build = partial(NativeEngine, threads=1, batch=native.batch)
    return native, RayEngine(native, Recipe(own, build), actors)


def tasks(engine: Engine) -> list[Task]:
    """Five servers' models, and one client with a model of its own."""
    servers = torch.stack([engine.initial() + 0.01 * n for n in range(5)])
    own = engine.initial() - 0.02
    return [
        Task(c, own if c == 17 else servers[c % 5], steps=1 + c % 4, first=c, rate=1 + c % 3)
        for c in range(CLIENTS)
    ]


def trained(engine: Engine, each: Callable[[int], None] = lambda n: None) -> list[Tensor]:
    """All models; `each` is called while the round is in work."""
    found = []
    for n, row in enumerate(engine.train(tasks(engine))):
        found.append(row.clone())
        each(n)
    return found


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def pid(actor: Any, ray: Any) -> int:
    found: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return found


def descendants(of: int) -> Iterator[int]:
    """All living processes below one."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended in the meantime
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    waiting = [of]
    while waiting:
        children = parents.get(waiting.pop(), [])
        yield from children
        waiting += children


def kill(pids: list[int]) -> None:
    for each in pids:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue  # went with its parent


def gone(pids: list[int], seconds: float = 20) -> bool:
    """All of them are dead or zombies, soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(alive(each) for each in pids):
            return True
        time.sleep(0.1)
    return False


def alive(each: int) -> bool:
    try:
        return Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
