"""How the nodes of a deployment are, as their status files tell."""

import json
from pathlib import Path
from typing import Any

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import NODE, NODES, STATUS

SILENT = 10.0  # seconds without a sign of life until a node counts as silent


def read_statuses(directory: Path, now: float) -> list[dict[str, Any]]:
    """One record per node, edge servers first; `state` says it in a word."""
    homes = sorted((directory / NODES).glob(f"*/{NODE}"), key=_order)
    if not homes and (directory / NODE).is_file():
        homes = [directory / NODE]
    if not homes:
        raise RunError(f"{directory} is no deployment: make one with `sdfeel deploy init`")
    names = [path.parent for path in homes if not path.parent.name.startswith("operator-")]
    return [_status(home, now) for home in names]


def _status(home: Path, now: float) -> dict[str, Any]:
    try:
        told = json.loads((home / STATUS).read_text(encoding="utf-8"))
        told["updated"] = float(told["updated"])
    except (OSError, ValueError, KeyError, TypeError):
        return {"name": home.name, "role": home.name.partition("-")[0], "state": "never started"}
    return {**told, "state": _state(told, now)}


def _state(told: dict[str, Any], now: float) -> str:
    if told.get("over"):
        return "finished"
    if now - told["updated"] > SILENT:
        return "silent"
    return "running" if told.get("healthy") else "in trouble"


def _order(path: Path) -> tuple[bool, str, int]:
    role, _, number = path.parent.name.partition("-")
    return role != "edge", role, int(number) if number.isdigit() else 0
