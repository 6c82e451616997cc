"""Which server each client belongs to: pure functions that return `home`, (C,) server numbers."""

from pathlib import Path

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import DataError, InputError, at_least, unknown
from sdfeel.data import group_files

Rng = np.random.Generator
ASSIGNMENTS = ("by_label", "ordered", "random")


def sizes(clients: int, servers: int, gamma: int = 0) -> list[int]:
    """How many clients each server has: as equal as possible, then made unequal by `gamma`.

    With ten servers, gamma moves that many clients from each of servers 4, 5 and 6 to one of
    servers 7, 8 and 9. Other numbers of servers keep these proportions and this order: normal ones
    first, then the small, then the large; three in ten are small and three in ten large, rounded.

    >>> sizes(50, 10, gamma=2)
    [5, 5, 5, 5, 3, 3, 3, 7, 7, 7]
    """
    at_least("servers", servers, 1)
    at_least("network.imbalance", gamma, 0)
    if servers > clients:
        raise InputError(
            f"{servers} servers cannot share {clients} clients: every cluster needs at least "
            f"one; use at most {clients} servers"
        )
    result = [clients // servers + (d < clients % servers) for d in range(servers)]
    uneven = (3 * servers + 5) // 10
    if gamma and not uneven:
        raise InputError(f"network.imbalance must be 0 with a single server, got {gamma}")
    for small in range(servers - 2 * uneven, servers - uneven):
        if result[small] <= gamma:
            raise InputError(
                f"network.imbalance = {gamma} would leave server {small} without clients: with "
                f"{clients} clients and {servers} servers it must be at most "
                f"{_largest(clients, servers)}"
            )
        result[small] -= gamma
        result[small + uneven] += gamma
    return result


def _largest(clients: int, servers: int) -> int:
    """The largest gamma that leaves every server at least one client."""
    uneven = (3 * servers + 5) // 10
    return min(sizes(clients, servers)[servers - 2 * uneven : servers - uneven]) - 1


def by_label(holdings: Ints, rng: Rng) -> Ints:
    """(C,) the clients in line, so that those with the same main labels stand together.

    `holdings` (C, K) counts each client's examples of each class. Clients are lined up by their
    most frequent class, then by their second; equal ones stand in random order.
    """
    ranked = np.argsort(-holdings, axis=1, kind="stable")  # (C, K) classes, most frequent first
    second = ranked[:, min(1, ranked.shape[1] - 1)]
    return np.lexsort((rng.permutation(len(holdings)), second, ranked[:, 0]))


def from_file(path: Path | str, clients: int, servers: int) -> Ints:
    """The servers listed in a JSON or CSV file; `data.group_files` describes its forms."""
    groups = group_files.read(Path(path), "server", "client", clients)
    if len(groups) != servers:
        raise DataError(
            f"{path} assigns clients to {len(groups)} servers, but there are {servers}: "
            f"set servers to {len(groups)} or use another file"
        )
    home = np.full(clients, -1, dtype=np.int64)
    for server, members in enumerate(groups):
        home[members] = server
    if (home < 0).any():
        raise DataError(
            f"{path} gives client {int(np.argmin(home))} no server: every client needs one"
        )
    return home


def assign(
    clients: int,
    servers: int,
    rng: Rng,
    *,
    assignment: str = "random",
    gamma: int = 0,
    holdings: Ints | None = None,
) -> Ints:
    """(C,) each client's server, by a rule's name or by a file ending in .json or .csv.

    A rule lets the clients stand in line; the first belong to server 0, the next to server 1, and
    so on. With `random`, any client may stand anywhere; with `ordered`, client 0 stands first.

    >>> assign(5, 2, np.random.default_rng(0), assignment="ordered")
    array([0, 0, 0, 1, 1])
    """
    if assignment in ASSIGNMENTS:
        line = np.arange(clients)
        if assignment == "random":
            line = rng.permutation(clients)
        elif assignment == "by_label":
            if holdings is None or len(holdings) != clients:
                raise InputError("by_label needs holdings: one row of label counts per client")
            line = by_label(holdings, rng)
        home = np.empty(clients, dtype=np.int64)
        home[line] = np.repeat(np.arange(servers), sizes(clients, servers, gamma))
        return home
    if not group_files.is_file_name(assignment):
        raise unknown("assignment", assignment, ASSIGNMENTS)
    if gamma:
        raise InputError(
            f"{assignment} fixes the cluster sizes: leave network.imbalance at 0, got {gamma}"
        )
    return from_file(assignment, clients, servers)
