"""The state of a deployment's nodes, from their status files."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdfeel.core.errors import RunError, printable
from sdfeel.core.run_files import AUDIT, NODE, NODES, STATUS
from sdfeel.live.audit import verified

SILENT = 10.0  # seconds without a new status after which a node counts as silent


def read_statuses(directory: Path, now: float) -> list[dict[str, Any]]:
    """One record per node, edge servers first, with its `state` in a word."""
    homes = sorted((directory / NODES).glob(f"*/{NODE}"), key=_order)
    if not homes and (directory / NODE).is_file():
        homes = [directory / NODE]
    if not homes:
        raise RunError(f"{directory} is not a deployment: make one with `sdfeel deploy init`")
    names = [path.parent for path in homes if not path.parent.name.startswith("operator-")]
    return [_status(home, now) for home in names]


def audited(directory: Path, head: str | None = None) -> list[dict[str, Any]]:
    """The content of the audit logs of a deployment or a node; `error` if one was changed."""
    homes = [directory] if (directory / AUDIT).is_file() else []
    homes = homes or [path.parent for path in sorted((directory / NODES).glob(f"*/{AUDIT}"))]
    if not homes:
        raise RunError(f"there is no {AUDIT} in {directory}: give a node's directory")
    found: list[dict[str, Any]] = []
    for home in sorted(homes, key=lambda home: _order(home / NODE)):
        try:
            told: dict[str, Any] = asdict(verified(home / AUDIT, head))
        except RunError as error:
            told = {"lines": 0, "head": "", "outcomes": {}, "denied": [], "error": str(error)}
        found.append({"name": home.name, **told})
    return found


def _status(home: Path, now: float) -> dict[str, Any]:
    try:
        told = json.loads((home / STATUS).read_text(encoding="utf-8"))
        told["updated"] = float(told["updated"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {"name": home.name, "role": home.name.partition("-")[0], "state": "never started"}
    over, ended, healthy = (told.get(key) is True for key in ("over", "ended", "healthy"))
    return {**told, "state": state_of(over, ended, healthy, now - told["updated"])}


def state_of(over: bool, ended: bool, healthy: bool, since: float) -> str:
    """A node's state in a word, from its last status, `since` seconds ago.

    A node has "ended" if it was stopped cleanly, or has left the network.
    """
    if over:
        return "finished"
    if ended:
        return "ended"
    if since > SILENT:
        return "silent"
    return "running" if healthy else "in trouble"


TEXT = 500  # characters of a text that another node sent
TEXTS, NUMBERS = ("last_error", "guest_of", "health", "version"), ("round", "lag", "bytes")
LISTS = ("guests", "absent", "waiting_for", "quarantined")


def as_told(status: Mapping[str, Any]) -> dict[str, Any]:
    """What another node says about itself, without anything malformed: it may send anything.

    Its name, role and state are not taken from it, and no text of it can control a terminal.
    """
    found = {key: _plain(value) for key, value in status.items() if key.isidentifier()}
    for key in found.keys() & {*TEXTS, *NUMBERS, *LISTS}:
        value = found[key]
        text = key in TEXTS and isinstance(value, str)
        number = key in NUMBERS and isinstance(value, int | float)
        names = key in LISTS and isinstance(value, list)
        if not (text or number or (names and all(isinstance(each, str) for each in value))):
            del found[key]
    return {key: value for key, value in found.items() if key not in ("name", "role", "state")}


def _plain(value: Any, depth: int = 3) -> Any:
    if isinstance(value, str):
        return printable(value[:TEXT])
    if isinstance(value, dict) and depth:
        return {_plain(str(key)): _plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list) and depth:
        return [_plain(each, depth - 1) for each in value]
    return value if isinstance(value, int | float | None) else ""


def _order(path: Path) -> tuple[bool, str, int]:
    role, _, number = path.parent.name.partition("-")
    return role != "edge", role, int(number) if number.isdigit() else 0
