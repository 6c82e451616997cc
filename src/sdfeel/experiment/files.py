"""Files that a user brings: server graphs, mixing matrices, device speeds, rates and traces."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import DataError, InputError
from sdfeel.core.graphs import adjacency
from sdfeel.core.named import spelled
from sdfeel.core.network import Network
from sdfeel.data.clusters import ASSIGNMENTS
from sdfeel.data.partition import ALIASES, PARTITIONS
from sdfeel.data.sources import DATASETS
from sdfeel.experiment.schema import Experiment


def data_files(experiment: Experiment) -> dict[str, str]:
    """The files that an experiment's data and clusters are read from, by key."""
    data, network = experiment.data, experiment.network
    name, partition = spelled(data.name), spelled(data.partition)
    assignment = spelled(network.assignment)
    named = {
        "data.directory": data.directory,
        "data.name": None if name in DATASETS else name,
        "data.partition": None if partition in {*PARTITIONS, *ALIASES} else partition,
        "network.assignment": None if assignment in ASSIGNMENTS else assignment,
    }
    return {key: str(value) for key, value in named.items() if value is not None}


def read_graph(path: Path, servers: int) -> Floats:
    """(D, D) links of a GraphML file or an edge list (`0 1` or `0,1` per line).

    Servers are numbered from 0; a graph with other names is numbered in the order of its nodes.
    """
    reader: Callable[[Path], Any] = nx.read_graphml if path.suffix == ".graphml" else _edge_list
    graph = _reading(path, reader)
    if len(graph) != servers:
        raise InputError(
            f"the graph in {path} joins {len(graph)} servers, but network.servers is {servers}: "
            f"make them equal"
        )
    wanted = [str(d) for d in range(servers)]
    if {str(node) for node in graph} == set(wanted):
        graph = nx.relabel_nodes(graph, {node: int(node) for node in graph})
        ordered = nx.Graph()
        ordered.add_nodes_from(range(servers))
        ordered.add_edges_from(graph.edges())
        graph = ordered
    return adjacency(graph)


def _edge_list(path: Path) -> Any:
    graph = nx.Graph()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        words = re.split(r"[\s,;]+", line.partition("#")[0].strip())
        if words == [""]:
            continue
        if len(words) < 2:
            raise ValueError(f"line {number} is '{line.strip()}', not a link between two servers")
        graph.add_edge(words[0], words[1])
    return graph


def read_matrix(path: Path) -> Floats:
    """A mixing matrix, row = receiver: .npy, .json (a list of rows) or text with commas."""

    def read(path: Path) -> Floats:
        if path.suffix == ".npy":
            return floats(np.load(path, allow_pickle=False))
        if path.suffix == ".json":
            return floats(json.loads(path.read_text(encoding="utf-8")))
        if not path.read_text(encoding="utf-8").strip():
            raise ValueError("it is empty")
        return floats(np.loadtxt(path, delimiter=",", ndmin=2))

    return floats(_reading(path, read))


def read_speeds(path: Path, clients: int) -> Floats:
    """(C,) operations per second, from a column `gflops` or one bare number per line."""

    def read(path: Path) -> list[float]:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        if rows and "gflops" in rows[0]:
            column = rows[0].index("gflops")
            return [float(row[column]) for row in rows[1:] if row]
        return [float(row[0]) for row in rows if row]

    values = np.array(_reading(path, read))
    if len(values) != clients:
        raise InputError(
            f"{path} gives {len(values)} speeds, but there are {clients} clients: give one each"
        )
    if not (np.isfinite(values) & (values > 0)).all():
        raise InputError(f"{path} holds a speed that is not above 0: give positive numbers")
    return floats(values * 1e9)


def _reading(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except FileNotFoundError:
        raise DataError(f"no file {path}: check the name") from None
    except Exception as error:
        # Every parser has its own exceptions; people need the same sentence for all.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"cannot read {path}: {reason}") from None


Rows = list[list[str]]


def clients_table(text: str, name: str, clients: int) -> tuple[str, Floats]:
    """Which column a table of clients has, `mbps` or `metres`, and (C,) its values.

    >>> clients_table("client,metres\\n0,250\\n1,90", "where.csv", 2)
    ('metres', array([250.,  90.]))
    """
    rows = _rows(text, name)
    known = [column for column in ("mbps", "metres") if column in rows[0]]
    if len(known) != 1:
        raise InputError(
            f"the first line of {name} must name a column `mbps` or a column `metres`, got "
            f"'{','.join(rows[0])}'"
        )
    column = rows[0].index(known[0])
    values = _numbers([row[column : column + 1] for row in rows[1:]], 1, name)[:, 0]
    if len(values) != clients:
        raise InputError(
            f"{name} has {len(values)} rows, but there are {clients} clients: give one each"
        )
    return known[0], floats(values)


def trace_table(text: str, name: str, clients: int) -> tuple[Floats | None, Floats]:
    """When rows begin (None: a row per round), and (T, C) Mbit/s.

    >>> trace_table("seconds,0,1\\n0,5,4\\n2.5,3,4", "drive.csv", 2)
    (array([0. , 2.5]), array([[5., 4.],
           [3., 4.]]))
    """
    rows = _rows(text, name)
    timed = rows[0][0] == "seconds"
    body = rows if _is_number(rows[0][0]) else rows[1:]
    if not body:
        raise InputError(f"{name} has no rates: give a row per round or second")
    width = clients + timed
    strays = [n for n, row in enumerate(body) if len(row) != width]
    if strays:
        raise InputError(
            f"row {strays[0] + 1} of {name} has {len(body[strays[0]])} numbers, but {clients} "
            f"clients{' and the time' if timed else ''} need {width}"
        )
    if not timed:
        return None, _numbers(body, width, name)
    times = floats([_number(row[0], name) for row in body])
    if times[0] != 0 or not (np.diff(times) > 0).all():
        raise InputError(f"the seconds in {name} must begin with 0 and grow from row to row")
    return times, _numbers([row[1:] for row in body], clients, name)


def links_table(text: str, name: str, net: Network) -> tuple[Floats, Floats]:
    """(D, D) Mbit/s of each server link and (D,) to the cloud; NaN where the table says nothing.

    A row is `0,1,40` (two servers, Mbit/s) or `0,cloud,4`.
    """
    count = len(net.servers)
    links, clouds = np.full((count, count), np.nan), np.full(count, np.nan)
    rows = _rows(text, name)
    body = rows if _is_number(rows[0][0]) else rows[1:]
    for row in body:
        if len(row) != 3:
            raise InputError(
                f"'{','.join(row)}' in {name} is not a link: write lines like '0,1,40'"
            )
        rate = float(_numbers([row[2:]], 1, name)[0, 0])
        a = _server(row[0], count, name)
        if row[1] == "cloud":
            clouds[a] = rate
            continue
        b = _server(row[1], count, name)
        if not net.links[a, b]:
            raise InputError(
                f"{name} gives a rate between servers {a} and {b}, but network.graph does not "
                f"link them"
            )
        links[a, b] = links[b, a] = rate
    return floats(links), floats(clouds)


def _rows(text: str, name: str) -> Rows:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    rows = [row for row in rows if any(row)]
    if not rows:
        raise InputError(f"{name} is empty")
    return rows


def _numbers(rows: Rows, width: int, name: str) -> Floats:
    values = [[_number(cell, name) for cell in row] for row in rows]
    if any(len(row) != width for row in values):
        raise InputError(f"{name} has rows of different lengths: give every row all columns")
    array = np.array(values).reshape(len(rows), width)
    if not (np.isfinite(array) & (array > 0)).all():
        bad = array[~(np.isfinite(array) & (array > 0))][0]
        raise InputError(f"{name} holds {bad:g}, but rates and distances must be above 0")
    return floats(array)


def _number(cell: str, name: str) -> float:
    if not _is_number(cell):
        raise InputError(f"{name} holds '{cell}' where a number is expected")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _server(cell: str, count: int, name: str) -> int:
    if not cell.isdecimal() or int(cell) >= count:
        raise InputError(f"{name} names server '{cell}', but servers are 0 to {count - 1}")
    return int(cell)
