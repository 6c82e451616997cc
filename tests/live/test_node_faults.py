"""Faults of a node are reported: audit logs, disks, clocks, certificates, sudden ends."""

import asyncio
import json
import os
import signal
import sqlite3
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import RunError
from sdfeel.core.run_files import STATUS
from sdfeel.deploy.status import audited
from sdfeel.live import audit, process, self_checks
from sdfeel.live.audit import MOST_KINDS, AuditedCall, AuditLog, verified
from sdfeel.live.health import Health, disk_trouble, last_time
from sdfeel.live.process import EdgeLife, NodeSetting, Service, run_edge
from sdfeel.live.self_checks import Pulse, alone, until_writable
from sdfeel.live.store import Store
from sdfeel.live.transport import Caller, NotTrusted, Peer, Refused
from sdfeel.live.trust import allow_list
from sdfeel.live.trust.identity import revoke
from sdfeel.schemes import SDFeel
from tests.clock import Clock
from tests.examples import examples
from tests.live.parties import LIMITS, Federation, run, serving, until
from tests.live.village import Village, network
from tests.waiting import completed

CALL = AuditedCall("client/0", "ab", "work", "answered", 10, 20, "ipv4:1", "")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_calls_that_are_alike_become_one_line(tmp_path: Path) -> None:
    clock = Clock()
    log = AuditLog(tmp_path / "audit.jsonl", clock=clock)
    for _ in range(1000):
        log.note(CALL)
    log.note(replace(CALL, outcome="denied", reason="it was revoked"))
    assert [line["calls"] for line in lines(log.path)] == [1, 1]
    clock.now += 601
    log.flush()
    assert [line["calls"] for line in lines(log.path)] == [1, 1, 999]
    assert lines(log.path)[-1]["received"] == 9990
    found = verified(log.path)
    (shown,) = audited(tmp_path)
    assert found.outcomes == shown["outcomes"] == {"answered": 1000, "denied": 1}
    assert json.loads(json.dumps(shown)) == shown
    assert found.denied == ["denied work of client/0: it was revoked"]
    assert found.head == log.head


def test_calls_of_ever_new_kinds_fill_no_memory(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", clock=Clock())
    for n in range(MOST_KINDS + 10):
        log.note(replace(CALL, call=str(n)))
    assert len(log._waiting) <= MOST_KINDS


@examples(25)
@given(data=st.data())
def test_no_line_can_be_changed_added_moved_or_removed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    log = AuditLog(path, clock=Clock())
    for n in range(6):
        log.note(replace(CALL, call=f"kind-{n}"))
    assert verified(path).lines == 6
    texts = path.read_bytes().splitlines(keepends=True)
    place = data.draw(st.integers(0, 5))
    deed = data.draw(st.sampled_from(["change", "remove", "double", "swap"]))
    if deed == "change":
        byte = data.draw(st.integers(0, len(texts[place]) - 2))
        changed = bytearray(texts[place])
        changed[byte] ^= data.draw(st.integers(1, 127))
        texts[place] = bytes(changed)
    elif deed == "remove":
        del texts[min(place, 4)]  # the end is held by a head that was noted before
    elif deed == "double":
        texts.insert(place, texts[place])
    else:
        other = (place + 1) % 6
        texts[place], texts[other] = texts[other], texts[place]
    path.write_bytes(b"".join(texts))
    with pytest.raises(RunError, match=r"audit\.jsonl"):
        verified(path, log.head)


def test_a_log_whose_end_was_cut_off_lacks_a_head_that_was_noted(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", clock=Clock())
    for n in range(3):
        log.note(replace(CALL, call=str(n)))
    noted = log.head
    whole = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(whole[:-1]))
    verified(log.path)  # on its own it is whole
    with pytest.raises(RunError, match=f"has no line {noted}: its end was cut off"):
        verified(log.path, noted)


def test_a_crash_in_the_middle_of_a_line_breaks_no_chain(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", clock=Clock())
    log.note(CALL)
    with log.path.open("a") as file:
        file.write('{"n": 2, "time": "20')
    again = AuditLog(log.path, clock=Clock())
    again.note(CALL)
    assert verified(log.path).lines == 2


def test_a_log_that_was_moved_away_continues_in_a_new_file(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", clock=Clock())
    log.note(CALL)
    log.path.rename(tmp_path / "old.jsonl")
    log.note(replace(CALL, call="other"))
    assert verified(tmp_path / "old.jsonl").head == lines(log.path)[0]["before"]
    assert verified(log.path).lines == 2


def test_lines_wait_for_the_disk(tmp_path: Path) -> None:
    told: list[str] = []
    log = AuditLog(tmp_path / "not-yet" / "audit.jsonl", told.append, Clock())
    log.note(CALL)
    log.note(replace(CALL, call="other"))
    assert len(told) == 1
    assert told[0].startswith("cannot write the audit log")
    log.path.parent.mkdir()
    log.flush()
    assert verified(log.path).lines == 2


async def refusing(
    caller: Caller, kind: str, header: dict[str, Any], body: bytes | None
) -> tuple[dict[str, Any], bytes | None]:
    if kind == "refuse":
        raise Refused("not that")
    return header, body


def test_a_server_audits_who_called_with_which_certificate_and_how_it_ended(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    good, bad = federation.issue("client/0"), federation.issue("client/1")
    revoke(federation.list, bad.serial)
    seen: list[AuditedCall] = []
    made: list[AuditedCall] = []

    async def story() -> None:
        async with serving(federation, refusing) as (address, server):
            server._audit = seen.append
            async with Peer(address, good, "edge/0", LIMITS) as peer:
                peer.audit = made.append
                await peer.call("echo", {}, b"12345", timeout=120)
                with pytest.raises(Refused):
                    await peer.call("refuse", {}, timeout=120)
            async with Peer(address, bad, "edge/0", LIMITS) as peer:
                peer.audit = made.append
                with pytest.raises(NotTrusted):
                    await peer.call("echo", {}, timeout=120)

    run(story())
    assert [(each.who, each.outcome) for each in made] == [
        ("sdfeel://sdfeel/edge/0", outcome) for outcome in ("answered", "refused", "denied")
    ]
    assert made[0].sent == 5
    assert [(each.who, each.serial, each.outcome) for each in seen] == [
        (good.name, good.serial, "answered"),
        (good.name, good.serial, "refused"),
        (bad.name, bad.serial, "denied"),
    ]
    assert seen[0].call == "echo"
    assert seen[0].received > 5
    assert "revoked" in seen[2].reason
    assert audit.ANSWERED == "answered"


def test_errors_of_the_disk_are_distinguished_from_others(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store._base.execute("pragma max_page_count=8")
    with pytest.raises(sqlite3.OperationalError) as caught, store.commit():
        store.remember("much", "x" * (1 << 20))
    assert disk_trouble(caught.value) == "database or disk is full"
    assert store.fact("much") is None
    store.close()
    assert disk_trouble(OSError(30, "Read-only file system")) == "Read-only file system"
    assert disk_trouble(ConnectionResetError(104, "Connection reset by peer")) is None


def pulse(tmp_path: Path, told: list[str], allow: Path | None = None) -> Pulse:
    federation = Federation.create(tmp_path / "federation")
    identity = federation.issue("edge/0")
    setting = NodeSetting(identity, tmp_path / "node", {}, allow or tmp_path)
    health = Health("edge-0", "edge", dict)
    job: asyncio.Future[None] = asyncio.Future()
    return Pulse(setting, health, AuditLog(tmp_path / "node" / "audit.jsonl"), job, told.append)


def test_a_node_that_cannot_write_says_so_once_and_is_not_healthy(tmp_path: Path) -> None:
    async def story() -> None:
        told: list[str] = []
        heart = pulse(tmp_path, told)
        (tmp_path / "node").write_text("no directory")
        heart._disk()
        heart._disk()
        assert len(told) == 1
        assert "nothing that was acknowledged is lost" in told[0]
        assert not heart.health.status()["healthy"]
        (tmp_path / "node").unlink()
        heart._disk()
        assert heart.health.status()["healthy"]

    completed(story())


def test_a_node_without_its_allow_list_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allow_list, "GONE", 0.0)

    async def story() -> None:
        (tmp_path / "allow.txt").write_text("# end\n")
        (tmp_path / "node").mkdir()
        heart = pulse(tmp_path, [], tmp_path / "allow.txt")
        heart._disk()
        assert heart.health.status()["healthy"]
        (tmp_path / "allow.txt").rename(tmp_path / "elsewhere")
        heart._disk()
        assert "nobody is trusted until it is back" in heart.health.status()["last_error"]
        assert not heart.health.status()["healthy"]
        (tmp_path / "elsewhere").rename(tmp_path / "allow.txt")
        heart._disk()
        assert heart.health.status()["healthy"]

    completed(story())


def test_a_server_whose_state_cannot_be_written_is_not_healthy_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state may be on a disk of its own: that the status can be written does not matter."""
    identity = Federation.create(tmp_path / "federation").issue("edge/0")
    home = tmp_path / "node"
    home.mkdir()
    setting = NodeSetting(identity, home, {}, tmp_path)
    federation = Village(SDFeel(), network(), tmp_path).federation
    told: list[str] = []
    seen: list[dict[str, Any]] = []
    lives = 0

    async def live(_: EdgeLife) -> None:
        nonlocal lives
        lives += 1
        if lives == 1:
            raise OSError(28, "No space left on device")
        await looks(2)

    async def looks(count: int) -> None:
        """Wait until it has looked at itself so often, and keep what it said then."""
        (home / STATUS).unlink(missing_ok=True)
        for _ in range(count):
            await until((home / STATUS).exists)
            seen.append(json.loads((home / STATUS).read_text()))
            (home / STATUS).unlink()

    async def wait(*_: object) -> None:
        await looks(3)

    monkeypatch.setattr(EdgeLife, "live", live)
    monkeypatch.setattr(process, "until_writable", wait)
    monkeypatch.setattr(self_checks, "PULSE", 0.01)
    completed(run_edge(federation, setting, Service("127.0.0.1:0"), told.append))
    assert [each["healthy"] for each in seen] == [False] * 3 + [True] * 2
    assert "cannot write to" in seen[2]["last_error"]
    assert len([line for line in told if "cannot write to" in line]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_node_in_good_order(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGHUP comes when a terminal is closed; tests that nohup started would ignore it."""
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, usual)
    identity = Federation.create(tmp_path / "federation").issue("edge/0")
    (tmp_path / "node").mkdir()
    setting = NodeSetting(identity, tmp_path / "node", {}, tmp_path)
    federation = Village(SDFeel(), network(), tmp_path).federation
    told: list[str] = []

    async def live(_: EdgeLife) -> None:
        assert signal.getsignal(number) is not signal.SIG_DFL
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    monkeypatch.setattr(EdgeLife, "live", live)
    try:
        completed(run_edge(federation, setting, Service("127.0.0.1:0"), told.append))
    finally:
        signal.signal(number, inherited)
    assert told[-1] == "stopped; it continues from here when it is started again"
    assert json.loads((tmp_path / "node" / STATUS).read_text())["ended"]


def test_a_clock_that_jumps_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        told: list[str] = []
        heart, now = pulse(tmp_path, told), time.time
        heart._clock()
        heart._clock()
        assert told == []
        monkeypatch.setattr(time, "time", lambda: now() - 3600)
        heart._clock()
        heart._clock()
        assert len(told) == 1
        assert told[0].startswith("the clock jumped by -3600 s")

    completed(story())


@pytest.mark.parametrize(
    ("days", "words"), [(20.01, "expires in 20 days"), (365, ""), (-1, "has expired")]
)
def test_a_certificate_that_expires_soon_is_reported_once_a_day(
    days: float, words: str, tmp_path: Path
) -> None:
    async def story() -> None:
        told: list[str] = []
        heart = pulse(tmp_path, told)
        until = datetime.now(UTC) + timedelta(days=days)
        heart._wallet._identity = replace(heart.setting.identity, expires=until)
        heart._certificate()
        heart._certificate()
        assert len(told) == bool(words)
        assert all(words in line and "sdfeel deploy renew" in line for line in told)
        assert heart.health.status()["healthy"] == (days > 0)

    completed(story())


def test_a_process_that_was_killed_is_reported_by_the_next_one(tmp_path: Path) -> None:
    for ended, count in ((False, 1), (True, 0)):
        told: list[str] = []
        (tmp_path / STATUS).write_text(json.dumps({"ended": ended}))
        last_time(tmp_path, told.append)
        assert len(told) == count
        assert all("nothing that was acknowledged is lost" in line for line in told)


def test_a_disk_that_fails_again_and_again_leaves_time_for_probes(tmp_path: Path) -> None:
    async def story() -> None:
        looked: list[bool] = []
        asyncio.get_running_loop().call_soon(looked.append, True)
        await until_writable(tmp_path, pause=0.0)
        assert looked

    completed(story())


def test_a_server_that_lost_its_state_does_not_begin_again_unasked(tmp_path: Path) -> None:
    identity = Federation.create(tmp_path / "federation").issue("edge/0")
    setting = NodeSetting(identity, tmp_path / "node", {}, tmp_path)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / STATUS).write_text('{"round": 7}')
    federation = Village(SDFeel(), network(), tmp_path).federation
    life = EdgeLife(federation, setting, Service("127.0.0.1:0"), lambda line: None)
    for _ in range(2):  # whoever starts it again hears the same
        with pytest.raises(RunError, match=r"finished 7 rounds: .*restore.*reseed.*status.json"):
            completed(life.live())
        assert life.status()["round"] == 7


def test_a_node_is_run_by_one_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path):
            with pytest.raises(RunError, match=r"another process runs this node .* stop one"):
                async with alone(tmp_path, patience=0.0):
                    pass
        async with alone(tmp_path, patience=0.0):
            pass  # the first one has let it go

    completed(story())


def test_an_audit_log_that_was_copied_away_and_emptied_continues(tmp_path: Path) -> None:
    """Some programs rotate logs that way; others rename the file."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, clock=Clock())
    for n in range(3):
        log.note(AuditedCall(f"client-{n}", "5a", "work", "answered"))
    before = log.head
    path.write_bytes(b"")
    log.note(AuditedCall("client-9", "5a", "work", "answered"))
    assert json.loads(path.read_text())["before"] == before
    assert verified(path, log.head).lines == 4
