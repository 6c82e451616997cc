"""A deployment's nodes."""

import json
import time
from pathlib import Path
from typing import Any

from sdfeel.dashboard.federation import nodes
from sdfeel.dashboard.places import Root
from tests.dashboard.conftest import Page
from tests.dashboard.logs import events, write


def node(run: Path, name: str, **status: Any) -> None:
    place = run / "nodes" / name
    place.mkdir(parents=True)
    (place / "status.json").write_text(json.dumps({"name": name, **status}))


def test_nodes_tell_how_they_are(page: Page, tmp_path: Path) -> None:
    run = write(tmp_path / "live", events()[:-1])
    now = time.time()
    node(run, "server-0", role="server", healthy=True, round=7, lag=0.5, bytes=1500, updated=now)
    node(run, "server-1", role="server", healthy=False, last_error="no disk", updated=now)
    node(run, "client-3", role="client", healthy=True, round=6, updated="2020-01-01T00:00:00")
    (run / "nodes" / "odd").mkdir()
    (run / "nodes" / "odd" / "status.json").write_text("{half")
    client = page()
    found = {each["name"]: each for each in client.get("/api/nodes?name=live").json()}
    assert [found[name]["state"] for name in sorted(found)] == [
        "silent",
        "unknown",
        "healthy",
        "failing",
    ]
    assert found["server-0"]["bytes"] == "1.50 kB"
    assert found["server-1"]["last_error"] == "no disk"
    assert client.get("/api/run?name=live").json()["kind"] == "deployed"


def test_a_finished_deployment_has_no_silent_nodes(tmp_path: Path) -> None:
    run = write(tmp_path / "live", events())
    node(run, "server-0", healthy=True, updated=0)
    assert nodes(Root(tmp_path), "live", running=False)[0]["state"] == "healthy"


def test_a_link_among_the_nodes_is_not_followed(tmp_path: Path) -> None:
    run = write(tmp_path / "served" / "live", events())
    node(tmp_path / "other", "secret", last_error="secret")
    (run / "nodes").mkdir()
    (run / "nodes" / "way-out").symlink_to(tmp_path / "other" / "nodes" / "secret")
    found = nodes(Root(tmp_path / "served"), "live", running=True)
    assert [each["state"] for each in found] == ["unknown"]


def test_a_run_without_nodes_has_none(tmp_path: Path) -> None:
    write(tmp_path / "one", events())
    assert nodes(Root(tmp_path), "one", running=True) == []
