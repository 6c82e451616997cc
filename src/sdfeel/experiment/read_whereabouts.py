"""Traces of clients: where they are and when they take part, from a table of events."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sdfeel.core import named
from sdfeel.core.arrays import floats, ints
from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES, laplacian_weights
from sdfeel.core.network import Network
from sdfeel.core.whereabouts import NOWHERE, UNCHANGED, Rule, Whereabouts
from sdfeel.experiment.key_rules import Case
from sdfeel.experiment.real_networks import great_circle
from sdfeel.experiment.schema import NetworkSection
from sdfeel.experiment.user_files import text_of

Place = tuple[float, float]  # longitude and latitude
FLAGS = ("available", "charging", "wifi")
COLUMNS = ("seconds", "round", "client", "server", "longitude", "latitude", *FLAGS)


def build_whereabouts(section: NetworkSection, name: str, net: Network) -> Whereabouts:
    """Where the clients are, as the file of this name says."""
    found = read_whereabouts(text_of(name), name, len(net.samples), net)
    period = section.whereabouts_period
    if period is not None and len(found.when) and period <= found.when[-1]:
        raise InputError(
            f"network.whereabouts_period is {period:g}, but {name} lasts until "
            f"{found.when[-1]:g}: raise it above that"
        )
    return replace(found, period=period, rule=_rule(section.mixing))


def _rule(mixing: object) -> Rule:
    if callable(mixing):
        given: Rule = mixing
        return given
    if named.is_path(mixing) and callable(found := named.imported(str(mixing))):
        own: Rule = found
        return own
    return GOSSIP_RULES.get(str(mixing), laplacian_weights)


def used_whereabouts(case: Case, found: Whereabouts) -> Whereabouts | None:
    """The part of a trace that the scheme notices; InputError for keys that contradict it."""
    used = case.used
    moves = found.moves and "moving_clients" in used and case.several
    if not moves:
        found = replace(found, moving=False)
        return found if found.absences and "absent_clients" in used else None
    compressed = case.experiment.compression.backhaul
    if compressed != "none":
        raise InputError(
            f"compression.backhaul is {compressed}, for which servers keep copies of their "
            f"neighbours' models, but network.whereabouts lets a server continue as another's "
            f"copy: set compression.backhaul to none"
        )
    if case.experiment.network.overlap:
        raise InputError(
            "network.overlap puts clients into several cells, but network.whereabouts puts every "
            "client into one: leave one of them out"
        )
    return found


@dataclass(frozen=True)
class _Row:
    line: int
    when: float
    client: int
    cells: dict[str, str]


def read_whereabouts(text: str, name: str, clients: int, net: Network) -> Whereabouts:
    """The events of a table whose first line names its columns; its rows may be in any order.

    >>> from sdfeel.core.network import clustered
    >>> pair = clustered([1, 1], [0, 1], np.array([[0, 1], [1, 0]]))
    >>> found = read_whereabouts("seconds,client,server\\n2.5,1,0\\n4,0,none", "t.csv", 2, pair)
    >>> found.when.tolist(), found.who.tolist(), found.server.tolist()
    ([2.5, 4.0], [1, 0], [0, -1])
    """
    header, *rows = _table(text, name)
    unit = _checked(header[1], name)
    events = sorted(
        (_row(line, cells, header[1], unit, name, clients) for line, cells in rows),
        key=lambda row: row.when,
    )
    flags: dict[int, dict[str, bool]] = {}
    server, there, metres = [], [], []
    cells, places = net.home.tolist(), dict[int, Place]()
    for row in events:
        place, given = _place(row, name), row.cells.get("server", "")
        server.append(
            _nearest(place, name, net) if place and not given else _server(row, name, net)
        )
        metres.append(_metres(row.client, server[-1], place, cells, places, net))
        known = flags.setdefault(row.client, {})
        said = {flag: _flag(row, flag, name) for flag in FLAGS if row.cells.get(flag)}
        known |= said
        there.append(int(all(known.values())) if said else UNCHANGED)
    return Whereabouts(
        floats([row.when for row in events]),
        ints([row.client for row in events]),
        ints(server),
        ints(there),
        "round" if unit == "round" else "second",
        metres=None if np.isnan(metres).all() else floats(metres),
        lines=ints([row.line for row in events]),
    )


def _table(text: str, name: str) -> list[tuple[int, list[str]]]:
    """The cells of all lines but comments and empty ones, with the lines' numbers; a dash counts
    as an empty cell."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        cells = [cell.strip() for cell in next(csv.reader([line]))]
        found.append((number, ["" if cell == "-" else cell for cell in cells]))
    if len(found) < 2:
        raise InputError(f"{name} has no events: give a line of column names, and a line per event")
    return found


def _checked(columns: Sequence[str], name: str) -> str:
    """The name of the column of times, once all column names are checked."""
    strange = [column for column in columns if column not in COLUMNS]
    if strange:
        raise InputError(
            f"the first line of {name} names a column '{strange[0]}': columns are "
            f"{', '.join(COLUMNS)}"
        )
    units = [column for column in columns if column in ("seconds", "round")]
    if len(units) != 1 or "client" not in columns or len(set(columns)) < len(columns):
        raise InputError(
            f"the first line of {name} must name `seconds` or `round`, and `client`, once each, "
            f"got '{','.join(columns)}'"
        )
    if ("longitude" in columns) != ("latitude" in columns):
        raise InputError(f"{name} has only one of longitude and latitude: give both columns")
    if not set(columns) & {"server", "longitude", *FLAGS}:
        raise InputError(
            f"{name} says neither where clients are nor whether they take part: add a column "
            f"server or available"
        )
    return units[0]


def _row(
    line: int, cells: list[str], columns: list[str], unit: str, name: str, clients: int
) -> _Row:
    if len(cells) != len(columns):
        raise InputError(
            f"line {line} of {name} has {len(cells)} values for {len(columns)} columns "
            f"({', '.join(columns)})"
        )
    own = dict(zip(columns, cells, strict=True))
    when, client = _number(own[unit]), own["client"]
    if not 0 <= when < np.inf:
        raise InputError(
            f"line {line} of {name} gives '{own[unit]}' as {unit}: it must be a number of at least "
            f"0"
        )
    if not client.isdecimal() or int(client) >= clients:
        raise InputError(
            f"line {line} of {name} names client '{client}', but clients are 0 to {clients - 1}"
        )
    return _Row(line, when, int(client), own)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _flag(row: _Row, flag: str, name: str) -> bool:
    text = row.cells[flag]
    if text not in ("0", "1"):
        raise InputError(f"line {row.line} of {name} gives '{text}' as {flag}: it must be 0 or 1")
    return text == "1"


def _server(row: _Row, name: str, net: Network) -> int:
    """The number of the server that the client has from now on."""
    given, count = row.cells.get("server", ""), len(net.linked)
    if given == "none":
        return NOWHERE
    if given:
        if not given.isdecimal() or int(given) >= count:
            raise InputError(
                f"line {row.line} of {name} names server '{given}', but servers are 0 to "
                f"{count - 1}, or none"
            )
        return int(given)
    return UNCHANGED


def _place(row: _Row, name: str) -> Place | None:
    """Where a client is from now on, if the row says so."""
    place = [row.cells.get(key, "") for key in ("longitude", "latitude")]
    if place == ["", ""]:
        return None
    try:
        x, y = map(float, place)
    except ValueError:
        x, y = np.nan, np.nan
    if not (-180 <= x <= 180 and -90 <= y <= 90):
        raise InputError(
            f"line {row.line} of {name} gives '{','.join(place)}' as a place, not a longitude "
            f"(-180 to 180) and a latitude (-90 to 90)"
        )
    return x, y


def _nearest(place: Place, name: str, net: Network) -> int:
    """The server that is nearest to a place."""
    if net.places is None:
        raise InputError(
            f"{name} says where clients are, but no file says where servers are: give "
            f"network.places, or a network.graph that knows it"
        )
    return int(np.argmin([great_circle(place, each) for each in net.places]))


def _metres(
    client: int,
    server: int,
    place: Place | None,
    cells: list[int],
    places: dict[int, Place],
    net: Network,
) -> float:
    """How far a client is from its server after an event; nan: as before, or not known."""
    if server != UNCHANGED:
        cells[client] = server
    if place is not None:
        places[client] = place
    said = server != UNCHANGED or place is not None
    if not said or client not in places or cells[client] < 0 or net.places is None:
        return np.nan
    return 1000 * great_circle(places[client], net.places[cells[client]])
