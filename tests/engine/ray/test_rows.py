"""What travels to actors and back, with an actor in this very process in Ray's place."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from sdfeel.engine.ray.actor import Actor, Parcel
from sdfeel.engine.ray.engine import Lane, StoredRows
from tests.engine.ray.helpers import problem, same, tasks


class Here:
    """A store and a pool of one actor, as Lane and StoredRows ask for them."""

    def __init__(self, actor: Actor) -> None:
        self.actor, self.rows = actor, 0

    def put(self, packed: Any) -> Any:
        self.rows += 1
        return packed

    def submit(self, actor: int, method: str, *arguments: Any) -> Any:
        # A copy, as Ray makes one: the actor uses its memory again.
        return deepcopy(getattr(self.actor, method)(*arguments))

    def result(self, call: Any) -> Any:
        return call


def test_starts_and_shifts_reach_the_actor_and_shared_ones_only_once() -> None:
    loop, _ = problem()
    shared = torch.randn(loop.initial().shape, generator=torch.Generator().manual_seed(1)) / 5
    given = [
        replace(task, shift=None if n % 3 == 0 else shared if n % 3 == 1 else shared * n)
        for n, task in enumerate(tasks(loop))
    ]
    expected = [row.clone() for row in loop.train(given)]
    actor = Actor(Parcel(b"", [], {}))
    actor._built = loop
    here: Any = Here(actor)
    lane = Lane(here, 0, StoredRows(here, given), given)
    found = [lane.next().clone() for _ in given]
    assert same(found, expected)
    starts, own = 5 + 1, len(given) // 3
    assert here.rows == starts + 1 + own
