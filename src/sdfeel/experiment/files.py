"""Files that a user provides: server graphs, mixing matrices, device speeds."""

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
from sdfeel.data.clusters import ASSIGNMENTS
from sdfeel.data.partition import ALIASES, PARTITIONS
from sdfeel.data.sources import DATASETS
from sdfeel.experiment.schema import Experiment


def data_files(experiment: Experiment) -> dict[str, str]:
    """The files that an experiment's data and clusters are read from, by key."""
    data, network = experiment.data, experiment.network
    named = {
        "data.directory": data.directory,
        "data.name": None if data.name in DATASETS else data.name,
        "data.partition": None if data.partition in {*PARTITIONS, *ALIASES} else data.partition,
        "network.assignment": None if network.assignment in ASSIGNMENTS else network.assignment,
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
