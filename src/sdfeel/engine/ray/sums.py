"""Sums made where the models are: one actor trains and adds up all clients that share a sum.

A sum has one order, that of its tasks. So it is made in one place, as native makes it, and whole
sums travel instead of models. Where the clients of a sum belong to several actors, or one of them
fails, their models travel one by one, and are added up here: the same bits, and the same error.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints, Singles, ints
from sdfeel.engine.base import Task
from sdfeel.engine.combine import add_multiple
from sdfeel.engine.ray.actor import Summed
from sdfeel.engine.tasks import Crowd

UNEVEN = 1.3  # times an even share of the work: about as slow as models that travel one by one

Train = Callable[[Sequence[Task]], Iterator[Tensor]]
Totals = Floats | Sequence[Singles]


def owners_of(clients: int, actors: int, crowd: Crowd | None = None) -> Ints:
    """(C,) the actor of each client: in turn, but one for all whose models share a sum.

    Where that would leave most of the work to a few actors, as with a single server, all are dealt
    in turn, and their models travel one by one.
    """
    in_turn = np.arange(clients) % actors
    if crowd is None:
        return ints(in_turn)
    owners = in_turn.copy()
    groups = _groups(crowd)
    work = np.bincount(groups, weights=crowd.steps)
    loads = [0.0] * actors
    for group in np.argsort(-work, kind="stable").tolist():
        actor = loads.index(min(loads))
        owners[crowd.clients[groups == group]] = actor
        loads[actor] += work[group]
    return ints(owners if max(loads) <= UNEVEN * sum(loads) / actors else in_turn)


def _groups(crowd: Crowd) -> Ints:
    """(T,) numbers of groups that have no sum in common."""
    group = np.arange(int(crowd.into.max(initial=0)) + 1)
    for begin, end in zip(crowd.begins[:-1], crowd.begins[1:], strict=True):
        joined = np.unique(group[crowd.into[begin:end]])
        if len(joined) > 1:
            group[np.isin(group, joined)] = joined[0]
    return ints(np.unique(group[crowd.into[crowd.begins[:-1]]], return_inverse=True)[1])


def apart(crowd: Crowd, owners: Ints) -> bool:
    """Does one actor train all models of each sum?"""
    actors = np.repeat(owners[crowd.clients], np.diff(crowd.begins))
    lowest = np.full(int(crowd.into.max(initial=0)) + 1, len(owners))
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, crowd.into, actors)
    np.maximum.at(highest, crowd.into, actors)
    return bool((lowest >= highest).all())


def part_of(crowd: Crowd, mine: NDArray[np.bool_]) -> tuple[Crowd, Ints]:
    """Some tasks, whose sums are numbered anew, and which sums these are."""
    counts = np.diff(crowd.begins)
    entries = np.repeat(mine, counts)
    sums, into = np.unique(crowd.into[entries], return_inverse=True)
    rows, start = np.unique(crowd.start[mine], return_inverse=True)
    part = Crowd(
        crowd.clients[mine],
        np.asarray(crowd.starts)[rows],
        ints(start),
        crowd.steps[mine],
        crowd.first[mine],
        crowd.rates[mine],
        np.concatenate([[0], np.cumsum(counts[mine])]),
        ints(into),
        crowd.weights[entries],
        crowd.updates,
    )
    return part, ints(sums)


@dataclass(eq=False)
class Portion:
    """What one actor was asked for."""

    call: Any
    sums: Ints
    first: int  # its first task
    done: bool = False


class SummedThere:
    """A crowd in training whose sums are made by the actors."""

    def __init__(self, pool: Any, crowd: Crowd, totals: Totals, train: Train) -> None:
        self._pool, self._totals = pool, totals
        self._here = SummedHere(crowd, totals, train)
        self._fails = False
        owners, self._portions = pool.owners[crowd.clients], list[Portion]()
        for actor in np.unique(owners).tolist():
            mine = owners == actor
            part, sums = part_of(crowd, mine)
            rest = pickle.dumps((replace(part, starts=()), len(sums)))
            call = pool.submit(actor, "fold", rest, part.starts)
            self._portions.append(Portion(call, sums, int(mine.argmax())))

    def fold(self, until: int | None = None) -> None:
        """Wait for the sums of all tasks before `until`."""
        for each in self._portions:
            if not (self._fails or each.done) and (until is None or each.first < until):
                answer: Summed = self._pool.result(each.call)
                each.done, self._fails = True, answer[1] is not None
                if not self._fails:
                    for n, found in zip(each.sums.tolist(), answer[0], strict=True):
                        self._totals[n][:] = found
        if self._fails:
            self._here.fold(until)


class SummedHere:
    """A crowd in training whose models come one by one."""

    def __init__(self, crowd: Crowd, totals: Totals, train: Train) -> None:
        self._crowd, self._totals, self._train = crowd, totals, train
        self._models: Iterator[Tensor] | None = None
        self._folded = 0

    def fold(self, until: int | None = None) -> None:
        """Add up the models of all tasks before `until`, in their order."""
        crowd = self._crowd
        if self._models is None:
            for total in self._totals:
                total[:] = 0
            starts = list(torch.from_numpy(np.array(crowd.starts)))
            columns = crowd.clients, crowd.start, crowd.steps, crowd.first, crowd.rates
            rows = zip(*(column.tolist() for column in columns), strict=True)
            self._tasks = [Task(c, starts[s], n, first, rate) for c, s, n, first, rate in rows]
            self._models = self._train(self._tasks)
        last = len(self._tasks) if until is None else until
        for task in self._tasks[self._folded : last]:
            model = next(self._models)
            row = (model - task.start if crowd.updates else model).double()
            begin, end = crowd.begins[self._folded : self._folded + 2].tolist()
            for n in range(begin, end):
                total = self._totals[int(crowd.into[n])]
                if total.dtype == np.float64:
                    add_multiple(torch.from_numpy(total), row, float(crowd.weights[n]))
                else:  # it is alone
                    total += row.numpy()
            self._folded += 1
