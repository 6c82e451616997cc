"""What a client keeps on its own disk from round to round: its rows, and what compression left out.

A round's changes to them count only if the server used the round's result. The next piece of work
tells: by then the server has counted the round's local iterations, or it has not. So both sides
agree after a crash of either at any moment.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.engine.fused import weighted_by_hand
from sdfeel.engine.wire_codes import Coding, Sent, send
from sdfeel.live.protocol import Header
from sdfeel.live.store import Store
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.tensors import MODEL, pack, parsed

Array = NDArray[Any]
OWED = 0  # the place of what messages left out (error feedback); rows have places 1, 2, ...
OWN = -1  # the place of the personal part of the model, which stays with the client
PENDING, LAST, EPOCH, RELEASED = "pending", "last", "epoch", "released"  # names of facts
PROMISED = "promised"  # the fact: what was answered in masked sums
MOST_SPANS = 256  # most spans of rounds in which something was sent
NOW, THEN = 0, 1  # "rounds" of rows in the store: as they are; as they are if the result counts


@dataclass(frozen=True)
class Given:
    """The rounds in which something was sent: once each, in whatever order servers ask.

    The last round alone would not be enough: then a server that asks for a round far ahead would
    block all rounds before it, also for this client's other servers.
    """

    spans: list[list[int]]  # [[first, the one after the last], ...], ascending and apart
    last: int | None = None  # the one that was recorded last
    told: Mapping[str, Any] = field(default_factory=dict)  # what was sent in that round

    @classmethod
    def of(cls, fact: Mapping[str, Any] | None) -> "Given":
        return cls([]) if fact is None else cls(**fact)

    @property
    def fact(self) -> dict[str, Any]:
        """The form in which it is stored."""
        return {"spans": self.spans, "last": self.last, "told": dict(self.told)}

    def __contains__(self, k: int) -> bool:
        return any(first <= k < after for first, after in self.spans)

    def what(self, k: int | None) -> dict[str, Any] | None:
        """What was sent in round `k`; None if nothing was, or if it is no longer known."""
        return dict(self.told) if k is not None and k == self.last else None

    def also(self, k: int, what: Mapping[str, Any]) -> "Given":
        """The same, with `what` sent in round `k`."""
        spans: list[list[int]] = []
        for first, after in sorted([*self.spans, [k, k + 1]]):
            if spans and first <= spans[-1][1]:
                spans[-1] = [spans[-1][0], max(after, spans[-1][1])]
            else:
                spans.append([first, after])
        if len(spans) > MOST_SPANS:
            raise Refused(
                f"a server asks for round {k + 1}, but servers have skipped rounds {MOST_SPANS} "
                f"times already: from now on, a round must follow one in which this client worked"
            )
        return Given(spans, k, what)


class ClientRows:
    """A client's rows, by place."""

    def __init__(
        self, store: Store, fresh: Mapping[int, Array], models: Collection[int] = ()
    ) -> None:
        self._store, self._fresh = store, fresh  # initial values
        self._models = models  # places whose initial value is the model

    def get(self, place: int) -> Array | None:
        saved = self._store.get("row", NOW, place)
        return self._fresh.get(place) if saved is None else parsed(saved.body)[MODEL]

    def renew(self, epoch: int, model: Array) -> None:
        """In a new epoch, reset the rows: to nothing, or to the model of its first round."""
        if (self._store.fact(EPOCH) or 0) == epoch:
            return
        with self._store.commit():
            for place in self._fresh.keys() - {OWN}:  # servers do not know that one
                self._store.drop("row", NOW, place)
                self._store.drop("row", THEN, place)
                if place in self._models:
                    self._store.put("row", NOW, place, pack({MODEL: model}))
            self._store.remember(PENDING, None)
            self._store.remember(EPOCH, epoch)

    def settle(self, first: int) -> None:
        """Adopt the last round's changes if the server has counted it; otherwise forget them."""
        pending = self._store.fact(PENDING)
        if pending is None:
            return
        with self._store.commit():
            for place in pending["places"] if first == pending["counted"] else ():
                saved = self._store.get("row", THEN, place)
                if saved is None:
                    self._store.drop("row", NOW, place)
                else:
                    self._store.put("row", NOW, place, saved.body, replace=True)
            self._store.remember(PENDING, None)
        self._store.sweep_files()

    def follow(self, k: int, rows: Mapping[int, Array]) -> None:
        """Set rows to what they become with the model of round `k`, once."""
        if self._store.fact(LAST) == k:
            return
        with self._store.commit():
            for place, row in rows.items():
                self._store.put("row", NOW, place, pack({MODEL: row}), replace=True)
            self._store.remember(LAST, k)

    def expect(self, counted: int, rows: Mapping[int, Array | None]) -> None:
        """Save what rows become once the server has counted this many local iterations."""
        with self._store.commit():
            for place, row in rows.items():
                self._store.drop("row", THEN, place)
                if row is not None:
                    self._store.put("row", THEN, place, pack({MODEL: row}), replace=True)
            self._store.remember(PENDING, {"counted": counted, "places": list(rows)})

    def release(
        self, k: int, start: str, steps: int, content: str, first: int | None = None
    ) -> None:
        """Remember that an update of round `k`, from the model with this hash, will be sent.

        The noise of a round hides only one update: a request for a second one, from another model
        or made in another way, is refused. With `first`, each step from there on has its own noise.
        """
        known = Given.of(self._store.fact(RELEASED))
        told = {"start": start, "steps": steps, "content": content}
        if k in known and known.what(k) != told:
            raise Refused(
                f"a server asks for an update of round {k + 1} again, but the noise of that "
                f"round has been used: no update is given away twice"
            )
        now = known.also(k, told)
        spans = None if first is None else self._spans(start, [first, steps, content])
        with self._store.commit():
            self._store.remember(RELEASED, now.fact)
            if spans is not None:
                place = int(start[:15], 16)
                self._store.put("used", 0, place, b"", {"spans": spans}, replace=True)

    def released(self, k: int | None) -> int | None:
        """How many steps the update took that was sent in round `k`; None if none was sent."""
        told = Given.of(self._store.fact(RELEASED)).what(k)
        return None if told is None else int(told["steps"])

    def _spans(self, start: str, mine: list[Any]) -> list[list[Any]]:
        """The steps whose results were sent, starting from one model, and those of `mine`.

        A step's noise is drawn from its number and the model with which the round began, so in all
        rounds together it can hide only one gradient.
        """
        known: list[list[Any]] = (self._store.note("used", 0, int(start[:15], 16)) or {}).get(
            "spans", []
        )
        first, steps, _ = mine
        clash = (each for each in known if each[0] < first + steps and first < sum(each[:2]))
        if any(each != mine for each in clash):
            raise Refused(
                f"a server asks for step {first + 1} again from the same model, made in "
                f"another way, but its noise has been used: no step is given away twice"
            )
        return known if mine in known else [*known, mine]

    def promised(self, k: int) -> dict[str, Any]:
        """What was answered so far in the masked sum of round `k`."""
        known = Given.of(self._store.fact(PROMISED))
        told = known.what(k)
        if k in known and told is None:
            raise Refused(
                f"a server asks for the sum of round {k + 1} again, but later sums have begun "
                f"since: no update is given away twice"
            )
        return {} if told is None else told

    def promise(self, k: int, state: Mapping[str, Any]) -> None:
        """Remember what we are about to answer, so that we never contradict it."""
        with self._store.commit():
            known = Given.of(self._store.fact(PROMISED))
            self._store.remember(PROMISED, known.also(k, state).fact)


def coded(coding: Coding, kept: ClientRows, update: Array, client: int, k: int) -> Sent:
    """A client's update as it is sent."""
    return send(coding, update.astype(np.float32), kept.get(OWED), client, k)


def summed(terms: object, known: Mapping[int, Array], what: str) -> Array:
    """The weighted sum of known rows that a server asks for as [[row, weight], ...]."""
    if not isinstance(terms, list) or not terms:
        raise Refused(f"a server does not say what to make {what} from")
    found = []
    for each in terms:
        if not isinstance(each, list) or len(each) != 2 or not _among(each[0], known):
            raise Refused(f"a server asks to make {what} from rows that this client does not have")
        number, weight = each
        if not isinstance(weight, int | float) or not np.isfinite(weight):
            raise Refused(f"a server sends weights for {what} that are not numbers")
        found.append((float(weight), known[number]))
    return finite_sum(found, what)


def finite_sum(terms: Iterable[tuple[float, Array]], what: str) -> Array:
    """A weighted sum that a server asks for; `Refused` unless it is finite."""
    with np.errstate(all="ignore"):
        total = weighted_by_hand(terms)
    return _finite(total, what)


def _finite(row: Array, what: str) -> Array:
    """The row, or `Refused`: infinite numbers would spoil all later rounds, with any server."""
    if not np.isfinite(row).all():
        raise Refused(f"a server asks to make {what} that is not finite")
    return row


def _among(number: object, known: Mapping[int, object]) -> bool:
    """Is this value, which may be anything, the number of a known row?"""
    return isinstance(number, int) and number in known


def made(
    header: Header, key: str, known: Mapping[int, Array], own: Mapping[int, int]
) -> dict[int, Array]:
    """This client's new rows, by place, as a server's header tells; `own` maps numbers to places.

    `Refused` unless they are finite: the client may keep them for longer than that server exists.
    """
    asked = header.get(key, [])
    if not isinstance(asked, list):
        raise Refused("a server does not say what becomes of this client's rows")
    found = {}
    for each in asked:
        if not isinstance(each, list) or len(each) != 2 or not _among(each[0], own):
            raise Refused("a server asks for rows that this client does not hold")
        number, terms = each
        adds = key == "kept" and header.get("payload") != "model"
        row = summed(terms, known, "a row")
        if adds:
            with np.errstate(all="ignore"):
                row = _finite(known[number] + row, "a row")
        found[own[number]] = row
    return found
