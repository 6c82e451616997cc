"""Who called a deployment's nodes, and who was turned away, from the ends of their audit logs."""

import json
import os
from collections import Counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sdfeel.core.run_files import AUDIT, NODES
from sdfeel.dashboard.log_files import NotHere, Root
from sdfeel.dashboard.views.federation import node_names

TAIL = 1 << 16  # bytes of every node's log that are read
SHOWN = 300  # lines
USUAL = ("answered", "gone")  # how most calls end
Text = Annotated[str, Field(max_length=2000)]


class AuditLine(BaseModel):
    """A line of an audit log: calls that were alike."""

    model_config = ConfigDict(extra="ignore")

    time: Text
    who: Text
    call: Text = ""
    outcome: Text
    calls: int = 1
    address: Text = ""
    reason: Text = ""


def audit(root: Root, name: str, everything: bool = False) -> dict[str, Any]:
    """The newest lines of all nodes, newest first; at first only those that tell of trouble."""
    rows: list[dict[str, Any]] = []
    outcomes: Counter[str] = Counter()
    cut = False
    for node in node_names(root, name):
        lines, whole = _lines(root, f"{name}/{NODES}/{node}")
        cut = cut or not whole
        for line in lines:
            outcomes[line.outcome] += line.calls
            if everything or line.outcome not in USUAL:
                rows.append({"node": node, **line.model_dump()})
    rows.sort(key=lambda row: str(row["time"]), reverse=True)
    return {"rows": rows[:SHOWN], "outcomes": dict(outcomes.most_common(20)), "cut": cut}


def _lines(root: Root, place: str) -> tuple[list[AuditLine], bool]:
    """The last lines of a node's log that can be read, and whether they are all."""
    try:
        with os.fdopen(root.open(place, AUDIT), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL))
            texts = file.read(TAIL).split(b"\n")
    except (NotHere, OSError):
        return [], True
    found = []
    for text in texts[:-1] if size <= TAIL else texts[1:-1]:  # the first is cut
        try:
            found.append(AuditLine.model_validate(json.loads(text)))
        except (ValueError, RecursionError, ValidationError):
            continue  # `sdfeel deploy audit` says what is wrong with it
    return found, size <= TAIL
