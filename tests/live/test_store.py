"""A node's state: commits are whole, the first write wins, size is bounded, damage is found."""

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sdfeel.core.errors import RunError
from sdfeel.live import self_checks
from sdfeel.live import store as stores
from sdfeel.live.store import Store
from tests.waiting import completed, finished


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.parametrize("size", [10, stores.LARGE + 1], ids=["small", "large"])
def test_the_first_write_wins_and_survives_a_restart(size: int, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.commit():
        assert store.put("result", 3, 1, b"a" * size, {"steps": 5})
        assert not store.put("result", 3, 1, b"b" * size)
    store.close()
    saved = Store(tmp_path).get("result", 3, 1)
    assert saved is not None
    assert (saved.body, saved.note) == (b"a" * size, {"steps": 5})


def test_users_wait_for_the_disk_even_if_the_tests_do_not(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from sdfeel.live.store import Store
print(Store(Path(sys.argv[1]))._base.execute("pragma synchronous").fetchone()[0])
"""
    asked = finished([sys.executable, "-c", code, str(tmp_path)])
    assert asked.stdout.strip() == "2"  # SQLite's number for full


def test_what_was_not_committed_never_happened(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def interrupted() -> None:
        with store.commit():
            store.put("hop", 0, 0, b"x" * (stores.LARGE + 1))
            store.remember("state", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.get("hop", 0, 0) is None
    assert store.fact("state") is None
    store.close()
    again = Store(tmp_path)
    assert list((tmp_path / "tensors").iterdir()) == []  # the file without a name is swept away
    assert again.fact("state") is None


def test_files_are_shared_by_content_and_removed_with_their_last_name(store: Store) -> None:
    body = b"m" * (stores.LARGE + 1)
    with store.commit():
        store.put("start", 0, 0, body)
        store.put("hop", 0, 0, body)
    files = store.directory / "tensors"
    assert len(list(files.iterdir())) == 1
    with store.commit():
        store.prune("start", 1)
    store.sweep_files()
    assert store.get("hop", 0, 0) is not None
    with store.commit():
        store.prune("hop", 1)
    store.sweep_files()
    assert list(files.iterdir()) == []


def test_one_wrong_bit_is_noticed(store: Store) -> None:
    with store.commit():
        store.put("start", 0, 0, b"m" * (stores.LARGE + 1))
    (path,) = (store.directory / "tensors").iterdir()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"is damaged .a tensor does not fit its checksum"):
        store.get("start", 0, 0)


def test_two_nodes_cannot_share_a_state(store: Store) -> None:
    with pytest.raises(RunError, match="another process runs this node; stop one"):
        Store(store.directory)


def test_a_file_of_another_program_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match=r"is damaged .* restore a backup"):
        Store(tmp_path)


def test_old_records_are_forgotten(store: Store) -> None:
    assert store.last_record() is None
    for k in range(7):
        with store.commit():
            store.record(k, {"k": k})
            store.prune_records(k - 2)
    assert [record["k"] for record in store.records()] == [4, 5, 6]
    assert store.last_record() == {"k": 6}


def test_the_state_of_another_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    Store(tmp_path).close()  # our own is taken
    base = sqlite3.connect(tmp_path / "state.sqlite")
    base.execute("pragma user_version=1")
    base.close()
    with pytest.raises(RunError, match="was kept by another version of sdfeel: finish the run"):
        Store(tmp_path)


def test_nobody_else_can_read_what_a_node_keeps(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.close()
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def everything(store: Store) -> None:
    """Read all that is remembered."""
    store.fact("state")
    store.records()
    store.last_record()
    store.notes("result", 1)
    store.hashes("result", 1)
    store.newest("start", 9)
    for part in range(4):
        store.note("result", 1, part)
        store.get("result", 1, part)
    store.check()


def test_whatever_happens_to_the_file_is_reported_as_damage(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    with store.commit():
        store.remember("state", {"k": 7, "taken": {str(n): n for n in range(200)}})
        for k in range(40):
            store.record(k, {"number": k, "figures": {"name": "x" * 100}})
        for part in range(4):
            store.put("result", 1, part, bytes(range(256)) * 8, {"steps": 5})
    store.close()
    path = tmp_path / "state" / stores.BASE
    whole = path.read_bytes()
    places = [*range(20, len(whole), 613), *(len(whole) - n for n in (10, 200, 3000))]
    told = 0
    for damage in [*places, None]:
        changed = bytearray(whole if damage is not None else whole[: len(whole) // 2])
        if damage is not None:
            changed[damage : damage + 8] = b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8"
        path.write_bytes(changed)
        try:
            with closing(Store(tmp_path / "state", durable=False)) as again:
                everything(again)
        except stores.Damaged:
            told += 1
        except RunError as error:
            assert "another version" in str(error)  # noqa: PT017 - where the version is written
    assert told > len(places) // 4  # it was damage


@pytest.mark.parametrize("size", [10, stores.LARGE + 1], ids=["small", "large"])
def test_a_state_that_is_removed_under_a_running_node_is_written_again(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_checks, "PULSE", 0.0)
    store = Store(tmp_path / "state")
    with store.commit():
        store.put("result", 3, 1, b"a" * size)
    shutil.rmtree(tmp_path / "state")
    if size > stores.LARGE:  # such a file was not open
        with pytest.raises(RunError, match=r"was removed .*: restore a backup"):
            completed(self_checks.until_removed(store))
        return
    with pytest.raises(self_checks.Rescued, match="nothing is lost"):
        completed(self_checks.until_removed(store))
    store.close()
    again = Store(tmp_path / "state")
    assert again.get("result", 3, 1) is not None
    again.backup(tmp_path / "state")
    with pytest.raises(RunError, match=r"was replaced .* start the node again"):
        completed(self_checks.until_removed(again))
