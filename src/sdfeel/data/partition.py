"""Which training examples each client holds: pure functions from labels to lists of indices.

Every rule gives each client at least one example, no example to two clients, and depends on
nothing but its arguments. All examples are used, except by `shards` (which drops fewer than
clients * shards_per_client) and by a file (which may leave out examples).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from sdfeel.core.arrays import Bools, Floats, Ints, grouped
from sdfeel.core.errors import (
    DataError,
    InputError,
    at_least,
    of_kind,
    said,
    unknown,
    whole_number,
)
from sdfeel.core.portable import exp, log, log1p
from sdfeel.data import group_files

Rng = np.random.Generator
# Where more than HOPELESS clients hold too few examples even in the best of FIRST_TRIES draws, a
# draw in which none does has a chance of about exp(-HOPELESS).
FIRST_TRIES, HOPELESS = 20, 40


def iid(labels: Ints, clients: int, rng: Rng) -> list[Ints]:
    """Everyone gets a random sample of the same size, give or take one."""
    owner = np.empty(len(labels), dtype=np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) % clients
    return grouped(np.arange(len(owner)), owner, clients)


def exact_classes(labels: Ints, clients: int, classes_per_client: int, rng: Rng) -> list[Ints]:
    """Every client holds exactly `classes_per_client` classes, at random.

    Every class has the same number of owners (give or take one, the largest classes first) and
    is split evenly among them. Raises InputError if a class would have no owner, since its
    examples would be lost, or fewer examples than owners.
    """
    names, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    owners = _owners_per_class(names, sizes, clients, classes_per_client)
    held = _dealt(owners, clients, rng)  # (C, K)
    owner = np.empty(len(labels), dtype=np.int64)
    for k in range(len(names)):
        mine = rng.permutation(np.flatnonzero(label == k))
        sharers = rng.permutation(np.flatnonzero(held[:, k]))
        owner[mine] = np.resize(sharers, len(mine))
    return grouped(np.arange(len(owner)), owner, clients)


def shards(labels: Ints, clients: int, shards_per_client: int, rng: Rng) -> list[Ints]:
    """Sort by label, cut into equal shards, deal each client the same number of them.

    All clients hold equally many examples. A shard may span two classes, so a client may hold
    more or fewer classes than shards; the last examples, too few for a shard each, are dropped.
    """
    at_least("classes_per_client", shards_per_client, 1)
    count = clients * shards_per_client
    size = len(labels) // count
    if size == 0:
        raise InputError(
            f"{clients} clients with {shards_per_client} shards each need {count} examples, but "
            f"there are {len(labels)}: use fewer clients or fewer classes per client"
        )
    order = np.argsort(labels, kind="stable")[: count * size]
    owner = np.full(len(labels), -1, dtype=np.int64)
    owner[order] = np.repeat(rng.permutation(count) % clients, size)
    return grouped(np.arange(len(owner)), owner, clients)


def dirichlet(
    labels: Ints,
    clients: int,
    concentration: float,
    rng: Rng,
    balance: bool = False,
    min_size: int = 10,
    tries: int = 1000,
) -> list[Ints]:
    """Each class is shared out in proportions drawn from a symmetric Dirichlet distribution.

    `balance` closes a client to further classes once it holds its even share. A draw in which
    someone holds fewer than `min_size` examples is thrown away as a whole; after `tries` of
    them the error says what to change.
    """
    _check_dirichlet(len(labels), clients, concentration, min_size)
    names, label, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    fullest, fewest = 0, clients
    for tried in range(1, tries + 1):
        counts = _drawn_counts(sizes, clients, concentration, balance, rng)  # (K, C)
        held = counts.sum(axis=0)
        smallest = int(held.min())
        if smallest >= min_size:
            owner = np.empty(len(labels), dtype=np.int64)
            for k in range(len(names)):
                mine = rng.permutation(np.flatnonzero(label == k))
                owner[mine] = np.repeat(np.arange(clients), counts[k])
            return grouped(np.arange(len(owner)), owner, clients)
        fullest, fewest = max(fullest, smallest), min(fewest, int((held < min_size).sum()))
        if tried >= FIRST_TRIES and fewest > HOPELESS:
            break
    smaller = f"min_size = {fullest}" if fullest > 0 else "a smaller min_size"
    raise InputError(
        f"no draw out of {tried} left each of {clients} clients with min_size = {min_size} "
        f"examples (concentration {concentration:g}; at best the smallest held {fullest}, and "
        f"{fewest} clients too few): use a larger concentration, fewer clients or {smaller}"
    )


def from_file(path: Path | str, examples: int) -> list[Ints]:
    """The split written in a JSON or CSV file; its forms are those of `sdfeel.data.group_files`.

    Examples may be left out, but no client may be empty and no example be in two places.
    """
    return group_files.read(Path(path), "client", "example", examples)


@dataclass(frozen=True)
class Knobs:
    """The options of all rules; each rule reads its own."""

    classes_per_client: int = 2
    concentration: float = 0.5
    balance: bool = False
    min_size: int = 10


# The options that a rule reads.
READ = {
    "iid": (),
    "classes": ("classes_per_client",),
    "shards": ("classes_per_client",),
    "dirichlet": ("concentration", "balance", "min_size"),
}


def check_options(partition: str, given: Mapping[str, Any]) -> None:
    """Refuse options that a partition does not read, and values of the wrong kind."""
    known = [field.name for field in fields(Knobs)]
    for option, value in given.items():
        if option not in known:
            raise unknown("option of a partition", option, known)
        if option not in READ.get(ALIASES.get(partition, partition), ()):
            users = [name for name, options in READ.items() if option in options]
            raise InputError(
                f"partition '{partition}' does not use {option}: leave it out, or use "
                f"{' or '.join(users)}"
            )
        usual = getattr(Knobs(), option)
        if isinstance(usual, bool):
            if not isinstance(value, bool):
                raise InputError(f"{option} must be true or false, got {said(value)}")
        elif isinstance(usual, int):
            whole_number(option, value, 1)
        else:
            of_kind(option, value, Real, "a number")


PARTITIONS: dict[str, Callable[[Ints, int, Rng, Knobs], list[Ints]]] = {
    "iid": lambda labels, clients, rng, _: iid(labels, clients, rng),
    "classes": lambda labels, clients, rng, knobs: exact_classes(
        labels, clients, knobs.classes_per_client, rng
    ),
    "shards": lambda labels, clients, rng, knobs: shards(
        labels, clients, knobs.classes_per_client, rng
    ),
    "dirichlet": lambda labels, clients, rng, knobs: dirichlet(
        labels, clients, knobs.concentration, rng, knobs.balance, knobs.min_size
    ),
}
ALIASES = {"exact": "classes", "shard": "shards"}
USERS = "users"  # everyone whom a column names is a client: labels do not matter


def of_values(
    values: Sequence[Any], names: Sequence[Any] | None = None
) -> tuple[list[Any], tuple[Ints, ...]]:
    """The different values in order, and the rows of each; of `names`, if these are given.

    Numbers are in the order of numbers, also if they are written as text.

    >>> names, parts = of_values(["10", "9", "10"])
    >>> names, [part.tolist() for part in parts]
    (['9', '10'], [[1], [0, 2]])
    """
    texts = [str(value) for value in values]
    if names is None:
        names = sorted(set(texts), key=_in_order)
    found: dict[str, list[int]] = {name: [] for name in names}
    for row, text in enumerate(texts):
        if text not in found:
            raise InputError(
                f"some test examples are of '{text}', who has no training examples: leave them out"
            )
        found[text].append(row)
    return list(names), tuple(np.array(rows, dtype=np.int64) for rows in found.values())


def _in_order(text: str) -> tuple[bool, int, str]:
    whole = text.lstrip("-").isdecimal()
    return not whole, int(text) if whole else 0, text


def split(
    labels: Ints,
    clients: int,
    rng: Rng,
    *,
    partition: str,
    classes_per_client: int = 2,
    concentration: float = 0.5,
    balance: bool = False,
    min_size: int = 10,
) -> list[Ints]:
    """The examples of each client by a rule's name, or by a file ending in .json or .csv.

    >>> [part.tolist() for part in split(np.array([1, 0, 1, 0]), 2, np.random.default_rng(0),
    ...                                  partition="classes", classes_per_client=1)]
    [[1, 3], [0, 2]]
    """
    rule = PARTITIONS.get(ALIASES.get(partition, partition))
    if rule is not None:
        if partition != "iid" and labels.dtype.kind not in "iu":
            raise InputError(
                f"partition '{partition}' needs class numbers, but the targets are of type "
                f"{labels.dtype}: use 'iid' or a file"
            )
        at_least("clients", clients, 1)
        if not len(labels):
            raise InputError("there are no examples to share: give at least one for every client")
        if clients > len(labels):
            raise InputError(
                f"{clients} clients cannot share {len(labels)} examples: every client needs at "
                f"least one; use at most {len(labels)} clients"
            )
        knobs = Knobs(classes_per_client, concentration, balance, min_size)
        return rule(labels, clients, rng, knobs)
    if not group_files.is_file_name(partition):
        raise unknown("partition", partition, [*PARTITIONS, USERS])
    parts = from_file(partition, len(labels))
    if len(parts) != clients:
        raise DataError(
            f"{partition} is a split for {len(parts)} clients, but there are {clients}: "
            f"set clients to {len(parts)} or use another file"
        )
    return parts


def _owners_per_class(names: Ints, sizes: Ints, clients: int, per_client: int) -> Ints:
    """(K,) how many clients own each class: equally many, the largest classes one more."""
    at_least("classes_per_client", per_client, 1)
    classes = len(names)
    if per_client > classes:
        raise InputError(
            f"classes_per_client must be at most {classes}, the number of classes in the data, "
            f"got {per_client}"
        )
    slots = clients * per_client
    if slots < classes:
        raise InputError(
            f"{clients} clients with {per_client} classes each can own {slots} of the {classes} "
            f"classes, and the others' examples would be lost: use more clients or more "
            f"classes per client"
        )
    owners = np.full(classes, slots // classes)
    owners[np.argsort(-sizes, kind="stable")[: slots % classes]] += 1
    for k in np.flatnonzero(sizes < owners):
        raise InputError(
            f"class {names[k]} has {sizes[k]} examples but {owners[k]} clients would own it: "
            f"use fewer clients or fewer classes per client"
        )
    return owners


def _dealt(owners: Ints, clients: int, rng: Rng) -> Ints:
    """(C, K) of 0 and 1: row sums all equal, column sums `owners`; random."""
    slots = rng.permutation(np.repeat(np.arange(len(owners)), owners)).reshape(clients, -1)
    held = np.zeros((clients, len(owners)), dtype=np.int64)
    np.add.at(held, (np.arange(clients)[:, None], slots), 1)
    lacking = [Members(held[:, k] == 0) for k in range(len(owners))]
    while (surplus := np.argwhere(held > 1)).size:
        for client, k in surplus:
            if held[client, k] > 1:  # it may have been swapped in the meantime
                _give_away(held, lacking, int(client), int(k), rng)
    return held


class Members:
    """A set of numbers that knows its n-th member; a change takes time logarithmic in its range."""

    def __init__(self, there: Bools) -> None:
        ends = np.concatenate([[0], np.cumsum(there)])
        places = np.arange(1, len(there) + 1)
        # Place i counts those of the last (lowest bit of i) places (Fenwick's tree).
        self._tree = [0, *(ends[places] - ends[places - (places & -places)]).tolist()]
        self._top = 1 << len(there).bit_length()
        self.count = int(ends[-1])

    def nth(self, n: int) -> int:
        """The member before which there are n others."""
        place, step = 0, self._top
        while step:
            if place + step < len(self._tree) and self._tree[place + step] <= n:
                place += step
                n -= self._tree[place]
            step >>= 1
        return place

    def change(self, number: int, by: int) -> None:
        """Add (1) or remove (-1) a number."""
        self.count += by
        place = number + 1
        while place < len(self._tree):
            self._tree[place] += by
            place += place & -place


def _give_away(held: Ints, lacking: list[Members], client: int, k: int, rng: Rng) -> None:
    """Swap a surplus of class k for another class, so that fewer surpluses remain in total.

    Some client lacks k, because no class has more slots than there are clients. If that client has
    a surplus itself, taking it removes at least one of the two; if it has none, it holds more
    different classes than this client does, hence one that this client lacks.
    """
    other = lacking[k].nth(int(rng.integers(lacking[k].count)))
    spare = held[other] > 1
    if not spare.any():
        spare = held[other] > held[client]
    taken = int(rng.choice(np.flatnonzero(spare)))
    for whose, which, by in (
        (client, k, -1),
        (other, k, 1),
        (client, taken, 1),
        (other, taken, -1),
    ):
        lacked = held[whose, which] == 0
        held[whose, which] += by
        lacks = held[whose, which] == 0
        if lacks != lacked:
            lacking[which].change(whose, 1 if lacks else -1)


def _check_dirichlet(examples: int, clients: int, concentration: float, min_size: int) -> None:
    if not (concentration > 0 and isfinite(concentration)):
        raise InputError(f"concentration must be above 0 and finite, got {concentration:g}")
    at_least("min_size", min_size, 1)
    if clients * min_size > examples:
        raise InputError(
            f"{clients} clients with at least {min_size} examples each need "
            f"{clients * min_size}, but there are {examples}: use fewer clients or a smaller "
            f"min_size"
        )


def _drawn_counts(sizes: Ints, clients: int, concentration: float, balance: bool, rng: Rng) -> Ints:
    """(K, C) how many examples of each class every client gets in one draw."""
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for k, size in enumerate(sizes):
        # A cut rounds down at the expense of the first in line, which must not always be the same
        # one.
        line = rng.permutation(clients)
        scores, scale = _log_gammas(concentration, clients, rng)
        if balance:
            # Whatever came before this class, somebody is still below the even share.
            scores[counts.sum(axis=0)[line] >= sizes.sum() / clients] = -np.inf
        with np.errstate(over="ignore"):
            shares = exp((scores - scores.max()) / scale)
        ends = np.cumsum(shares)
        # Dividing by the last end, and not by a sum, makes it exactly 1.
        counts[k, line] = np.diff(np.floor(ends / ends[-1] * size).astype(np.int64), prepend=0)
    return counts


def _log_gammas(shape: float, count: int, rng: Rng) -> tuple[Floats, float]:
    """Gamma variates as exp(scores / scale), which are never all 0, however small the shape.

    A variate of shape b < 1 is one of shape b + 1 times U**(1/b): below b = 0.01 it underflows, but
    its logarithm does not. Dividing by b is left to the caller, after subtracting the largest.
    """
    if shape >= 1:
        return log(rng.standard_gamma(shape, count)), 1.0
    scores = log1p(-rng.random(count)) + shape * log(rng.standard_gamma(shape + 1, count))
    return scores, shape


@dataclass(frozen=True)
class Skew:
    """Figures of one level: means over its members, each counting once."""

    largest_share: float  # of a member's most frequent class among its examples
    classes_held: float  # classes of which a member has at least one example
    distance: float  # total variation between a member's labels and all labels: 0 the same
    smallest: int  # fewest examples of any member
    largest: int  # most examples of any member


@dataclass(frozen=True)
class Unevenness:
    """The same figures for clients and for whole clusters."""

    clients: Skew
    clusters: Skew


def holdings(labels: Ints, parts: Sequence[Ints], classes: int) -> Ints:
    """(C, K) how many examples of each class every client holds.

    >>> holdings(np.array([0, 1, 1, 0]), [np.array([0, 3]), np.array([1])], 2)
    array([[2, 0],
           [0, 1]])
    """
    cells = [client * classes + labels[part] for client, part in enumerate(parts)]
    counts = np.bincount(np.concatenate(cells), minlength=len(parts) * classes)
    return counts.reshape(len(parts), classes)


def by_cluster(counts: Ints, home: Ints) -> Ints:
    """(D, K) the holdings of each server's clients together.

    >>> by_cluster(np.array([[2, 0], [0, 1], [1, 1]]), np.array([0, 1, 0]))
    array([[3, 1],
           [0, 1]])
    """
    sums = np.zeros((int(home.max()) + 1, counts.shape[1]), dtype=np.int64)
    np.add.at(sums, home, counts)
    return sums


def skew(counts: Ints) -> Skew:
    """The figures of one level, from its members' holdings; nobody may hold nothing.

    >>> skew(np.array([[4, 0], [0, 2]]))
    Skew(largest_share=1.0, classes_held=1.0, distance=0.5, smallest=2, largest=4)
    """
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    overall = counts.sum(axis=0) / counts.sum()
    return Skew(
        largest_share=float(shares.max(axis=1).mean()),
        classes_held=float((counts > 0).sum(axis=1).mean()),
        distance=float(np.abs(shares - overall).sum(axis=1).mean() / 2),
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
    )


def unevenness(counts: Ints, home: Ints) -> Unevenness:
    """The figures of clients and of clusters, from the clients' holdings and servers."""
    return Unevenness(skew(counts), skew(by_cluster(counts, home)))
