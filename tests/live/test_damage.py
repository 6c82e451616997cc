"""Damage to a node's files is never taken for something else, and is reported in one sentence.

It does not matter what finds the damage: the open round, or a call that is being answered.
"""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdfeel.core.errors import DataError, RunError
from sdfeel.core.run_files import STATE, STATUS, secret_of
from sdfeel.live.audit import AuditedCall, AuditLog, verified
from sdfeel.live.health import last_round, last_time
from sdfeel.live.process import EdgeLife, NodeSetting, Service, run_client
from sdfeel.live.protocol import UNSAID
from sdfeel.live.statements import StatementLog
from sdfeel.live.store import BASE, Damaged, Store
from sdfeel.live.transport import Caller
from sdfeel.live.transport.errors import Unable
from sdfeel.schemes import Scaffold, SDFeel
from tests.live import timeless
from tests.live.parties import Federation
from tests.live.village import Village, network
from tests.waiting import completed

STEP = 61  # every so many bytes, one bit is flipped


def remembered(directory: Path) -> dict[str, Any]:
    """Everything that can be read, by where it was written."""
    with closing(Store(directory, durable=False)) as store:
        found: dict[str, Any] = {name: store.fact(name) for name in ("state", "closed")}
        found |= {f"record {each['number']}": each for each in store.records()}
        for part in range(4):
            saved = store.get("result", 1, part)
            found[f"note {part}"] = store.note("result", 1, part)
            found[f"body {part}"] = None if saved is None else (saved.body, saved.note)
    return {name: value for name, value in found.items() if value is not None}


def test_no_flipped_bit_changes_a_state_unnoticed(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store, store.commit():
        store.remember("state", {"k": 7, "steps": 35.0, "taken": {str(n): 11 for n in range(60)}})
        store.remember("closed", {"k": 7, "steps": {"0": 5}, "missing": []})
        for k in range(10):
            store.record(k, {"number": k, "iterations": 5 * k, "figures": {}})
        for part in range(4):
            store.put("result", 1, part, bytes(range(64)), {"steps": 5, "seconds": 0.25})
    whole, expected = (tmp_path / BASE).read_bytes(), remembered(tmp_path)
    assert len(expected) == 20
    damaged = 0
    for place in range(0, len(whole), STEP):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        (tmp_path / BASE).write_bytes(changed)
        try:
            found = remembered(tmp_path)
        except RunError:
            damaged += 1
            continue
        assert found.items() <= expected.items(), place
    assert damaged > 3


HURTS = {
    "a flipped bit in a model": "update tensors set body = x'00' || substr(body, 2)",
    "a model that is missing": "delete from tensors where kind = 'start'",
    "a flipped bit in a note": "update tensors set note = replace(note, '{', '{ ')",
    "a table that is missing": "drop table tensors",
}


@pytest.mark.parametrize("hurt", HURTS)
def test_a_server_that_finds_damage_during_a_call_stops_answering(
    hurt: str, tmp_path: Path
) -> None:
    """Otherwise its clients would ask for ever, and its page would say that it is healthy."""
    village = Village(SDFeel(tau1=2), network(), tmp_path)

    async def story() -> BaseException | None:
        village.start(0)
        await asyncio.sleep(0.1)
        edge = village.edges[0]
        edge.store._recent.clear()
        edge.store._base.execute(HURTS[hurt])
        identity = SimpleNamespace(role="edge", number=0)
        setting: Any = SimpleNamespace(identity=identity, directory=tmp_path / "edge-0")
        life = EdgeLife(village.federation, setting, Service(""), lambda line: None)
        life._edge, life._lost = edge, asyncio.get_running_loop().create_future()
        question = {"federation": village.federation.digest, "samples": 30, "taken": 0}
        told = {**question, "about": UNSAID.told(), "wait": 1}
        with pytest.raises(Unable, match="is damaged"):
            await life._handle(Caller("client", 0, "client-0", "5a"), "work", told, None)
        village.crash(0)
        await asyncio.sleep(0)
        return life._lost.exception()

    assert isinstance(timeless.run(story()), Damaged | sqlite3.Error)


def test_a_client_that_lost_what_it_keeps_does_not_begin_again_unasked(tmp_path: Path) -> None:
    identity = Federation.create(tmp_path / "federation").issue("client/0")
    setting = NodeSetting(identity, tmp_path / "node", {0: "127.0.0.1:1"}, tmp_path)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / STATUS).write_text('{"round": 7}')
    member = Village(Scaffold(tau1=2), network(), tmp_path).federation.member(0)
    assert member.keeps

    def train(task: Any) -> Any:
        raise AssertionError("it must not train")

    for _ in range(2):  # whoever starts it again hears the same
        with pytest.raises(RunError, match=r"finished round 7: .* restore the directory"):
            completed(run_client(member, setting, 30, train, lambda line: None))


def test_a_secret_that_was_cut_short_is_no_secret(tmp_path: Path) -> None:
    assert secret_of(tmp_path) == secret_of(tmp_path) > 1 << 128
    (path,) = (tmp_path / STATE).iterdir()
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(DataError, match=r"is damaged: it has 5 bytes, not 32; bring"):
        secret_of(tmp_path)


LINES = (b"null", b"3", b"[]", b"{}", b'"x"', b'{"statement":', b"\xff\xfe", b"[" * 5000)
STATUSES = ("null", "3", '{"round": 1e999}', '{"round": "x"}', '{"round": []}', "{", '{"ended": 1}')


def test_no_line_of_a_log_and_no_status_ends_a_node(tmp_path: Path) -> None:
    log = StatementLog(tmp_path / "statements.jsonl")
    for k in range(3):
        log.append({"statement": {"round": k}})
    whole = log.path.read_bytes().splitlines()
    audit = AuditLog(tmp_path / "audit.jsonl")
    audit.note(AuditedCall("client-0", "5a", "work", "answered"))
    for line in LINES:
        log.path.write_bytes(b"\n".join([line, *whole[1:], b""]))
        again = StatementLog(log.path)
        again.append({"statement": {"round": 1}})  # as a server that was restored does
        assert log.path.read_bytes().splitlines()[1:] == whole[1:]
        audit.path.write_bytes(line + b"\n")
        with pytest.raises(RunError, match=r"line 1, does not follow from the one before"):
            verified(audit.path)
    for text in STATUSES:
        (tmp_path / STATUS).write_text(text)
        assert last_round(tmp_path) == 0
        last_time(tmp_path, lambda line: None)


def test_arrays_and_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    """A checksum does not change what it protects; a state without checksums can be read, too."""
    values: list[Any] = [None, 0, -1.5, "a\nb", [1, "\n"], {"x": [np.pi]}, "\n00000000", True]
    with closing(Store(tmp_path)) as store:
        for value in values:
            with store.commit():
                store.remember("one", value)
                store.record(3, {"value": value})
            assert store.fact("one") == value
            assert store.last_record() == {"value": value}
            store._base.execute("update facts set value = ?", (json.dumps(value),))
            assert store.fact("one") == value
