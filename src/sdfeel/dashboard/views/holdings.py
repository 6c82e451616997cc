"""Who holds which data, from the experiment alone: the same split that the run made."""

import json
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from sdfeel.core.errors import InputError
from sdfeel.dashboard.logs.files import Root
from sdfeel.dashboard.views.run import read_experiment

if TYPE_CHECKING:
    from sdfeel.experiment.schema import Experiment

CLIENTS = 400  # that are shown one by one
KEPT = 16  # experiments whose answer is remembered


class Holdings:
    """Splits the data again when asked, and remembers the last few answers."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lock = Lock()  # one at a time: data sets are large
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def of(self, name: str) -> dict[str, Any]:
        """Counts of each class at each server and, unless they are many, at each client."""
        values = read_experiment(self.root, name)
        parts = {key: values.get(key) for key in ("seed", "network", "data")}
        key = json.dumps(parts, sort_keys=True, default=str)
        with self._lock:
            if key not in self._known:
                given = {k: v for k, v in parts.items() if v is not None}
                self._known[key] = _split(given, self.root.path)
                while len(self._known) > KEPT:
                    self._known.popitem(last=False)
            return self._known[key]


def _split(values: dict[str, Any], root: Path) -> dict[str, Any]:
    # Imported here, not above, so that the page is up before torch is loaded.
    from sdfeel.experiment.build import build_data, build_home, who_holds_what
    from sdfeel.experiment.schema import checked

    chosen = checked(values)
    _check_files(chosen, root)
    try:
        split = build_data(chosen)
        counts, home = who_holds_what(split), build_home(chosen, split)
    except OSError as error:
        raise InputError(f"the data cannot be read: {error.strerror or error}") from None
    servers = [
        counts[home == server].sum(axis=0).tolist() for server in range(chosen.network.servers)
    ]
    order = home.argsort(kind="stable")[:CLIENTS]
    return {
        "servers": servers,
        "clients": [
            {"client": int(c), "server": int(home[c]), "counts": counts[c].tolist()} for c in order
        ],
        "left_out": max(0, len(home) - CLIENTS),
    }


def _check_files(chosen: "Experiment", root: Path) -> None:
    """Refuse to open files that an experiment names unless they are in the directory shown.

    Runs may come from anywhere, and the page must not become a way to read this machine's files.
    """
    from sdfeel.experiment.files import data_files

    for key, value in data_files(chosen).items():
        if not Path(value).resolve().is_relative_to(root):
            raise InputError(
                f"{key} of this run names {value}, but this page opens nothing outside the "
                f"directory that it shows: start `sdfeel dash` with a directory that contains both"
            )
