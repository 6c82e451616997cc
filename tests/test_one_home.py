"""What DESIGN says has exactly one home has no second one, where that can be seen cheaply."""

import re
from functools import cache

import pytest

from sdfeel.core import run_files
from tests.test_layers import SOURCE

NAMES = [
    value
    for name, value in vars(run_files).items()
    if name.isupper() and isinstance(value, str) and re.fullmatch(r"[\w-]+\.\w+", value)
]
# What only its home may say, and who may say it besides, with the reason.
HOMES: dict[str, tuple[str, dict[str, str]]] = {
    "the names of a run's and a node's files": (
        rf"""["'][^"'\s]*\b({"|".join(map(re.escape, NAMES))})["']""",
        {
            "core/run_files.py": "their home",
            "cli/inspect.py": "the user's own file, in a signature that must not wait for NumPy",
        },
    ),
    "writing a file atomically": (
        r"\bos\.(replace|rename)\(|\b(draft|path|home)\w*(\)|\.path)?\.(replace|rename)\(|\.tmp\b",
        {
            "core/run_files.py": "its home",
            "dashboard/log_files.py": "in a directory that was opened without following links",
            "data/download.py": "moves files that were downloaded and checked in another directory",
            "engine/native/build.py": "moves files that a compiler wrote in another directory",
            "live/audit.py": "puts a full log aside",
            "live/store.py": "a directory, not a file",
            "deploy/backup.py": "directories, not files",
        },
    ),
    "null in place of a number that is not finite": (
        r"isfinite\([\w.]*\) else None|None if (\w+\.)?(isnan|isinf)\([\w.]*\) ",
        {"planning/planner.py": "no score, wherever it is shown"},
    ),
    "how many cores there are": (
        r"\b(cpu_count|sched_getaffinity)\b",
        {"engine/base.py": "its home"},
    ),
    "the shares of servers that are away": (
        r"(?<![.\w])(?<!def )among\(",
        {"core/outages.py": "their home", "live/federation.py": "asks, once servers are away"},
    ),
    "what a node remembers": (
        r"\bsqlite3\.connect\(",
        {"live/store.py": "its home"},
    ),
    "the noise of a mini-batch": (
        r"(distance|norm|length)\w*(\(\))?\)* ?\*\* ?2 / 2\b",
        {"engine/estimates.py": "its home"},
    ),
}


@cache
def lines() -> tuple[tuple[str, str], ...]:
    """Every line of the package, with its file."""
    return tuple(
        (path.relative_to(SOURCE).as_posix(), line)
        for path in sorted(SOURCE.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
    )


@pytest.mark.parametrize("what", HOMES)
def test_it_has_one_home(what: str) -> None:
    pattern, homes = HOMES[what]
    wanted = re.compile(pattern)
    found = {file: line.strip() for file, line in lines() if wanted.search(line)}
    assert set(found) == set(homes), found


def test_the_names_of_files_are_known() -> None:
    assert {"events.jsonl", "experiment.toml", "node.toml", "statements.jsonl"} <= set(NAMES)
