"""A deployment's nodes, from the status that each of them writes."""

import json
import os
import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sdfeel.core.run_files import NODES, STATUS
from sdfeel.dashboard.log_files import NotHere, Root
from sdfeel.report.units import amount

MOST = 2000  # nodes
SILENT = (
    10.0  # seconds without an update after which a node counts as silent, as in `sdfeel deploy`
)
Text = Annotated[str, Field(max_length=2000)]


class Status(BaseModel):
    """What a node says about itself."""

    model_config = ConfigDict(extra="ignore")

    name: Text
    role: Text
    updated: float  # seconds since 1970
    healthy: bool = True
    over: bool = False
    round: int | None = None
    lag: float | None = None
    bytes: int | None = None
    last_error: Text = ""

    def state(self, now: float) -> str:
        """Its state, in a word or two."""
        if self.over:
            return "finished"
        if now - self.updated > SILENT:
            return "silent"
        return "running" if self.healthy else "in trouble"


def nodes(root: Root, name: str) -> list[dict[str, Any]]:
    """All nodes of a run, edge servers first; one without a readable status never started."""
    try:
        below = os.listdir(root.directory(f"{name}/{NODES}"))
    except (NotHere, OSError):
        return []
    shown = [each for each in below if not each.startswith((".", "operator-"))]
    return [_node(root, name, each) for each in sorted(shown, key=_order)[:MOST]]


def _node(root: Root, name: str, node: str) -> dict[str, Any]:
    role = node.partition("-")[0]
    try:
        told = json.loads(root.read(f"{name}/{NODES}/{node}", STATUS))
        status = Status.model_validate({"name": node, "role": role, **told})
    except (NotHere, ValueError, TypeError, ValidationError):
        return {"name": node, "role": role, "state": "never started"}
    now = time.time()
    return {
        **status.model_dump(exclude={"healthy", "updated", "over"}),
        "bytes": amount(status.bytes) if status.bytes is not None else None,
        "state": status.state(now),
        "heard": status.updated,
    }


def _order(node: str) -> tuple[bool, str, int]:
    role, _, number = node.partition("-")
    return role != "edge", role, int(number) if number.isdecimal() else 0
