"""An experiment as a form, and who holds which of its data.

The form comes from the same classes as the file, its checks and its help texts; the data are split
as the run split them.
"""

import json
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import TypeAdapter

from sdfeel.core.errors import InputError
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import TOPOLOGIES
from sdfeel.core.peers import NAMES
from sdfeel.core.scheme import meanings
from sdfeel.dashboard.log_files import Root
from sdfeel.dashboard.trust import check_files
from sdfeel.dashboard.views.run import read_experiment
from sdfeel.experiment.loading import keys
from sdfeel.experiment.schema import Experiment
from sdfeel.schemes import SCHEMES

SUGGESTED = {  # a file may be named, too, so these are not all
    "network.graph": [*TOPOLOGIES],
    "network.mixing": [*GOSSIP_RULES, *NAMES],
}
KINDS = {
    "integer": "whole",
    "number": "number",
    "boolean": "switch",
    "object": "table",
    "array": "list",
}
BOUNDS = {"minimum": "min", "maximum": "max", "exclusiveMinimum": "above"}


def form() -> dict[str, Any]:
    """Sections with their fields; schemes with their options."""
    schema = Experiment.model_json_schema()
    helps = keys()
    sections = []
    alone = []  # fields outside any section
    for name, part in schema["properties"].items():
        section = _section(schema, part)
        if section is None:
            alone.append(_field(name, name, part, helps))
        else:
            fields = [
                _field(f"{name}.{key}", key, inner, helps)
                for key, inner in section["properties"].items()
            ]
            sections.append({"name": name, "help": helps[name], "fields": fields})
    first = {"name": "", "help": "", "fields": alone}
    schemes = {name: _scheme(kind) for name, kind in SCHEMES.items()}
    for section in sections:
        if section["name"] == "scheme":
            section["fields"][0] |= {"kind": "choice", "choices": [*SCHEMES]}
    return {"sections": [first, *sections], "schemes": schemes}


def _section(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any] | None:
    refer = part.get("$ref") or next((p["$ref"] for p in part.get("allOf", [])), None)
    return None if refer is None else schema["$defs"][refer.rpartition("/")[2]]


def _field(path: str, key: str, part: dict[str, Any], helps: dict[str, str]) -> dict[str, Any]:
    kinds = [kind for kind in part.get("anyOf", [part]) if kind.get("type") != "null"]
    inner = kinds[0]
    return {
        "path": path,
        "key": key,
        "help": " ".join(helps.get(path, "").split()),
        "kind": "choice" if "enum" in inner else KINDS.get(inner.get("type", ""), "text"),
        "choices": inner.get("enum", []),
        "suggested": SUGGESTED.get(path, []),
        "default": part.get("default"),
        "optional": "anyOf" in part,
        **{ours: inner[theirs] for theirs, ours in BOUNDS.items() if theirs in inner},
    }


def _scheme(kind: Any) -> dict[str, Any]:
    """A scheme's options; their help texts are in their annotations."""
    parts = TypeAdapter(kind).json_schema().get("properties", {})
    helps = {f"scheme.{option}": text for option, text in meanings(kind).items()}
    fields = [_field(f"scheme.{key}", key, part, helps) for key, part in parts.items()]
    return {"help": kind.__doc__.split("\n")[0], "fields": fields}


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
    from sdfeel.experiment.build_data import build_data
    from sdfeel.experiment.build_network import build_home, who_holds_what
    from sdfeel.experiment.loading import checked
    from sdfeel.experiment.user_files import data_files

    chosen = checked(values)
    check_files(data_files(chosen), root)
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
