"""Groups written in a file: which examples a client holds, or which clients a server serves.

Both are written in the same way, in one of these forms:

    [[0, 4], [1, 2, 3]]      JSON: the members of group 0, of group 1, ...
    [0, 1, 1, 1, 0]          JSON: the group of member 0, of member 1, ...
    client,index             CSV of two columns: a group and one of its members in each row
    client                   CSV of one column: the group of member 0, of member 1, ...

A CSV file may begin with a line of column names; whatever they are called, the group comes first.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.arrays import Ints, grouped
from sdfeel.core.errors import DataError

SUFFIXES = (".csv", ".json")


def is_file_name(text: str) -> bool:
    """Does this name a file of groups, rather than a rule?

    >>> [is_file_name(text) for text in ("iid", "split.json", "my/split.CSV")]
    [False, True, True]
    """
    return text.lower().endswith(SUFFIXES) or Path(text).is_file()


def read(path: Path, group: str, member: str, members: int) -> list[Ints]:
    """The members of each group, sorted: in range, in one group only, and no group empty.

    `group` and `member` are the words that errors use. Members may be left out.
    """
    groups = _parsed(path, group, member, members)
    if not groups:
        raise DataError(f"{path} is empty: list the {member}s of at least one {group}")
    seen = np.zeros(members, dtype=bool)
    for number, own in enumerate(groups):
        _check(path, own, seen, f"{group} {number}", member)
        seen[own] = True
    return groups


def _check(path: Path, own: Ints, seen: NDArray[np.bool_], who: str, member: str) -> None:
    """Refuse one group's members if they are none, out of range, or already taken."""
    if not len(own):
        raise DataError(f"{path}: {who} has no {member}s; give it at least one or leave it out")
    for stray in own[(own < 0) | (own >= len(seen))]:
        raise DataError(
            f"{path}: {who} lists {member} {stray}, but {member}s are numbered 0 to {len(seen) - 1}"
        )
    repeats = own[1:][own[1:] == own[:-1]]
    for twice in (*repeats, *own[seen[own]]):
        raise DataError(
            f"{path}: {member} {twice} is listed twice (again by {who}); "
            f"each {member} may appear only once"
        )


def _parsed(path: Path, group: str, member: str, members: int) -> list[Ints]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets begin with a byte-order mark
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file: give JSON or CSV") from error
    rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _csv_rows(path, text)
    if rows and isinstance(rows[0], int):
        return _by_member(path, rows, group, member, members)
    return [np.sort(np.array(row, dtype=np.int64)) for row in rows]


def _json_rows(path: Path, text: str) -> list[Any]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number too long, lists too deep
        raise DataError(f"{path} is not a plain list of lists ({error})") from error
    if isinstance(rows, list) and (
        all(map(_is_number, rows))
        or all(isinstance(row, list) and all(map(_is_number, row)) for row in rows)
    ):
        return rows
    raise DataError(
        f"{path} must hold one list of lists of whole numbers, such as [[0, 4], [1, 2, 3]]"
    )


def _is_number(value: object) -> bool:
    # A bool is an int to Python, and 2**63 is an int that does not fit into our arrays.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _csv_rows(path: Path, text: str) -> list[Any]:
    """Group by member for one column, members by group for two."""
    lines = [(number, row) for number, row in enumerate(csv.reader(text.splitlines()), 1) if row]
    if lines and not any(re.search(r"\d", cell) for cell in lines[0][1]):
        lines = lines[1:]  # column names
    if not lines:
        return []
    columns = len(lines[0][1])
    if columns not in (1, 2):
        raise DataError(f"{path} has {columns} columns: give one (group) or two (group,member)")
    for number, row in lines:
        if len(row) != columns or not all(map(_is_digits, row)):
            raise DataError(
                f"{path}, line {number}: expected {columns} whole number{'s' * (columns - 1)} "
                f"from 0 up, got '{','.join(row)}'"
            )
    table = np.array([row for _, row in lines], dtype=np.int64)
    if columns == 1:
        return [int(value) for value in table[:, 0]]
    return _rows_by_group(path, table[:, 0], table[:, 1])


def _is_digits(text: str) -> bool:
    return text.strip().isdecimal() and len(text.strip()) < 19


def _by_member(path: Path, rows: list[int], group: str, member: str, members: int) -> list[Ints]:
    if len(rows) != members:
        raise DataError(
            f"{path} gives the {group} of {len(rows)} {member}s, but there are {members}: "
            f"write one number per {member}"
        )
    owners = np.array(rows, dtype=np.int64)
    for stray in owners[owners < 0]:
        raise DataError(f"{path} names {group} {stray}, but {group}s are numbered from 0")
    return _rows_by_group(path, owners, np.arange(members))


def _rows_by_group(path: Path, groups: Ints, members: Ints) -> list[Ints]:
    if groups.max() >= len(groups):
        # Some number below it must be missing; better to say so before building a huge list.
        raise DataError(
            f"{path} numbers a group {groups.max()} but has only {len(groups)} rows: "
            f"number the groups 0, 1, 2, ... without gaps"
        )
    return grouped(members, groups, int(groups.max()) + 1)
