"""What each client of a round is asked to do: the engine's tasks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.arrays import Ints
from sdfeel.core.decide import Begun
from sdfeel.core.scheme import Mix, Work
from sdfeel.engine.base import Task
from sdfeel.engine.combine import Rows, combined, summed
from sdfeel.engine.fused import bounded
from sdfeel.engine.tasks import Folding, TaskOf, crowd_of
from sdfeel.sim.state import LaneState, State


def tasks_of(
    state: State, stays: Tensor | None, work: Work, done: Ints, each: LaneState
) -> list[Task]:
    """The tasks of a lane's round; those that were made since it began, if nothing has changed."""
    if each.tasks is not None and _still(state, stays, work, done, each):
        return each.tasks
    models: Rows = state.rows
    if each.base is not None:
        models = dict(zip(each.sources, each.base, strict=True))
    rates = np.ones(len(work.down.rows)) if work.rates is None else work.rates
    shifts = {} if work.shift is None else {i: (of, w) for i, of, w in work.shift}
    tasks: list[Task] = []
    starts: dict[int, Tensor] = {}
    for rate, (client, sources, weights) in zip(rates.tolist(), work.down, strict=True):
        if work.down.rule is not None:
            start = combined(work.down, len(tasks), models[int(sources[0])], models)
        elif len(sources) == 1 and weights[0] == 1:
            source = int(sources[0])
            if source not in starts:  # many clients start from one model: one tensor for all
                starts[source] = models[source]
            start = starts[source]
        else:
            start = summed(sources, weights, models)
        first = int(state.taken[client])
        shift = None
        if client in shifts:
            row = summed(*shifts[client], models).numpy()
            shift = torch.from_numpy(bounded(row, start.numpy(), work.clip))
        own, steps = state.own.get(client, stays), int(done[client])
        tasks.append(TaskOf(client, start, steps, first, rate, shift, work.pull, own))
    return tasks


def _still(state: State, stays: Tensor | None, work: Work, done: Ints, each: LaneState) -> bool:
    """Are the lane's tasks still what its clients are to do?"""
    tasks: Sequence[Task] = each.tasks or ()
    return (
        each.begun is not None
        and work is each.begun.work
        and each.base is not None
        and all(
            task.steps == done[task.client]
            and task.first == state.taken[task.client]
            and task.own is state.own.get(task.client, stays)
            for task in tasks
        )
    )


def folded(engine: Folding, state: State, decided: Begun) -> Tensor | Sequence[Tensor]:
    """(R, P) what reaches `mix.up.rows` in a plain round: the engine adds it up."""
    work, mix, like = decided.work, decided.mix, state.servers
    starts: NDArray[Any] | list[NDArray[Any]] = like.numpy()
    first, updates = state.taken[work.down.rows], mix.payload == "update"
    crowd = crowd_of(work, mix.up, updates, starts, decided.steps, first)
    if (crowd.start < 0).any():  # some start from rows of a shelf
        taken = work.down.taken
        starts = [state.rows[n].numpy() for n in taken.tolist()]
        crowd = replace(crowd, starts=starts, start=np.searchsorted(taken, crowd.start))
    if crowd.alone and len(crowd.into) == len(mix.up.rows):
        found = [like.new_empty(like.shape[1]) for _ in mix.up.rows]
        engine.gather(crowd, [row.numpy() for row in found]).fold()
        return found
    totals = torch.zeros(len(mix.up.rows), like.shape[1], dtype=torch.float64)
    engine.gather(crowd, totals.numpy()).fold()
    return totals.to(like.dtype)


def takers_of(mix: Mix) -> dict[int, list[tuple[int, float]]]:
    """For each client, the sums that its model goes into, and with which weights."""
    takers: dict[int, list[tuple[int, float]]] = {}
    for index, (_, sources, weights) in enumerate(mix.up):
        for source, weight in zip(sources.tolist(), weights.tolist(), strict=True):
            takers.setdefault(source, []).append((index, weight))
    return takers
