"""What the page may do with an experiment that somebody else may have written.

It runs no code from it, opens nothing outside the directory that it shows, and builds nothing huge.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sdfeel.core.errors import InputError
from sdfeel.core.named import is_object, is_path
from sdfeel.experiment.loading import NAMES, PATHS
from sdfeel.experiment.real_networks import TOPOHUB

LARGEST = {  # numbers, by key or section
    "network.servers": 1000,
    "network": 20_000,
    "data": 1_000_000,
    "model": 100_000,
    "training": 10_000_000,
}
PATTERN = "*?["


def check_files(files: Mapping[str, str], root: Path) -> None:
    """Refuse files and code, by the keys that name them, unless they are files below `root`."""
    for key, value in files.items():
        if is_path(value) or is_object(value):
            raise InputError(
                f"{key} of this run is {value}, and this page never runs other people's code"
            )
        if not Path(value).resolve().is_relative_to(root) or any(c in value for c in PATTERN):
            raise InputError(
                f"{key} of this run names {value}, but this page opens nothing outside the "
                f"directory that it shows: start `sdfeel dash` with a directory that contains both"
            )


def check_whole(values: Mapping[str, Any], root: Path) -> None:
    """Refuse an experiment, as it stands in its file, that is not safe to build as a whole."""
    leaves = list(_leaves(values))
    check_files({key: each for key, each in leaves if _names_a_file(key, each)}, root)
    for key, each in leaves:
        most = LARGEST.get(key, LARGEST.get(key.partition(".")[0]))
        if most is not None and isinstance(each, int | float) and each > most:
            raise InputError(
                f"{key} is {each:g}, and this page works with at most {most:,}: use `sdfeel plan`"
            )


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, key)
    else:
        yield key, value


def _names_a_file(key: str, value: Any) -> bool:
    """Might this value name a file or code?"""
    if not isinstance(value, str) or (key == "network.graph" and value.startswith(TOPOHUB)):
        return False
    if is_path(value) or is_object(value) or any(c in value for c in "/\\~"):
        return True
    return key in PATHS and value not in NAMES and (bool(Path(value).suffix) or _exists(value))


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):
        return True  # whatever it is, it is not a plain name
