"""Server graphs that exist: by name from topohub, or from files, with what each link is like."""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import adjacency
from sdfeel.experiment.user_files import read_by

TOPOHUB = "topohub:"
KM_PER_SECOND = 2e5  # light in a fibre
EARTH_KM = 6371.0
COLUMNS = ("mbps", "ms", "km")


@dataclass(frozen=True, eq=False)
class ServerGraph:
    """Links between servers; NaN where nothing is known about one."""

    links: Floats  # (D, D) 1 where two servers are joined
    mbps: Floats  # (D, D)
    seconds: Floats  # (D, D) that a message travels
    cloud_mbps: Floats  # (D,)
    cloud_seconds: Floats  # (D,)
    places: tuple[tuple[float, float], ...] | None = None  # longitude and latitude
    names: tuple[str, ...] = ()

    @property
    def servers(self) -> int:
        return len(self.links)


def catalogue(prefix: str = "") -> list[str]:
    """The names of topohub's networks that begin with `prefix`, as network.graph takes them."""
    return sorted(
        TOPOHUB + name for name in _catalogue(_data()).values() if name.startswith(prefix)
    )


def topohub(graph: str) -> ServerGraph:
    """A network by its name, `topohub:topozoo/Abilene`: 707 graphs, most with their kilometres."""
    name, data = graph.removeprefix(TOPOHUB), _data()
    known = _catalogue(data)
    if name.lower() not in known:
        close = get_close_matches(name.lower(), known, 1, 0.4)
        hint = f": did you mean '{TOPOHUB}{known[close[0]]}'?" if close else ""
        raise InputError(f"topohub has no network '{name}'{hint}")
    file = data / f"{known[name.lower()]}.json"
    return _of_record(json.loads(file.read_text(encoding="utf-8")))


def _data() -> Path:
    """Where the package keeps its networks."""
    try:
        import topohub as package
    except ImportError:
        raise InputError(
            f"networks called {TOPOHUB}... need the package topohub: install sdfeel[networks]"
        ) from None
    return Path(package.__file__).parent / "data"


@lru_cache(maxsize=4)
def _catalogue(data: Path) -> dict[str, str]:
    """The names of all networks, each found by its lower-case spelling."""
    files = (path.with_suffix("").relative_to(data) for path in sorted(data.rglob("*.json")))
    return {path.as_posix().lower(): path.as_posix() for path in files}


def _of_record(record: dict[str, Any]) -> ServerGraph:
    nodes = record["nodes"]
    number = {node["id"]: n for n, node in enumerate(nodes)}
    edges = record.get("edges", record.get("links", []))
    wires = [
        (number[edge["source"]], number[edge["target"]], None, _km_seconds(edge.get("dist")))
        for edge in edges
    ]
    places = tuple((float(node["pos"][0]), float(node["pos"][1])) for node in nodes)
    names = tuple(str(node.get("name", n)) for n, node in enumerate(nodes))
    return _joined(len(nodes), wires, places, names)


Wire = tuple[int, int, float | None, float | None]  # two servers, Mbit/s, seconds of travel


def _joined(
    count: int,
    wires: Iterable[Wire],
    places: tuple[tuple[float, float], ...] | None = None,
    names: tuple[str, ...] = (),
) -> ServerGraph:
    links, mbps, seconds = np.zeros((count, count)), *np.full((2, count, count), np.nan)
    for a, b, rate, delay in wires:
        if a == b:
            continue
        links[a, b] = links[b, a] = 1
        if rate is not None:
            mbps[a, b] = mbps[b, a] = rate
        if delay is not None:
            seconds[a, b] = seconds[b, a] = delay
    cloud = np.full(count, np.nan)
    return ServerGraph(floats(links), floats(mbps), floats(seconds), cloud, cloud, places, names)


def _km_seconds(km: float | None) -> float | None:
    return None if km is None else float(km) / KM_PER_SECOND


def great_circle(one: Sequence[float], other: Sequence[float]) -> float:
    """Kilometres between two places, each a longitude and a latitude.

    >>> round(great_circle((-74.01, 40.71), (-87.65, 41.85)))  # New York, Chicago
    1146
    """
    (a, b), (c, d) = map(radians, one), map(radians, other)
    half = sin((d - b) / 2) ** 2 + cos(b) * cos(d) * sin((c - a) / 2) ** 2
    return 2 * EARTH_KM * asin(sqrt(half))


def read_server_graph(path: Path) -> ServerGraph:
    """A GraphML file, or a list of links: `0 1` per line, or a table with a first line that names
    its columns (`from,to,mbps,ms,km`).

    Servers are numbered from 0; a graph with other names is numbered in the order of its nodes.
    """
    read = _read_graphml if path.suffix == ".graphml" else _read_lines
    found: ServerGraph = read_by(path, read)
    return found


def _read_graphml(path: Path) -> ServerGraph:
    return _of_graphml(nx.read_graphml(path))


def _read_lines(path: Path) -> ServerGraph:
    return _of_lines(path.read_text(encoding="utf-8-sig"), str(path))


def _of_graphml(graph: Any) -> ServerGraph:
    """Places by `Longitude` and `Latitude`, rates by `LinkSpeedRaw`, as in the Topology Zoo, or by
    the columns of a table."""
    graph = nx.Graph(graph)
    order = _ordered([str(node) for node in graph])
    number = {name: n for n, name in enumerate(order)}
    known = {str(node): values for node, values in graph.nodes(data=True)}
    located = [
        (known[name].get("Longitude"), known[name].get("Latitude")) for name in order
    ]  # some lack both
    places = None
    if all(x is not None and y is not None for x, y in located):
        places = tuple((float(x), float(y)) for x, y in located)
    wires: list[Wire] = []
    for a, b, values in graph.edges(data=True):
        one, two = number[str(a)], number[str(b)]
        given = {key: float(values[key]) for key in COLUMNS if key in values}
        if "LinkSpeedRaw" in values:
            given.setdefault("mbps", float(values["LinkSpeedRaw"]) / 1e6)
        if places is not None:
            given.setdefault("km", great_circle(places[one], places[two]))
        wires.append((one, two, given.get("mbps"), _seconds(given)))
    names = tuple(str(known[name].get("label", name)) for name in order)
    return _joined(len(order), wires, places, names)


def _seconds(given: dict[str, float]) -> float | None:
    return given["ms"] / 1e3 if "ms" in given else _km_seconds(given.get("km"))


def _of_lines(text: str, name: str) -> ServerGraph:
    ends: list[tuple[str, str, dict[str, float]]] = []
    known: dict[frozenset[str], dict[str, float]] = {}
    columns: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[\s,;]+", line.partition("#")[0].strip().strip(","))
        if words == [""]:
            continue
        heads = words[:2] == ["from", "to"] or set(words[2:]) & set(COLUMNS)
        if columns is None and not ends and heads:
            columns = words[2:]
            strange = [word for word in columns if word not in COLUMNS]
            if strange:
                raise InputError(
                    f"line {number} of {name} names a column '{strange[0]}': columns are two "
                    f"servers and {', '.join(COLUMNS)}"
                )
            continue
        if len(words) < 2:
            raise InputError(
                f"line {number} of {name} is '{line.strip()}', not a link between two servers"
            )
        given = row_of(words[2:], columns or [], number, name)
        _check_again(known.setdefault(frozenset(words[:2]), given), given, number, name)
        ends.append((words[0], words[1], given))
    order = _ordered(list(dict.fromkeys(each for a, b, _ in ends for each in (a, b))))
    place = {each: n for n, each in enumerate(order)}
    wires = [(place[a], place[b], given.get("mbps"), _seconds(given)) for a, b, given in ends]
    return _joined(len(order), wires, None, tuple(order))


def _check_again(before: dict[str, float], given: dict[str, float], line: int, name: str) -> None:
    """Refuse a line that contradicts an earlier one about the same link."""
    if given != before:
        raise InputError(
            f"line {line} of {name} contradicts an earlier line about the same link: keep one"
        )


def row_of(cells: Sequence[str], columns: Sequence[str], line: int, name: str) -> dict[str, float]:
    """The numbers of a row by column; an empty cell or a dash means that nothing is known."""
    if columns and len(cells) > len(columns):
        raise InputError(
            f"line {line} of {name} has {len(cells)} values for {len(columns)} columns "
            f"({', '.join(columns)})"
        )
    found = {}
    for column, cell in zip(columns, cells, strict=False):
        if cell in ("", "-"):
            continue
        try:
            found[column] = float(cell)
        except ValueError:
            found[column] = -1.0
        least = 0.0 if column != "mbps" else 1e-300
        if not least <= found[column] < np.inf:
            raise InputError(
                f"line {line} of {name} gives '{cell}' as {column}: it must be a number "
                f"{'above' if column == 'mbps' else 'of at least'} 0"
            )
    return found


def _ordered(names: list[str]) -> list[str]:
    """By number where servers are numbered from 0, otherwise as they come."""
    wanted = [str(d) for d in range(len(names))]
    return wanted if set(names) == set(wanted) else names


def links_table(text: str, name: str, links: Floats) -> ServerGraph:
    """What a table says about links that exist, and about those to the cloud.

    A row is `0,1,40` (two servers, Mbit/s) or `0,cloud,4`; a first line may name other columns.
    """
    count = len(links)
    cloud_mbps, cloud_seconds = np.full((2, count), np.nan)
    columns: Sequence[str] = ("mbps",)
    rows = list(_table(text, name))
    if rows and not rows[0][1][0].isdecimal():
        columns = rows.pop(0)[1][2:] or columns
        strange = [word for word in columns if word not in COLUMNS]
        if strange:
            raise InputError(
                f"the first line of {name} names a column '{strange[0]}': columns are two servers "
                f"and {', '.join(COLUMNS)}"
            )
    wires: list[Wire] = []
    known: dict[frozenset[str], dict[str, float]] = {}
    for line, cells in rows:
        if len(cells) < 3:
            raise InputError(
                f"line {line} of {name} is '{','.join(cells)}', which is not a link: write lines "
                f"like '0,1,40'"
            )
        given = row_of(cells[2:], columns, line, name)
        _check_again(known.setdefault(frozenset(cells[:2]), given), given, line, name)
        a = _server(cells[0], count, line, name)
        if cells[1] == "cloud":
            cloud_mbps[a] = given.get("mbps", np.nan)
            away = _seconds(given)
            cloud_seconds[a] = np.nan if away is None else away
            continue
        b = _server(cells[1], count, line, name)
        if not links[a, b]:
            raise InputError(
                f"line {line} of {name} is about servers {a} and {b}, but network.graph does not "
                f"link them"
            )
        wires.append((a, b, given.get("mbps"), _seconds(given)))
    found = _joined(count, wires)
    return ServerGraph(
        found.links, found.mbps, found.seconds, floats(cloud_mbps), floats(cloud_seconds)
    )


def read_places(text: str, name: str, servers: int) -> tuple[tuple[float, float], ...]:
    """Where servers are: a row `longitude,latitude` for each, below a line of column names."""
    rows = list(_table(text, name))
    if rows and rows[0][1][:2] == ["longitude", "latitude"]:
        rows.pop(0)
    found = []
    for line, cells in rows:
        try:
            x, y = (float(cell) for cell in cells[:2])
        except ValueError:
            x, y = np.nan, np.nan
        if not (-180 <= x <= 180 and -90 <= y <= 90):
            raise InputError(
                f"line {line} of {name} is '{','.join(cells)}', not a longitude (-180 to 180) and "
                f"a latitude (-90 to 90)"
            )
        found.append((x, y))
    if len(found) != servers:
        raise InputError(
            f"{name} has {len(found)} places, but there are {servers} servers: give one each"
        )
    return tuple(found)


def _table(text: str, name: str) -> Iterable[tuple[int, list[str]]]:
    """The cells of all lines but comments and empty ones, with the lines' numbers."""
    some = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            continue
        for row in csv.reader([line]):
            cells = [cell.strip() for cell in row]
            if any(cells):
                some = True
                yield number, cells
    if not some:
        raise InputError(f"{name} is empty")


def _server(cell: str, count: int, line: int, name: str) -> int:
    if not cell.isdecimal() or int(cell) >= count:
        raise InputError(
            f"line {line} of {name} names server '{cell}', but servers are 0 to {count - 1}"
        )
    return int(cell)


def known_links(given: Any, servers: int, draws: np.random.Generator) -> Floats:
    """(D, D) of links, a graph, or a user's function that gives them."""
    found = given(servers, draws) if callable(given) else given
    return adjacency(found) if hasattr(found, "edges") else floats(np.asarray(found))
