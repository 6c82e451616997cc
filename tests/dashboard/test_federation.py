"""A deployment's nodes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sdfeel.dashboard.log_files import Root
from sdfeel.dashboard.views.federation import nodes, verification
from sdfeel.deploy.verify_report import Finding, Verification
from tests.dashboard.conftest import Page
from tests.dashboard.logs import events, write


def node(run: Path, name: str, **status: Any) -> None:
    place = run / "nodes" / name
    place.mkdir(parents=True)
    (place / "status.json").write_text(json.dumps({"name": name, **status}))


def test_nodes_report_their_state(page: Page, tmp_path: Path) -> None:
    run = write(tmp_path / "live", events()[:-1])
    now = time.time()
    node(run, "client-3", role="client", healthy=True, round=6, updated=1.0)
    node(run, "edge-10", role="edge", healthy=False, last_error="no disk", updated=now)
    node(run, "edge-9", role="edge", healthy=True, round=7, lag=0.5, bytes=1500, updated=now)
    node(run, "edge-2", role="edge", over=True, updated=1.0)
    (run / "nodes" / "odd").mkdir()
    (run / "nodes" / "odd" / "status.json").write_text("{half")
    client = page()
    found = {each["name"]: each for each in client.get("/api/nodes?name=live").json()}
    assert {name: each["state"] for name, each in found.items()} == {
        "edge-2": "finished",
        "edge-9": "running",
        "edge-10": "in trouble",
        "client-3": "silent",
        "odd": "never started",
    }
    assert [*found] == ["edge-2", "edge-9", "edge-10", "client-3", "odd"]
    assert found["edge-9"]["bytes"] == "1.50 kB"
    assert found["edge-10"]["last_error"] == "no disk"
    assert client.get("/api/run?name=live").json()["kind"] == "deployed"


def test_a_status_is_read_as_a_node_writes_it(tmp_path: Path) -> None:
    health = pytest.importorskip("sdfeel.live.health")
    run = write(tmp_path / "live", events())
    (run / "nodes" / "edge-0").mkdir(parents=True)
    told = health.Health("edge-0", "edge", lambda: {"round": 3, "bytes": 10}).status()
    health.write_status(run / "nodes" / "edge-0", told)
    (found,) = nodes(Root(tmp_path), "live")
    assert (found["state"], found["round"], found["bytes"]) == ("running", 3, "10 B")


def test_a_link_among_the_nodes_is_not_followed(tmp_path: Path) -> None:
    run = write(tmp_path / "served" / "live", events())
    node(tmp_path / "other", "secret", last_error="secret")
    (run / "nodes").mkdir()
    (run / "nodes" / "way-out").symlink_to(tmp_path / "other" / "nodes" / "secret")
    found = nodes(Root(tmp_path / "served"), "live")
    assert [each["state"] for each in found] == ["never started"]


def test_a_run_without_nodes_has_none(tmp_path: Path) -> None:
    write(tmp_path / "one", events())
    assert nodes(Root(tmp_path), "one") == []


def test_the_page_shows_who_deviated(tmp_path: Path) -> None:
    run = write(tmp_path / "live", events())
    root = Root(tmp_path)
    assert verification(root, "live") is None
    told = Verification(rounds=9, whole=[0, 1])
    told.findings.append(Finding(2, ("client-3",), "client-3: it sent another model"))
    (run / "verification.json").write_text(json.dumps(told.record()))
    found = verification(root, "live")
    assert found is not None
    assert (found["verified"], found["offenders"]) == (False, ["client-3"])
    assert found["verdict"] == "NOT VERIFIED: client-3 deviates first, in round 3"
    assert [each["round"] for each in found["findings"]] == [3]
    (run / "verification.json").write_text("[1, 2]")
    assert verification(root, "live") is None


def test_the_page_shows_certificates_and_who_was_turned_away(page: Page, tmp_path: Path) -> None:
    audits = pytest.importorskip("sdfeel.live.audit")
    run = write(tmp_path / "live", events())
    node(run, "edge-0", role="edge", updated=1.0, certificate_expires=5.0, denied=2, rejected=1)
    log = audits.AuditLog(run / "nodes" / "edge-0" / "audit.jsonl")
    log.note(audits.AuditedCall("client-1", "7", "fetch", audits.ANSWERED))
    log.note(audits.AuditedCall("<b>eve", "8", "join", "denied", reason="not on the list"))
    with log.path.open("ab") as file:
        file.write(b"[[[[\n{}\n" + b'{"time": "x", "who"')
    client = page()
    (found,) = client.get("/api/nodes?name=live").json()
    assert (found["turned_away"], found["certificate_expires"]) == (3, 5.0)
    told = client.get("/api/audit?name=live").json()
    assert told["outcomes"] == {"answered": 1, "denied": 1}
    assert [(row["node"], row["who"], row["reason"]) for row in told["rows"]] == [
        ("edge-0", "<b>eve", "not on the list")
    ]
    assert len(client.get("/api/audit?name=live&all=yes").json()["rows"]) == 2
    (tmp_path / "secret").write_text(log.path.read_text())
    log.path.unlink()
    log.path.symlink_to(tmp_path / "secret")
    assert client.get("/api/audit?name=live").json()["rows"] == []
