"""A deployment's nodes, from the status that each of them writes."""

import json
import os
import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sdfeel.dashboard.places import NODES, NotHere, Root
from sdfeel.report.units import amount

STATUS = "status.json"
MOST = 2000  # nodes
SILENT = 30.0  # seconds without news of a node before it counts as lost
Text = Annotated[str, Field(max_length=2000)]


class Status(BaseModel):
    """What a node tells of itself."""

    model_config = ConfigDict(extra="ignore")

    name: Text
    role: Text = "node"
    healthy: bool = True
    round: int | None = None
    lag: float | None = None
    bytes: int | None = None
    last_error: Text | None = None
    updated: float | str | None = None  # seconds since 1970, or an ISO time


def nodes(root: Root, name: str, running: bool) -> list[dict[str, Any]]:
    """All nodes of a run by name; one whose status cannot be read says so."""
    try:
        below = sorted(os.listdir(root.directory(f"{name}/{NODES}")))[:MOST]
    except (NotHere, OSError):
        return []
    return [_node(root, name, each, running) for each in below if not each.startswith(".")]


def _node(root: Root, name: str, node: str, running: bool) -> dict[str, Any]:
    try:
        raw = json.loads(root.read(f"{name}/{NODES}/{node}", STATUS))
        status = Status.model_validate({"name": node, **raw})
    except (NotHere, ValueError, TypeError, ValidationError):
        return {"name": node, "state": "unknown", "last_error": f"no readable {STATUS}"}
    age = _age(status.updated)
    silent = running and age is not None and age > SILENT
    return {
        **status.model_dump(exclude={"healthy", "updated"}),
        "bytes": amount(status.bytes) if status.bytes is not None else None,
        "state": "silent" if silent else "healthy" if status.healthy else "failing",
        "age": age,
    }


def _age(updated: float | str | None) -> float | None:
    """Seconds since a node's last word."""
    from datetime import UTC, datetime

    if isinstance(updated, str):
        try:
            moment = datetime.fromisoformat(updated)
        except ValueError:
            return None
        updated = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return None if updated is None else max(0.0, time.time() - updated)
