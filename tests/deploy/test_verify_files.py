"""A verifier's files come from the nodes' hosts: none may crash it, keep it busy for ever, or blame
another node."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdfeel.core.errors import InputError, RunError
from sdfeel.core.run_files import KEPT_MODELS, NODES, STATEMENTS
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.deploy.statement_books import authorities
from sdfeel.deploy.verify import verify
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.live.edge.policy import Policy
from sdfeel.live.statements import FIRST, Notary, StatementLog, hash_of
from sdfeel.live.transport.tensors import MODEL, pack
from sdfeel.live.trust.authority import create_authority
from sdfeel.live.trust.identity import Identity, issue
from tests.deploy.test_verify import lines, played, rewritten, verified
from tests.live.village import SIZE, Village

Lines = list[dict[str, Any]]


def signed_again(village: Village, node: str, found: Lines, first: int = 0) -> None:
    """As its key's holder can: every line fits its signature, and follows the one before."""
    who = Identity.load(village.directory / NODES / node / "identity")
    notary = Notary(lambda: who, village.federation.digest)
    for line, after in pairwise(found[first:]):
        line["signature"] = notary.sign(line["statement"])["signature"]
        after["statement"]["before"] = hash_of(line["statement"])
    found[-1]["signature"] = notary.sign(found[-1]["statement"])["signature"]


def kept(village: Village, node: str, body: bytes) -> str:
    """Put something among the models that a server kept; the hash by which it is found."""
    sha256 = hashlib.sha256(body).hexdigest()
    place = village.directory / NODES / node / KEPT_MODELS / "000001"
    place.mkdir(parents=True, exist_ok=True)
    (place / sha256).write_bytes(body)
    return sha256


NO_MODELS: list[bytes] = [
    b"",
    b"x" * 500,
    pack({"other": np.zeros(SIZE, np.float32)}),
    pack({MODEL: np.zeros(SIZE + 1, np.float32)}),
    pack({MODEL: np.full(SIZE, np.nan, np.float32)}),
    pack({MODEL: np.zeros((SIZE, 1), np.int64)}),
]


@pytest.mark.parametrize("number", range(len(NO_MODELS)))
@pytest.mark.parametrize("field", ["start", "result", "rows", "heard", "offered"])
def test_kept_files_that_are_no_models_end_no_verification(
    field: str, number: int, tmp_path: Path
) -> None:
    village = played(tmp_path, policy=Policy(keep_models=20))
    sha256 = kept(village, "edge-1", NO_MODELS[number])
    path, found = lines(tmp_path, "edge-1")
    for line in (found[1], found[-1]):
        said = line["statement"]
        if field in ("start", "result"):
            said[field] = sha256
        else:
            said[field] = {key: sha256 for key in said[field] or {"7": sha256}}
    signed_again(village, "edge-1", found)
    rewritten(path, found)
    for told in (verified(village), verified(village, data=lambda client: False)):
        assert not told.verified
        assert all("edge-1" in each.nodes for each in told.findings)
        assert set(told.offenders()) <= {"edge-1"}


@pytest.mark.parametrize("pace", ["experiment", "measured"])
@pytest.mark.parametrize("steps", [0, 1, 3, 2**53 - 1])
def test_a_server_and_its_client_cannot_agree_on_other_steps(
    steps: int, pace: str, tmp_path: Path
) -> None:
    """A round asks for 2, whatever pace they say they have: it has no deadline."""
    village = played(tmp_path)
    path, found = lines(tmp_path, "edge-0")
    client = min(found[1]["clients"])
    its_path, its = lines(tmp_path, f"client-{client}")
    its[1]["statement"]["steps"] = found[1]["statement"]["steps"][client] = steps
    signed_again(village, f"client-{client}", its)
    for line, own in zip(found, its, strict=True):
        word = line["clients"][client]
        word["statement"], word["signature"] = own["statement"], own["signature"]
        line["statement"]["came"][client] = hash_of(own["statement"])
        line["statement"]["policy"]["pace"] = pace
    signed_again(village, "edge-0", found)
    rewritten(path, found)
    rewritten(its_path, its)
    told = verified(village)
    assert told.first is not None
    assert told.first.nodes == ("edge-0",)
    assert f"it used {steps} steps of client-{client}, which were to be 2" in told.first.text
    assert told.offenders() == ["edge-0"]


def test_no_host_brings_an_authority_of_its_own(tmp_path: Path) -> None:
    """With one, it could forge statements of other nodes."""
    village = played(tmp_path / "run")
    create_authority(tmp_path / "mine")
    path, found = lines(village.directory, "edge-0")
    client = min(found[1]["clients"])
    forger = issue(tmp_path / "mine", f"client/{client}", [], tmp_path / "forged")
    word = found[1]["clients"][client]
    word["statement"]["sent"] = "ab" * 32
    seal = Notary(lambda: forger, village.federation.digest).sign(word["statement"])
    word |= {"signature": seal["signature"], "serial": forger.serial}
    found[1]["certificates"][forger.serial] = seal["certificate"]
    found[1]["statement"]["came"][client] = hash_of(word["statement"])
    signed_again(village, "edge-0", found)
    rewritten(path, found)
    identity = village.directory / NODES / "edge-0" / "identity" / "ca.pem"
    identity.write_bytes(identity.read_bytes() + forger.ca)
    assert verified(village).offenders() == ["edge-0"]
    for known in (village.directory / "authority").iterdir():
        known.unlink()  # by somebody who has nothing but the nodes' files
    assert verified(village).offenders() == ["edge-0"]
    for other in (village.directory / NODES).glob("*/identity/ca.pem"):
        if other.parent.parent.name != "edge-0":
            other.unlink()
    shutil.copytree(village.directory / NODES / "client-1", village.directory / NODES / "client-x")
    other = village.directory / NODES / "client-x" / "identity" / "ca.pem"
    other.write_bytes(forger.ca)
    assert authorities(village.directory) == forger.ca  # named by both that are left
    other.write_bytes(b"nothing")
    identity.write_bytes(b"\0")
    with pytest.raises(RunError, match="no authority's certificate that most of its nodes name"):
        authorities(village.directory)


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_directory(path: Path) -> None:
    path.mkdir()


def as_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [as_pipe, as_directory, as_loop])
def test_what_is_no_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    village = played(tmp_path, policy=Policy(keep_models=20))
    for path in (tmp_path / NODES / "edge-1" / KEPT_MODELS).glob("*/*"):
        path.unlink()
        make(path)
    (path, _), (other, _) = lines(tmp_path, "edge-1"), lines(tmp_path, "client-5")
    for each in (path, other):
        each.unlink()
        make(each)
    told = verified(village, data=lambda client: False)
    assert list(told.findings) == []
    assert ("edge-1", "it did not sign this round") in told.unknown


def test_another_content_under_a_models_name_hides_no_model(tmp_path: Path) -> None:
    village = played(tmp_path, policy=Policy(keep_models=20))
    for path in (tmp_path / NODES / "edge-0" / KEPT_MODELS).glob("*/*"):
        for other in ("edge-1", "edge-2"):
            place = tmp_path / NODES / other / KEPT_MODELS / "000000" / path.name
            place.write_bytes(b"nothing of the kind")
    found = verified(village, only_round=3, data=lambda client: False)
    assert found.good["server"] >= 1
    assert not any(node == "edge-0" for node, _ in found.unknown)


def test_files_that_were_rotated_are_read_in_order(tmp_path: Path) -> None:
    village = played(tmp_path)
    for node in ("edge-1", "client-2"):
        path, found = lines(tmp_path, node)
        rewritten(path.with_name(f"{STATEMENTS}.2"), found[:1])
        rewritten(path.with_name(f"{STATEMENTS}-20261118"), found[1:3])
        rewritten(path, found[3:])
        shutil.copy(path, path.with_name(f"{STATEMENTS}~"))
        path.with_name(f"{STATEMENTS}.3.gz").write_bytes(b"\x1f\x8b")
    shutil.copytree(tmp_path / NODES / "client-2", tmp_path / NODES / "client-2.old")
    shutil.copytree(tmp_path / NODES / "edge-0", tmp_path / NODES / "edge-0.bak")
    told = verified(village)
    assert told.verified
    assert told.unknown == {}
    assert sum("unpack it" in each for each in told.remarks) == 2
    assert sum("nodes' directories are called" in each for each in told.remarks) == 6


def test_a_node_that_rotated_and_started_again_is_not_blamed(tmp_path: Path) -> None:
    """It does not know the line that it follows, and its server keeps what it signs."""
    village = played(tmp_path)
    path, found = lines(tmp_path, "client-2")
    rewritten(path.with_name(f"{STATEMENTS}.1"), found[:2])
    found[2]["statement"]["before"] = FIRST
    signed_again(village, "client-2", found, first=2)
    rewritten(path, found[2:])
    for server in ("edge-0", "edge-1", "edge-2"):
        server_path, its = lines(tmp_path, server)
        for line, own in zip(its, found, strict=True):
            if "2" in line["clients"]:
                word = line["clients"]["2"]
                word["statement"], word["signature"] = own["statement"], own["signature"]
                line["statement"]["came"]["2"] = hash_of(own["statement"])
        signed_again(village, server, its)
        rewritten(server_path, its)
    told = verified(village)
    assert told.verified
    assert "the statements of client-2 begin anew with round 3" in told.remarks


def test_a_part_that_is_missing_is_in_doubt_and_blames_nobody_else(tmp_path: Path) -> None:
    village = played(tmp_path)
    for node in ("edge-1", "client-0"):
        path, found = lines(tmp_path, node)
        path.unlink()
        log = StatementLog(path)
        for line in found[1:]:  # as the node hands them over
            line["certificates"] = found[0]["certificates"]
        for line in found[:2]:
            log.append(line)
        path.unlink()  # which the node does not notice
        for line in found[2:]:
            log.append(line)
    told = verified(village)
    assert told.offenders() == []
    assert {each.nodes for each in told.findings} == {("edge-1",), ("client-0",)}
    assert "lacks rounds 1 to 2, of which others hold its signature" in told.findings[0].text
    assert told.verdict().endswith("is in doubt first, in round 1")


def test_whoever_lost_lines_in_a_power_cut_is_in_doubt_and_not_convicted(tmp_path: Path) -> None:
    """Nobody waits until the disk has these lines, so the newest may be lost."""
    village = played(tmp_path)
    for node, lost in (("edge-1", (1, 2)), ("client-0", (-1, -2))):
        path, found = lines(tmp_path, node)
        gone = [found[n] for n in lost]
        left = [line for line in found if line not in gone]
        path.write_text("".join(json.dumps(line) + "\n" for line in left))
    told = verified(village)
    assert told.findings
    assert [each.text for each in told.findings if each.proven] == []
    texts = [each.text for each in told.findings]
    assert any("of which others hold its signature: a power cut took them" in t for t in texts)


def test_nobody_is_convicted_by_a_file_of_another_node(tmp_path: Path) -> None:
    village = played(tmp_path)
    path, _ = lines(tmp_path, "client-3")
    shutil.copy(path, lines(tmp_path, "client-2")[0])
    told = verified(village)
    assert [each.text for each in told.findings if each.proven] == []
    texts = [each.text for each in told.findings]
    assert "client-2: statements of client-3 are in its directory: move them to client-3's" in texts
    assert not [text for text in texts if text.startswith("client-3")]


def test_clients_that_do_not_exist_are_not_verified(tmp_path: Path) -> None:
    words = ("network.clients=4", "network.servers=2", "data.classes_per_client=5")
    make(prepare(load(None, [*words, "training.engine=loop"])), tmp_path, on_loopback(2))
    for node in ("edge-0", "edge-1"):
        (tmp_path / NODES / node / STATEMENTS).write_text("")
    for only, data in ((4, []), (None, ["client-9=nowhere"])):
        with pytest.raises(InputError, match=r"there is no client [49]: .* clients 0 to 3"):
            verify(tmp_path, only_client=only, data=data)
