"""Files that a user brings: mixing matrices, device speeds, rates and traces."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdfeel.core.arrays import Floats, floats
from sdfeel.core.errors import DataError, InputError
from sdfeel.core.named import recorded_name
from sdfeel.data.clusters import ASSIGNMENTS
from sdfeel.data.partition import ALIASES, PARTITIONS, USERS
from sdfeel.data.sources import DATASETS
from sdfeel.experiment.schema import Experiment


def data_files(experiment: Experiment) -> dict[str, str]:
    """The files that an experiment's data and clusters are read from, by key."""
    data, network = experiment.data, experiment.network
    name, partition = recorded_name(data.name), recorded_name(data.partition)
    assignment = recorded_name(network.assignment)
    named = {
        "data.directory": data.directory,
        "data.name": None if name in DATASETS else name,
        "data.partition": None if partition in {*PARTITIONS, *ALIASES, USERS} else partition,
        "network.assignment": None if assignment in ASSIGNMENTS else assignment,
    }
    return {key: str(value) for key, value in named.items() if value is not None}


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

    return floats(read_by(path, read))


# Devices by name: 10^9 operations per second, and who says so (docs/radio.md#devices-by-name).
DEVICES = {
    "raspberry-pi-4": 8.0,  # HPL, 64-bit numbers, measured: Feiereisen 2022
    "jetson-nano": 235.8,  # 128 cores x 921 MHz x 2, 32-bit numbers: the most it could do
    "jetson-xavier-nx": 844.8,  # 384 cores x 1100 MHz x 2: the most it could do
}


def read_speeds(path: Path, clients: int) -> Floats:
    """(C,) operations per second, from a column `gflops`, from the names of known devices in a
    column `device`, or from one bare number per line."""

    def read(path: Path) -> list[float]:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        if rows and "device" in rows[0]:
            return _known_devices(rows, str(path))
        named = bool(rows) and "gflops" in rows[0]
        column = rows[0].index("gflops") if named else 0
        numbered = [(n, row) for n, row in enumerate(rows, 1) if row][named:]
        given = [(n, row[column : column + 1]) for n, row in numbered]
        return [float(speed) for speed in _numbers(given, 1, str(path), "a speed")[:, 0]]

    values = np.array(read_by(path, read))
    if len(values) != clients:
        raise InputError(
            f"{path} gives {len(values)} speeds, but there are {clients} clients: give one each"
        )
    return floats(values * 1e9)


def _known_devices(rows: list[list[str]], name: str) -> list[float]:
    """The speeds of the devices that a table names."""
    column, found = rows[0].index("device"), []
    for line, row in enumerate(rows[1:], 2):
        device = row[column].strip() if len(row) > column else ""
        if row and device not in DEVICES:
            raise InputError(
                f"line {line} of {name} names a device '{device}', but the known ones are "
                f"{', '.join(DEVICES)}; give others their speed in a column gflops"
            )
        found += [DEVICES[device]] if row else []
    return found


def text_of(name: str) -> str:
    """The text of a user's file; DataError if it cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"no file {name}: check the name") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {name}: {error}") from None


def read_by(path: Path, reader: Callable[[Path], Any]) -> Any:
    """What `reader` makes of a file; DataError in one sentence if it fails."""
    try:
        return reader(path)
    except FileNotFoundError:
        raise DataError(f"no file {path}: check the name") from None
    except InputError:
        raise
    except Exception as error:
        # Every parser has its own exceptions; people need the same sentence for all.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"cannot read {path}: {reason}") from None


Rows = list[tuple[int, list[str]]]  # with the numbers of their lines


def clients_table(text: str, name: str, clients: int) -> tuple[str, Floats]:
    """Which column a table of clients has, `mbps` or `metres`, and (C,) its values.

    >>> clients_table("client,metres\\n0,250\\n1,90", "where.csv", 2)
    ('metres', array([250.,  90.]))
    """
    rows = _rows(text, name)
    head = rows[0][1]
    known = [column for column in ("mbps", "metres") if column in head]
    if len(known) != 1:
        raise InputError(
            f"the first line of {name} must name a column `mbps` or a column `metres`, got "
            f"'{','.join(head)}'"
        )
    column = head.index(known[0])
    values = _numbers([(n, row[column : column + 1]) for n, row in rows[1:]], 1, name)[:, 0]
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
    first = rows[0][1][0]
    timed = first == "seconds"
    body = rows if _is_number(first) else rows[1:]
    if not body:
        raise InputError(f"{name} has no rates: give a row per round or second")
    width = clients + timed
    strays = [(n, len(row)) for n, row in body if len(row) != width]
    if strays:
        raise InputError(
            f"line {strays[0][0]} of {name} has {strays[0][1]} numbers, but {clients} "
            f"clients{' and the time' if timed else ''} need {width}"
        )
    if not timed:
        return None, _numbers(body, width, name)
    times, before = [_number(row[0], n, name, "a time") for n, row in body], -1.0
    for (n, row), time in zip(body, times, strict=True):
        if not before < time < np.inf or (before < 0 and time != 0):
            raise InputError(
                f"line {n} of {name} begins with '{row[0]}', but the seconds must begin with 0 and "
                f"grow from line to line"
            )
        before = time
    return floats(times), _numbers([(n, row[1:]) for n, row in body], clients, name)


PACKET = 1500 * 8 / 1e6  # megabits of what mahimahi delivers at a time


def mahimahi(text: str, name: str) -> Floats:
    """(T,) Mbit/s in each second of a recording in mahimahi's format, at least one packet each.

    A line is the millisecond at which the link can deliver one packet of 1,500 bytes.

    >>> mahimahi("0\\n10\\n10\\n1500\\n", "lte.up").round(3).tolist()
    [0.036, 0.012]
    """
    times: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        if not word.isdecimal() or (times and int(word) < times[-1]):
            raise InputError(
                f"line {number} of {name} is '{line.strip()}': a recording in mahimahi's format "
                f"has whole milliseconds that never go back, one per line"
            )
        times.append(int(word))
    if not times or times[-1] == 0:
        raise InputError(f"{name} is empty, or ends at 0 milliseconds: give a longer recording")
    counts = np.bincount(np.array(times) // 1000, minlength=1)
    return floats(np.maximum(counts, 1) * PACKET)


def mahimahi_table(files: Sequence[Path], clients: int) -> tuple[Floats, Floats]:
    """When each second begins, and (T, C) Mbit/s, for as long as the longest recording.

    Client i has recording i. Further clients take the recordings in turn, from other moments on.
    """
    found = [mahimahi(text_of(str(file)), str(file)) for file in files]
    seconds = max(map(len, found))
    rates = np.empty((seconds, clients))
    for i in range(clients):
        own, lap = found[i % len(found)], i // len(found)
        begin = lap * len(own) * len(found) // max(clients, 1)
        rates[:, i] = own[(begin + np.arange(seconds)) % len(own)]
    return floats(np.arange(seconds, dtype=float)), floats(rates)


def _rows(text: str, name: str) -> Rows:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [] if line.startswith("#") else next(csv.reader([line]), [])
        if any(cell.strip() for cell in cells):
            rows.append((number, [cell.strip() for cell in cells]))
    if not rows:
        raise InputError(f"{name} is empty")
    return rows


def _numbers(rows: Rows, width: int, name: str, what: str = "a rate or a distance") -> Floats:
    """(rows, width) numbers above 0."""
    values = [[_number(cell, n, name, what) for cell in row] for n, row in rows]
    for (n, cells), row in zip(rows, values, strict=True):
        if len(row) != width:
            raise InputError(f"line {n} of {name} is shorter than the others: give all its columns")
        for cell, value in zip(cells, row, strict=True):
            if not 0 < value < np.inf:
                raise InputError(
                    f"line {n} of {name} gives '{cell}' as {what}: it must be a number above 0"
                )
    return floats(np.array(values).reshape(len(rows), width))


def _number(cell: str, line: int, name: str, what: str) -> float:
    if not _is_number(cell):
        raise InputError(f"line {line} of {name} gives '{cell}' as {what}: it must be a number")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
