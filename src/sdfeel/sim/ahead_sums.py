"""Lanes whose rounds are plain are trained and added up together, ahead of their events."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.decide import Begun
from sdfeel.core.errors import SdfeelError
from sdfeel.core.mixing import ONE_ENTRY, Mixing
from sdfeel.core.repeated_rounds import same_numbers
from sdfeel.core.scheme import Mix, Work
from sdfeel.engine.native.rows import rows_in_c
from sdfeel.engine.tasks import Crowd, Folding, InTraining, crowd_of, plain
from sdfeel.sim.state import LaneState

EACH_WORKER = 32  # models of a batch, for each worker
LEFT = 1 / 3  # of the models ahead: then the next batch begins, before any core has to wait
ROOM_BYTES = 256e6  # of the sums of a batch, at most
NOTHING = np.zeros(1, dtype=np.int64)

Rows = NDArray[Any] | list[NDArray[Any]]
Chosen = tuple[LaneState, Begun, Crowd]  # a lane of a batch, and its part of the crowd
Coming = Callable[[], Iterator[tuple[LaneState, Begun]]]  # the lanes whose rounds end next


@dataclass(eq=False)
class Batch:
    """Lanes that are trained together, and the memory of their sums."""

    crowd: InTraining
    count: int  # tasks
    room: Floats | None  # (sums, P); None: the models have memory of their own
    folded: int = 0  # tasks that were added up

    def fold(self, until: int) -> None:
        if until > self.folded:
            self.crowd.fold(until)
            self.folded = until


@dataclass(eq=False)
class Place:
    """Where a lane's sums are."""

    begun: Begun
    base: Tensor  # what its round began from: there is a new one for every round
    totals: Rows  # (R, P) float64, or rounded already
    piece: Crowd
    first: bytes  # local iterations that its clients had taken before
    until: int  # tasks of the batch after which they are complete
    batch: Batch | None  # None: they have been kept
    kind: np.dtype[Any]  # of the models

    def still(self, lane: LaneState, taken: Ints) -> bool:
        """Are these sums those of the lane's round?"""
        return (
            self.begun is lane.begun
            and self.base is lane.base
            and self.first == taken[self.piece.clients].tobytes()
        )

    def rounded(self) -> Rows:
        """(R, P) the sums, in memory of their own: that of a batch is used again."""
        if self.batch is not None:
            self.batch.fold(self.until)
            if isinstance(self.totals, np.ndarray):
                self.totals = self.totals.astype(self.kind)
            self.batch = None
        return self.totals


class AheadSums:
    """Sums of the lanes whose rounds end next, made on all cores; the same bits.

    Like `Ahead`, but a lane's models are added up as soon as they are there. That needs a scheme in
    which their weights are known when a round begins: at the first round that ends with other
    weights, this gives up for good. A sum of one model can be weighed when its round ends.

    The next lanes are handed over while the last ones are still in training, so that no core waits
    for them.
    """

    def __init__(self, engine: Folding, workers: int) -> None:
        self._engine, self._workers = engine, workers
        # An engine that trains beside what it is asked has work for its threads at all times.
        self._open: bool = getattr(engine, "trains_beside", False)
        self._places: dict[int, Place] = {}  # by lane
        self._ahead = self._full = 0  # tasks of these lanes: now, and at most so far
        self._batches: list[Batch] = []  # those whose memory is in use, the oldest first
        self._rooms: list[Floats] = []  # memory for sums that is free: new pages cost time
        self._given_up = False
        self._pieces: dict[int, tuple[Begun, Crowd]] = {}  # by lane: it hardly ever changes

    def sums(
        self, lane: LaneState, work: Work, mix: Mix, taken: Ints, coming: Coming
    ) -> Sequence[Tensor] | None:
        """(R, P) the lane's sums for `mix.up`; None if they cannot be made ahead."""
        begun = lane.begun
        if self._given_up or begun is None or lane.base is None:
            return None
        if work is not begun.work or not self._as_begun(lane, mix, begun):
            self._given_up = True
            self._forget()
            return None
        place = self._taken(lane.number)
        if place is None or not place.still(lane, taken):
            piece = self._piece(lane, begun)
            assert piece is not None
            self._train(lane, [(lane, begun, piece)], taken, coming)
            place = self._taken(lane.number)
            assert place is not None
        found = [torch.from_numpy(row) for row in place.rounded()]
        if place.piece.alone:
            _weigh(found, mix.up.weights)
        if self._open and self._ahead <= self._full * LEFT:
            self._train(lane, [], taken, coming)
        return found

    def _taken(self, number: int) -> Place | None:
        place = self._places.pop(number, None)
        self._ahead -= 0 if place is None else len(place.piece.clients)
        return place

    def _forget(self) -> None:
        self._places.clear()
        self._ahead = 0
        while self._batches:
            self._batches.pop(0)  # the oldest first: later ones wait for its threads

    def _as_begun(self, lane: LaneState, mix: Mix, begun: Begun) -> bool:
        """Does the round end as it began, and is it plain?"""
        piece = self._piece(lane, begun)
        return (
            piece is not None
            and mix.payload == begun.mix.payload
            and _same(mix.up, begun.mix.up, weighed=not piece.alone)
        )

    def _train(self, now: LaneState, chosen: list[Chosen], taken: Ints, coming: Coming) -> None:
        """Begin a batch of `chosen` and of lanes that will be needed soon, after `now`."""
        self._drain()
        assert now.base is not None
        row = 8 * now.base.shape[1]
        most = int(min(self._workers * EACH_WORKER, max(self._workers, ROOM_BYTES // row)))
        count = self._ahead + sum(len(piece.clients) for _, _, piece in chosen)
        for other, begun in coming():
            if count >= most:
                break
            if other is now or other.number in self._places or other.base is None:
                continue
            piece = self._piece(other, begun)
            if piece is not None:
                chosen.append((other, begun, piece))
                count += len(piece.clients)
        self._full = max(self._full, count)
        if chosen:
            self._begin(chosen, taken)

    def _begin(self, chosen: list[Chosen], taken: Ints) -> None:
        pieces = [piece for _, _, piece in chosen]
        sums = [len(begun.mix.up.rows) for _, begun, _ in chosen]
        bases = [each.base for each, _, _ in chosen if each.base is not None]
        crowd = _joined(pieces, [base.numpy() for base in bases], sums, taken)
        room, size, kind = None, bases[0].shape[1], crowd.starts[0].dtype
        if all([piece.alone for piece in pieces]):
            totals: Rows = [np.empty(size, kind) for _ in range(sum(sums))]
        else:
            room = self._room(sum(sums), size)
            totals = zeroed(room[: sum(sums)], crowd.into)
        batch = Batch(self._engine.gather(crowd, totals), len(crowd.clients), room)
        self._batches.append(batch)
        until, end = 0, 0
        for (each, begun, piece), count, base in zip(chosen, sums, bases, strict=True):
            before, until, end = until, until + len(piece.clients), end + count
            part, first = totals[end - count : end], crowd.first[before:until].tobytes()
            place = Place(begun, base, part, piece, first, until, batch, kind)
            self._places[each.number] = place
        self._ahead += until

    def _room(self, sums: int, size: int) -> Floats:
        """(at least `sums`, size) memory that nobody uses."""
        room = self._rooms.pop() if self._rooms else None
        fits = room is not None and len(room) >= sums and room.shape[1] == size
        return room if room is not None and fits else np.zeros((sums, size))

    def _drain(self) -> None:
        """Complete all batches but the last, which keeps threads busy, and free their memory."""
        while len(self._batches) > self._open:
            batch = self._batches.pop(0)
            try:
                batch.fold(batch.count)
            except SdfeelError:  # its lane will ask again, and gets the error then
                self._forget()
                return
            for place in self._places.values():
                if place.batch is batch:
                    place.rounded()
            if batch.room is not None:
                self._rooms.append(batch.room)

    def _piece(self, lane: LaneState, begun: Begun) -> Crowd | None:
        """The lane's part of a crowd, except for what changes in every round; None: not plain."""
        known = self._known(lane.number, begun)
        if known is not None:
            return known
        if not plain(begun.work, begun.mix.up):
            return None
        rows = {source: n for n, source in enumerate(lane.sources)}
        up, updates = begun.mix.up, begun.mix.payload == "update"
        piece = crowd_of(begun.work, up, updates, None, begun.steps, begun.steps)
        start = np.array([rows[source] for source in piece.start.tolist()], dtype=np.int64)
        single = len(up.rows) == len(up.sources)  # its models are weighed when their rounds end
        weights = np.ones(len(piece.weights)) if single else piece.weights
        piece = replace(piece, start=start, weights=weights)
        if piece.alone is not single or (single and len(piece.into) != len(up.rows)):
            return None  # a sum of nothing, or a model of somebody who has not trained
        self._pieces[lane.number] = begun, piece
        return piece

    def _known(self, number: int, begun: Begun) -> Crowd | None:
        """A lane's piece, if its round is as one before it; only plain rounds have one."""
        before, piece = self._pieces.get(number, (None, None))
        if before is begun:
            return piece
        if before is None or piece is None:
            return None
        if before.work is not begun.work or before.mix.payload != begun.mix.payload:
            return None
        if before.steps.tobytes() != begun.steps.tobytes():
            return None
        if not _same(before.mix.up, begun.mix.up, weighed=not piece.alone):
            return None
        self._pieces[number] = begun, piece  # found at once when asked for again
        return piece


def zeroed(totals: Floats, into: Ints) -> Floats:
    """The same memory for sums, with 0 where nothing is added."""
    never = np.ones(len(totals), dtype=bool)
    never[into] = False
    if never.any():
        totals[never] = 0
    return totals


def _joined(pieces: list[Crowd], bases: list[NDArray[Any]], sums: list[int], taken: Ints) -> Crowd:
    """One crowd of several lanes: their models and sums follow one another."""
    clients = np.concatenate([piece.clients for piece in pieces])
    entries = [len(piece.into) for piece in pieces]
    tasks = [len(piece.clients) for piece in pieces]
    ends = np.concatenate([piece.begins[1:] for piece in pieces]) + _offsets(entries, tasks)
    return Crowd(
        clients,
        [row for base in bases for row in base],
        np.concatenate([piece.start for piece in pieces]) + _offsets(list(map(len, bases)), tasks),
        np.concatenate([piece.steps for piece in pieces]),
        taken[clients],
        np.concatenate([piece.rates for piece in pieces]),
        np.concatenate([NOTHING, ends]),
        np.concatenate([piece.into for piece in pieces]) + _offsets(sums, entries),
        np.concatenate([piece.weights for piece in pieces]),
        pieces[0].updates,
    )


def _offsets(sizes: list[int], counts: list[int]) -> Ints:
    """Where each of several parts begins, once for each of its members."""
    return np.repeat(list(accumulate(sizes[:-1], initial=0)), counts)


def _weigh(sums: list[Tensor], weights: Floats) -> None:
    """Multiply sums of one model by their weights: a product is rounded once, as a term of a sum
    is, and no zero is negative."""
    for row, weight in zip(sums, weights, strict=True):
        if weight == 1:
            continue
        compiled = rows_in_c()
        if compiled is not None and row.dtype is torch.float32:
            compiled.mix([row.data_ptr()], weight, ONE_ENTRY, [row.data_ptr()], len(row))
        else:
            row.copy_(row.double().mul_(float(weight)).add_(0.0))


def _same(one: Mixing, other: Mixing, weighed: bool = True) -> bool:
    """Do the same models go into the same sums, and count the same, if they are `weighed`?"""
    return one is other or (
        one.rule == other.rule
        and (not weighed or same_numbers(one.weights, other.weights))
        and same_numbers(one.sources, other.sources)
        and same_numbers(one.rows, other.rows)
        and same_numbers(one.starts, other.starts)
    )
