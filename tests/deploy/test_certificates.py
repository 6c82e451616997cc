"""Certificates are issued, renewed, rotated and revoked while everybody keeps running."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import DataError, InputError
from sdfeel.deploy import certificates
from sdfeel.live.transport import NotTrusted, Peer, Server
from sdfeel.live.trust.allow_list import AllowList, is_whole, permit
from sdfeel.live.trust.identity import Identity, Wallet, create_authority
from tests.examples import examples
from tests.live.parties import LIMITS, echo, run


@pytest.fixture
def made(tmp_path: Path) -> Path:
    create_authority(tmp_path / "authority")
    certificates.issue_node(tmp_path, "edge-0", ["127.0.0.1"])
    certificates.issue_node(tmp_path, "client-3")
    return tmp_path


def identity(directory: Path, node: str) -> Identity:
    return Identity.load(directory / "nodes" / node / "identity")


def allowed(directory: Path) -> AllowList:
    return AllowList(directory / "trust" / "allow.txt")


class Pair:
    """An edge server and a client that keep running through all commands."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.server = directory, Server()

    async def __aenter__(self) -> "Pair":
        me, allow = identity(self.directory, "edge-0"), allowed(self.directory)
        port = await self.server.start("127.0.0.1:0", me, allow, echo, LIMITS)
        client, list_ = identity(self.directory, "client-3"), allowed(self.directory)
        self.peer = Peer(f"127.0.0.1:{port}", client, "edge/0", LIMITS, list_)
        await self.greet()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peer.close()
        await self.server.stop(0)

    async def greet(self) -> None:
        reply = await self.peer.call("echo", {"hello": 1}, timeout=120)
        assert reply.header == {"caller": "client/3", "hello": 1}


def test_a_node_is_renewed_and_its_old_certificate_ends_without_a_restart(made: Path) -> None:
    async def story() -> None:
        async with Pair(made) as pair:
            for node in ("client-3", "edge-0"):
                old = identity(made, node)
                (new,) = certificates.renew(made, [node])
                assert new.serial != old.serial
                assert new.key != old.key
                await pair.greet()
                assert certificates.revoke_node(made, node, superseded=True) == 1
                await pair.greet()
                assert allowed(made).serials(new.name) == (new.serial,)

    run(story())


def test_the_authority_is_rotated_without_a_restart(made: Path) -> None:
    async def story() -> None:
        async with Pair(made) as pair:
            before = identity(made, "edge-0").ca
            certificates.rotate(made)
            await pair.greet()
            with pytest.raises(InputError, match="client-3, edge-0 is from the old authority"):
                certificates.rotate(made, finish=True)
            certificates.renew(made, ["edge-0"])
            await pair.greet()
            certificates.renew(made, ["client-3"])
            certificates.rotate(made, finish=True)
            for node in ("client-3", "edge-0"):
                certificates.revoke_node(made, node, superseded=True)
            await pair.peer.close()
            await pair.greet()
            assert before not in identity(made, "edge-0").ca

    run(story())


def test_a_revoked_node_is_told_so_within_its_next_call(made: Path) -> None:
    async def story() -> None:
        async with Pair(made) as pair:
            assert certificates.revoke_node(made, "client-3") == 1
            with pytest.raises(NotTrusted, match="does not accept certificate"):
                await asyncio.wait_for(pair.greet(), 60)

    run(story())


def test_a_revoked_node_comes_back_only_by_its_name(made: Path) -> None:
    certificates.revoke_node(made, "client-3")
    with pytest.raises(InputError, match=r"was revoked: `sdfeel deploy renew .* client-3` lets"):
        certificates.issue_node(made, "client-3")
    certificates.rotate(made)
    assert [each.name for each in certificates.renew(made, [])] == ["sdfeel://sdfeel/edge/0"]
    certificates.rotate(made, finish=True)  # nobody waits for it
    assert certificates.members(made) == ["edge-0"]
    (new,) = certificates.renew(made, ["client-3"])
    assert allowed(made).serials(new.name) == (new.serial,)


def test_an_identity_that_is_replaced_file_by_file_is_never_half_adopted(made: Path) -> None:
    home = made / "nodes" / "edge-0" / "identity"
    old = Identity.load(home)
    told: list[str] = []
    wallet = Wallet(old, told.append)
    files = {name: (home / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")}
    certificates.renew(made, ["edge-0"])
    fresh = {name: (home / name).read_bytes() for name in files}
    for name, content in files.items():
        (home / name).write_bytes(content)
    assert wallet.current().serial == old.serial
    for name in ("key.pem", "cert.pem"):
        assert wallet.current().serial == old.serial
        (home / name).write_bytes(fresh[name])
    assert wallet.current().serial != old.serial
    for name, content in files.items():  # and what is another node's is not taken at all
        (home / name).write_bytes(content)
    assert wallet.current().serial == old.serial
    other = made / "nodes" / "client-3" / "identity"
    for name in files:
        (home / name).write_bytes((other / name).read_bytes())
    assert wallet.current().serial == old.serial
    assert "the previous certificate stays in force" in told[-1]


def test_only_certificates_that_expire_soon_are_renewed(made: Path) -> None:
    certificates.renew(made, ["client-3"], days=20)
    done = certificates.renew(made, [], within=30)
    assert [each.directory.parent.name for each in done] == ["client-3"]
    assert done[0].expires > datetime.now(UTC) + timedelta(days=300)
    assert certificates.renew(made, [], within=30) == []


def test_a_renewed_server_is_for_the_same_hosts(made: Path) -> None:
    assert certificates.hosts_of(identity(made, "edge-0")) == ["127.0.0.1"]
    (new,) = certificates.renew(made, ["edge-0"])
    assert certificates.hosts_of(new) == ["127.0.0.1"]


def test_what_cannot_be_is_refused_in_a_sentence(made: Path) -> None:
    with pytest.raises(InputError, match="client-3 has a certificate: renew it"):
        certificates.issue_node(made, "client-3")
    with pytest.raises(InputError, match="others must reach edge-1: give the names"):
        certificates.issue_node(made, "edge-1")
    for name in (
        "../x",
        "client-07",
        "client-\u0667",
        f"client-{'9' * 5000}",
        "client-7 ",
        "root-1",
    ):
        with pytest.raises(InputError, match="' is not a node: write a role and a number"):
            certificates.issue_node(made, name)
    for days in (float("nan"), float("inf"), 1e300, -1.0):
        with pytest.raises(InputError, match=r"--within must be a number of days up to 36,500"):
            certificates.renew(made, [], days)
    for host in ("10.0.0.300", "h" * 5000, "a b", ""):
        with pytest.raises(InputError, match=r"is neither an IP address nor a host name"):
            certificates.issue_node(made, "edge-1", [host])
    with pytest.raises(InputError, match="is not on the allow-list"):
        certificates.revoke_node(made, "client-9")
    (made / "authority" / "allow.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"allow.txt is damaged: it is not text; take it from"):
        certificates.revoke_node(made, "client-3")
    (made / "authority" / "ca-key.pem").write_text("nonsense")
    with pytest.raises(DataError, match=r"authority: ca-key.pem or ca.pem is damaged; take both"):
        certificates.issue_node(made, "client-4")
    (made / "authority" / "ca-key.pem").unlink()
    with pytest.raises(InputError, match="has no key: run this where you keep the authority"):
        certificates.renew(made, [])


@given(cuts=st.lists(st.integers(0, 400), min_size=1, max_size=4), data=st.data())
@examples(100)
def test_a_mixture_of_two_lists_is_never_accepted(
    cuts: list[int], data: st.DataObject, two_lists: list[str]
) -> None:
    """However a copy is interrupted or overtaken, no node is trusted that is on neither list."""
    lists = two_lists
    ends = sorted({0, *cuts, max(map(len, lists))})
    mixed = "".join(data.draw(st.sampled_from(lists))[a:b] for a, b in pairwise(ends))
    bare = mixed.rstrip().endswith("# end")  # as edited by hand: the editor's responsibility
    assert bare or not is_whole(mixed) or mixed.rstrip() in {each.rstrip() for each in lists}


@pytest.fixture(scope="module")
def two_lists(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    found = []
    for serials in (("5a", "7f", "c0"), ("5a", "c0", "11", "e4")):
        path = tmp_path_factory.mktemp("lists") / "allow.txt"
        for n, serial in enumerate(serials):
            permit(path, serial * 20, f"sdfeel://sdfeel/client/{n}")
        found.append(path.read_text())
    return found
