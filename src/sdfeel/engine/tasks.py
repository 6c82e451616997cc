"""What clients are asked to do: one as an object, many at once as arrays.

A million objects would take too long. Nothing here needs torch: devices without it take part, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Floats, Ints, Singles
from sdfeel.core.errors import Diverged
from sdfeel.core.mixing import Mixing
from sdfeel.core.repeated_rounds import same_numbers
from sdfeel.core.scheme import Work

Row = TypeVar("Row")  # (P,) numbers of a model: torch's, or NumPy's


@dataclass(frozen=True, eq=False)
class TaskOf(Generic[Row]):
    """One client's part of a round."""

    client: int
    start: Row  # (P,) the model it starts from
    steps: int  # local iterations to take
    first: int  # local iterations it has taken before: where it is in its data
    rate: float = 1.0  # its learning rate in this round, as a multiple of the run's
    shift: Row | None = None  # (P,) added to every gradient; only its trainable part counts
    pull: float = 0.0  # how strongly it is pulled to its start, in addition to `training.proximal`
    own: Row | None = None  # (S,) what stays with the client, where models are personal


def diverged(task: TaskOf[Row], learning_rate: float) -> Diverged:
    """The error that every engine raises when a client's model is no longer finite."""
    return Diverged(
        f"training diverged at client {task.client}, local iteration {task.first + task.steps}: "
        f"the model is no longer finite with learning rate {learning_rate * task.rate:g}; "
        f"lower training.learning_rate"
    )


@dataclass(frozen=True, eq=False)
class Crowd:
    """Tasks of the plainest kind, and the sums that their models go into.

    Sums are made in the order of the tasks, in float64, each term rounded once: the same bits as
    `combine.Sums`.
    """

    clients: Ints  # (T,)
    starts: NDArray[Any] | Sequence[NDArray[Any]]  # (S, P) models that they start from
    start: Ints  # (T,) which of these each task starts from
    steps: Ints  # (T,) local iterations to take
    first: Ints  # (T,) local iterations taken before
    rates: Floats  # (T,) learning rates in this round, as multiples of the run's
    begins: Ints  # (T + 1,) where the entries of each task begin
    into: Ints  # (E,) the sum that an entry adds to
    weights: Floats  # (E,) the model's weight in that sum
    updates: bool  # is it the update that is added, rather than the model?

    @cached_property
    def alone(self) -> bool:
        """Is every sum one model, or update, that counts in full, so that nothing is added up?"""
        return bool((self.weights == 1).all()) and len(np.unique(self.into)) == len(self.into)


class Folding(Protocol):
    """An engine that trains a crowd and adds up its models."""

    @property
    def folds(self) -> bool:
        """Can it do that with its model and its training?"""
        ...

    def gather(self, crowd: Crowd, totals: Floats | Sequence[Singles]) -> "InTraining":
        """Begin to train; `fold` writes the sums to the rows of `totals` (R, P), whatever is there.

        Rows without any term stay as they are, or become zeros. The caller rounds sums to the
        models' type, so an engine that sends them over a network may have rounded them already.

        Models that are `alone` may go into rows of their own type, each with its own memory.
        """
        ...


class InTraining(Protocol):
    """A crowd in training; it ends when nobody holds it any more."""

    def fold(self, until: int | None = None) -> None:
        """Add up the models of all tasks before `until` (default: all), in their order."""
        ...


def folding(engine: object) -> Folding | None:
    """`engine` itself if it can train crowds, and None if it cannot."""
    return cast(Folding, engine) if getattr(engine, "folds", False) else None


def plain(work: Work, up: Mixing) -> bool:
    """Does everybody just train from one model, to be averaged by servers?"""
    down = work.down
    return (
        not work.measure
        and not work.pull
        and not any([work.shift, work.compare, down.rule, up.rule])
        and len(down.sources) == len(down.rows) > 0
        and bool((down.weights == 1).all() and (up.sources >= 0).all())
    )


def crowd_of(work: Work, up: Mixing, updates: bool, starts: Any, steps: Ints, first: Ints) -> Crowd:
    """The tasks of a round that is `plain`, in their order, without clients that train in vain.

    `steps` are those of each of `work.down.rows`, and `first` those that it has taken before.
    """
    down = work.down
    rates = np.ones(len(down.rows)) if work.rates is None else work.rates
    if len(up.rows) == 1 and same_numbers(up.sources, down.rows):  # there is nothing to sort
        begins, into = np.arange(len(steps) + 1), np.zeros(len(steps), dtype=np.int64)
        given = down.rows, starts, down.sources, steps, first, rates
        return Crowd(*given, begins, into, up.weights, updates)
    order = np.argsort(up.sources, kind="stable")  # the entries of each client, sum by sum
    sources = up.sources[order]
    begins = np.searchsorted(sources, down.rows, side="left")
    counts = np.searchsorted(sources, down.rows, side="right") - begins
    heard = counts > 0
    counts, begins, clients = counts[heard], begins[heard], down.rows[heard]
    ends = np.cumsum(counts)
    entries = order[np.arange(counts.sum()) + np.repeat(begins - ends + counts, counts)]
    owners = np.repeat(np.arange(len(up.rows)), np.diff(up.starts))
    return Crowd(
        clients,
        starts,
        down.sources[heard],
        steps[heard],
        first[heard],
        rates[heard],
        np.concatenate([[0], ends]),
        owners[entries],
        up.weights[entries],
        updates,
    )
