"""States are copied while a federation runs, put back, and made again from a neighbour's model."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from sdfeel.core.errors import InputError, RunError
from sdfeel.core.run_files import NODES, STATE
from sdfeel.core.scheme import Scheme
from sdfeel.deploy.backup import backup, reseed, restore, seeded, statuses
from sdfeel.deploy.local import LocalDeployment
from sdfeel.live.store import BASE, LARGE, Store
from sdfeel.schemes import FedMes, HierFavg, SDFeel
from tests.live.stage import Once, experiment, play, undisturbed
from tests.live.village import Village, network


@pytest.mark.parametrize(
    ("scheme", "overlap"),
    [(SDFeel(tau1=2, alpha=2), False), (HierFavg(2, 2), False), (FedMes(2), True)],
)
def test_a_seeded_state_is_what_an_undisturbed_server_knows(
    scheme: Scheme, overlap: bool, tmp_path: Path
) -> None:
    village = Village(scheme, network(overlap=overlap), tmp_path, iterations=8)
    village.go()
    for d, edge in village.ended.items():
        made = seeded(village.federation, d, edge.known.k)
        assert (made.k, made.steps, made.over) == (edge.known.k, edge.known.steps, True)
        assert dict(made.taken) == dict(edge.known.taken)


def test_a_copy_of_a_state_is_complete(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.put("start", 0, 0, b"small")
    store.put("hop", 0, 0, bytes(LARGE + 1))
    store.backup(tmp_path / "copy")
    store.put("start", 1, 0, b"later")
    store.close()
    copy = Store(tmp_path / "copy")
    copy.check()
    saved = copy.get("hop", 0)
    assert saved is not None
    assert len(saved.body) == LARGE + 1
    assert not copy.has("start", 1)
    (path,) = (tmp_path / "copy" / "tensors").iterdir()
    path.write_bytes(bytes(LARGE) + b"x")
    with pytest.raises((RunError, sqlite3.DatabaseError)):
        copy.check()
    copy.close()


def test_a_copy_that_fails_leaves_nothing_behind_that_looks_like_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
def test_a_backup_of_a_running_federation_is_consistent_and_restored_with_the_same_bits(
    tmp_path: Path,
) -> None:
    run, places = tmp_path / "run", {}
    first = LocalDeployment(experiment(15), run)
    story = play(first, Once(4, lambda: places.update(backup(run))))
    assert len(places) == 3
    (number,) = {Path(place).name for place in places.values()}
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is not a backup"):
        restore(run / NODES / "edge-0", tmp_path / "empty")
    for name, place in places.items():
        k = restore(run / NODES / name, Path(place))
        assert f"round-{k + 1}" == number
    again = play(LocalDeployment(experiment(15), run), lambda event: None)
    assert again.finished.model_sha256 == story.finished.model_sha256
    assert again.finished.model_sha256 == undisturbed(15, tmp_path)
    logs = [(run / NODES / name / "log.txt").read_text() for name in places]
    assert all("listening on port" in log and f"round {k + 1}\n" in log for log in logs)


@pytest.mark.slow
def test_a_server_that_lost_its_state_goes_on_with_a_neighbours_model(tmp_path: Path) -> None:
    deployment = LocalDeployment(experiment(15), tmp_path / "run")
    made: list[tuple[int, str]] = []

    def lose() -> None:
        deployment.processes.lose("edge-1")
        shutil.rmtree(tmp_path / "run" / NODES / "edge-1" / STATE)
        made.append(reseed(tmp_path / "run", "edge-1"))
        deployment.processes.start("edge-1")

    story = play(deployment, Once(5, lose))
    ((k, whose),) = made
    assert k >= 4
    assert whose in ("edge-0", "edge-2")
    assert story.finished.iterations == 75
    assert story.accuracy > 0.5


@pytest.mark.slow
def test_an_operator_elsewhere_asks_the_servers_how_they_are(tmp_path: Path) -> None:
    run, desk = tmp_path / "run", tmp_path / "desk"
    found = []

    def look() -> None:
        shutil.copytree(run, desk, ignore=shutil.ignore_patterns("status.json", "state", "*.npz"))
        found.extend(statuses(desk, 0.0))

    play(LocalDeployment(experiment(15), run), Once(5, look))
    edges = {node["name"]: node for node in found if node["role"] == "edge"}
    assert {node["state"] for node in edges.values()} == {"running"}
    assert all(node["round"] >= 3 and node["audit"]["lines"] > 0 for node in edges.values())
    assert (run / NODES / "edge-0" / STATE / BASE).is_file()
    later = {node["name"]: node for node in statuses(desk, 0.0)}  # now nobody is there
    assert "no answer from sdfeel://sdfeel/edge/0" in later["edge-0"]["last_error"]
