"""A deployment's nodes: how each of them is, what verifying them found, and who called them.

How a node is, it writes into its status file; who called it, into its audit log.
"""

import json
import os
import time
from collections import Counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sdfeel.core.run_files import AUDIT, NODES, STATUS, VERIFICATION
from sdfeel.dashboard.log_files import NotHere, Root
from sdfeel.deploy.status import state_of
from sdfeel.report.units import amount

MOST = 2000  # nodes
SHOWN = 20  # deviations
Text = Annotated[str, Field(max_length=2000)]


class Status(BaseModel):
    """What a node says about itself."""

    model_config = ConfigDict(extra="ignore")

    name: Text
    role: Text
    updated: float  # seconds since 1970
    healthy: bool = True
    over: bool = False
    ended: bool = False
    round: int | None = None
    lag: float | None = None
    bytes: int | None = None
    last_error: Text = ""
    certificate_expires: float | None = None  # seconds since 1970
    denied: int = 0  # calls with a certificate that is not accepted
    refused: int = 0  # calls that were understood, and refused
    rejected: int = 0  # models that did not pass the checks
    version: Text = ""

    @property
    def turned_away(self) -> int:
        return self.denied + self.refused + self.rejected

    def state(self, now: float) -> str:
        """Its state, in a word or two."""
        return state_of(self.over, self.ended, self.healthy, since=now - self.updated)


class FoundDeviation(BaseModel):
    """One deviation from what a node signed."""

    model_config = ConfigDict(extra="ignore")

    round: int | None = None
    nodes: list[Text] = Field(max_length=MOST)
    proven: bool
    text: Text


class VerificationShown(BaseModel):
    """What `sdfeel deploy verify` wrote about a deployment."""

    model_config = ConfigDict(extra="ignore")

    verified: bool
    verdict: Text
    rounds: int
    whole_rounds: int
    offenders: list[Text] = Field(max_length=MOST)
    findings: list[FoundDeviation] = Field(max_length=100_000)


def verification(root: Root, name: str) -> dict[str, Any] | None:
    """What verifying a run found, the first deviations only; None if nobody has verified it."""
    try:
        told = json.loads(root.read(name, VERIFICATION))
        found = VerificationShown.model_validate(told)
    except (NotHere, ValueError, TypeError, ValidationError):
        return None
    return {
        **found.model_dump(),
        "findings": [each.model_dump() for each in found.findings[:SHOWN]],
    }


def nodes(root: Root, name: str) -> list[dict[str, Any]]:
    """All nodes of a run, edge servers first; without a readable status, one has never started."""
    return [_node(root, name, each) for each in node_names(root, name)]


def node_names(root: Root, name: str) -> list[str]:
    """The names of a run's nodes, edge servers first."""
    try:
        below = os.listdir(root.directory(f"{name}/{NODES}"))
    except (NotHere, OSError):
        return []
    shown = [each for each in below if not each.startswith((".", "operator-"))]
    return sorted(shown, key=_order)[:MOST]


def _node(root: Root, name: str, node: str) -> dict[str, Any]:
    role = node.partition("-")[0]
    try:
        told = json.loads(root.read(f"{name}/{NODES}/{node}", STATUS))
        status = Status.model_validate({"name": node, "role": role, **told})
    except (NotHere, ValueError, TypeError, ValidationError):
        return {"name": node, "role": role, "state": "never started"}
    now = time.time()
    return {
        **status.model_dump(
            exclude={"healthy", "updated", "over", "denied", "refused", "rejected"}
        ),
        "turned_away": status.turned_away,
        "bytes": amount(status.bytes) if status.bytes is not None else None,
        "state": status.state(now),
        "heard": status.updated,
    }


def _order(node: str) -> tuple[bool, str, int]:
    role, _, number = node.partition("-")
    return role != "edge", role, int(number) if number.isdecimal() else 0


TAIL = 1 << 16  # bytes of every node's log that are read
CALLS = 300  # lines that are shown
USUAL = ("answered", "gone")  # how most calls end


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
    """The newest audit lines of all nodes, newest first; only trouble, unless `everything`."""
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
    return {"rows": rows[:CALLS], "outcomes": dict(outcomes.most_common(20)), "cut": cut}


def _lines(root: Root, place: str) -> tuple[list[AuditLine], bool]:
    """The last readable lines of a node's audit log, and whether these are all of its lines."""
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
