"""Epochs: clients join, leave and move while a federation runs, everywhere or nowhere."""

import base64
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import InputError
from sdfeel.core.events import Finished, Round
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy import membership
from sdfeel.deploy.files import read_node
from sdfeel.deploy.local import LocalDeployment, NodeTrial
from sdfeel.deploy.membership import OPERATOR
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.live.client import Membership
from sdfeel.live.edge.epoch_change import Boundary
from sdfeel.live.epochs import (
    REMEMBERED,
    EpochBook,
    SignedNetwork,
    placed,
    remember,
    remembered,
    signed,
)
from sdfeel.live.protocol import Link
from sdfeel.live.store import Store
from sdfeel.live.transport import Reply
from sdfeel.live.transport.errors import Refused
from sdfeel.live.transport.tensors import Schema
from sdfeel.live.trust.authority import create_authority
from sdfeel.run.drive import fingerprint
from sdfeel.schemes import SDFeel
from tests.examples import examples
from tests.live import timeless
from tests.live.village import Answering, Village, network
from tests.waiting import completed

SETTINGS = [
    "network.clients=6",
    "network.servers=3",
    "model.name=logistic",
    "training.engine=loop",
    "training.iterations=45",
    "seed=3",
]


def experiment(*epochs: str, more: tuple[str, ...] = ()) -> Experiment:
    return load(None, [*SETTINGS, *more, f"network.epochs={json.dumps(list(epochs))}"])


def simulated(chosen: Experiment, rounds: int) -> str:
    simulation = prepare(chosen).simulation()
    for _ in range(rounds):
        next(simulation)
    return fingerprint(simulation.model())


def test_an_epoch_that_changes_nothing_changes_no_bit() -> None:
    home = prepare(experiment()).net.home.tolist()
    same = f"4: client-0=edge-{home[0]}, client-3=edge-{home[3]}"
    assert simulated(experiment(same), 9) == simulated(experiment(), 9)


def test_an_epoch_has_no_effect_before_its_first_round_and_one_from_then_on() -> None:
    chosen = experiment("5: client-0=none")
    assert simulated(chosen, 4) == simulated(experiment(), 4)
    assert simulated(chosen, 5) != simulated(experiment(), 5)


def test_an_epoch_from_the_first_round_on_is_simply_the_first_network() -> None:
    ready = prepare(experiment("1: client-0=none"))
    assert ready.net.reach[0] == ()
    assert ready.decisions.epochs == ()


def test_the_weighted_mean_survives_mixing_in_every_epoch() -> None:
    ready = prepare(experiment("3: client-0=none", "6: client-0=edge-2, client-1=edge-1"))
    nets = [ready.decisions.at(k).net for k in (0, 2, 5)]
    assert len({tuple(net.mass.tolist()) for net in nets}) == 3
    for net in nets:
        assert net.mass @ net.mixing == pytest.approx(net.mass)


@pytest.mark.parametrize(
    ("epochs", "more", "why"),
    [
        (["4 client-0=none"], (), "does not describe an epoch: write the first round, a colon"),
        (["4: client-0=gone"], (), "'client-0=gone' is not a change to the network"),
        (["4: client-0=none", "4: client-0=edge-1"], (), "one after another, got rounds 4, 4"),
        (["4: client-0=none, client-0=edge-1"], (), "client 0 is named twice"),
        (["4: client-9=edge-1"], (), "a simulation has the 6 clients of its data"),
        (["4: client-0=80"], (), "a simulation has the 6 clients of its data"),
        (["4: client-0=edge-7"], (), "servers are numbered 0 to 2"),
        (["4: edge-1=none, edge-1=edge-0"], (), "server 1 is named twice"),
        (["4: edge-4=edge-0, client-0=edge-4"], (), "and 3 servers; others are for deployments"),
        (["4: edge-1=none, edge-2=edge-1"], (), "link to edge-1, which is out"),
        (["4: edge-0=none, edge-1=none, edge-2=none"], (), "all servers are out"),
        (["4: edge-2=none, client-0=edge-2"], (), "assigned to server 2, which is out"),
        (["1: edge-2=none", "4: edge-2=edge-0"], (), "server 2 has no clients"),
        (["1: edge-0=none", "4: edge-0=edge-1,client-0=edge-0,edge-1=none"], (), "which is out"),
        (["4: client-0=none"], ("scheme.name=joint",), "remembers what clients did or measured"),
        (["4: client-0=none"], ("scheme.name=async-sd-feel",), "needs a common round"),
        (["4: client-0=none"], ("network.link_chance=0.5",), "leave out network.changes"),
    ],
)
def test_what_cannot_change_is_refused_before_anything_starts(
    epochs: list[str], more: tuple[str, ...], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        prepare(experiment(*epochs, more=more))


def test_a_version_that_no_server_could_adopt_is_not_signed(tmp_path: Path) -> None:
    ready = prepare(experiment(more=("scheme.name=joint", "scheme.tau1=2")))
    make(ready, tmp_path, on_loopback(3), with_data=False)
    with pytest.raises(InputError, match="remembers what clients did"):
        membership.change(tmp_path, 5, ["client-0=none"])
    assert membership.versions(tmp_path) == []


class Desk:
    """An authority that signs versions of a network, and servers' books."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        create_authority(directory / "authority")
        self.ca = (directory / "authority" / "ca.pem").read_bytes()

    def version(self, number: int, begins: int, after: str = "f") -> bytes:
        return signed(
            self.directory / "authority",
            number=number,
            begins=begins,
            federation="f",
            after=after,
            network="{}",
            members=[[0]],
            addresses={"0": "a:1"},
        )

    def book(self, name: str) -> EpochBook:
        return EpochBook(Store(self.directory / name), "f", lambda: self.ca)


def test_only_the_authority_changes_the_network(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    book, body = desk.book("a"), desk.version(1, 5)
    text = json.loads(body)
    text["document"] = text["document"].replace('"begins": 5', '"begins": 6')
    for bad in (json.dumps(text).encode(), body[:-9], b"", b"[]", b'{"document": 1}'):
        with pytest.raises(Refused, match=r"not signed by our authority|is not a version"):
            book.take(bad, 0)
    create_authority(tmp_path / "other")
    other = (tmp_path / "other" / "ca.pem").read_bytes()
    with pytest.raises(Refused, match="not signed by our authority"):
        SignedNetwork.read(body, other)
    assert book.take(body, 0)


def rewritten(body: bytes) -> list[bytes]:
    """The same document with the same or another valid signature, written in other ways."""
    outer = json.loads(body)
    first, last = decode_dss_signature(base64.b64decode(outer["signature"]))
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
    other = base64.b64encode(encode_dss_signature(first, order - last)).decode()
    return [
        json.dumps(outer, indent=3).encode(),
        json.dumps({"more": [1], **outer}).encode(),
        json.dumps({**outer, "signature": 9999 * "*" + outer["signature"]}).encode(),
        json.dumps({**outer, "signature": other}).encode(),
    ]


def test_a_version_is_identified_by_its_signed_document_however_it_is_passed_on(
    tmp_path: Path,
) -> None:
    """Otherwise a server could give each of the others a different version, or fill their disks."""
    desk = Desk(tmp_path)
    first, late = desk.version(1, 5), desk.version(1, 2)
    second = desk.version(2, 8, after=SignedNetwork.read(first, None).digest)
    for n, body in enumerate([first, *rewritten(first)]):
        book = desk.book(f"book-{n}")
        assert book.take(body, 3)
        assert all(book.take(each, 3) for each in (first, *rewritten(first)))
        assert book.take(second, 3)
        assert not any(book.take(each, 3) for each in (late, *rewritten(late)))
        assert (len(book.pending), len(book._void)) == (2, 1)
        assert len(book.pending[0].body) <= len(first) + 4  # one signature may be a little longer


def test_a_book_remembers_through_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    store = Store(tmp_path / "a")
    book = EpochBook(store, "f", lambda: desk.ca)
    first, late = desk.version(1, 5), desk.version(2, 3)
    assert not book.take(late, 3)
    assert book.take(first, 0)
    store.close()
    again = desk.book("a")
    assert again.take(first, 9)  # held, whatever the round is now
    assert not again.take(late, 0)  # void, whatever the round is now
    assert again.due(4) is None
    due = again.due(5)
    assert due is not None
    assert due.number == 1


def test_a_version_that_overtakes_another_is_not_void(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    book, first = desk.book("a"), desk.version(1, 5)
    second = desk.version(2, 8, after=SignedNetwork.read(first, None).digest)
    assert book.take(second, 0) is None  # it was down when the first one was spread
    assert book.take(first, 0)
    assert book.take(second, 0)
    fork = desk.version(2, 9, after=SignedNetwork.read(first, None).digest)
    assert book.take(fork, 0) is False


def test_a_client_that_is_behind_is_told_so_even_by_a_server_whose_rounds_are_over(
    tmp_path: Path,
) -> None:
    """It was killed, and asks its first server, which has left; another server needs it."""
    village = Village(SDFeel(tau1=2, alpha=1), network(), tmp_path, iterations=4)
    village.go()
    cluster = village.ended[0].cluster
    question = {"samples": int(cluster.federation.net.samples[0]), "wait": 0, "taken": 0}
    assert completed(cluster.work(0, question)) == ({"over": True}, None)
    cluster.federation = replace(cluster.federation, epoch=2)
    for epoch, answer in ((0, {"epoch": 2}), (1, {"epoch": 2}), (2, {"over": True})):
        assert completed(cluster.work(0, {**question, "epoch": epoch})) == (answer, None)


def test_a_client_begins_where_it_worked_last(tmp_path: Path) -> None:
    """Its first server may be gone for good."""
    desk = Desk(tmp_path)
    first = Membership("f", Schema(()), (3,))
    one, two = (SignedNetwork.read(desk.version(n, 5 * n), desk.ca) for n in (1, 2))
    assert remembered(tmp_path, desk.ca, "f") is None
    assert placed(first, {3: "old:1"}, [], 0) == (first, {3: "old:1"})
    remember(tmp_path, one)
    last = remembered(tmp_path, desk.ca, "f")
    found = placed(first, {3: "old:1"}, [one, two], 0, last)
    assert found is not None
    assert (found[0].servers, found[0].epoch) == ((0,), 1)
    assert found[1] == {3: "old:1", 0: "a:1"}
    assert remembered(tmp_path, desk.ca, "another") is None
    (tmp_path / REMEMBERED).write_bytes(one.body.replace(b"a:1", b"b:1"))
    assert remembered(tmp_path, desk.ca, "f") is None  # nobody has signed that


@given(
    rounds=st.lists(st.integers(0, 7), min_size=2, max_size=5), order=st.lists(st.integers(0, 4))
)
@examples(25)
def test_an_epoch_begins_everywhere_or_nowhere(
    rounds: list[int], order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Servers continue and ask each other in any order; all begin with the same network."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    body, begins = desk.version(1, 5), 5
    books = [desk.book(str(n)) for n in range(len(rounds))]
    now = list(rounds)
    verdicts = {n: False for n, k in enumerate(now) if k >= begins}  # what each began with
    books[0].take(body, now[0])
    for n in (*order, *sorted(8 * list(range(len(now))))):
        n %= len(now)
        if n not in verdicts and books[n].due(now[n]) is not None:
            verdicts[n] = all([book.take(body, k) for book, k in zip(books, now, strict=True)])
            if not verdicts[n]:
                books[n].void(SignedNetwork.read(body, None))
        elif n in verdicts or now[n] < begins:
            now[n] += 1
        if now[n] >= begins and books[n].due(now[n]) is None:
            verdicts.setdefault(n, False)
    assert len(verdicts) == len(now)
    assert len(set(verdicts.values())) == 1


@pytest.mark.slow
def test_clients_that_join_leave_return_and_move_come_to_the_simulators_model(
    tmp_path: Path,
) -> None:
    chosen = experiment(
        "1: client-5=none",
        "4: client-0=none, client-5=edge-1",
        "7: client-0=edge-2, client-1=edge-0",
    )
    deployment = LocalDeployment(chosen, tmp_path / "real")
    *_, last = deployment
    assert isinstance(last, Finished)
    assert last.model_sha256 == simulated(chosen, last.number)
    log = (tmp_path / "real" / "nodes" / "edge-1" / "log.txt").read_text()
    assert "epoch 1 from round 4 on" in log
    assert "epoch 2 from round 7 on" in log


SERVERS_COME_AND_GO = (
    "1: edge-3=none, client-7=edge-0, client-6=none",
    "3: edge-3=edge-0+edge-2, client-7=edge-3, edge-1=none, client-1=edge-0, client-2=edge-2",
    "6: edge-1=edge-2+edge-3, client-2=edge-1, client-6=edge-1",
    "8: edge-0=none, client-1=edge-2",
)
MORE_NODES = ("network.clients=8", "network.servers=4", "network.assignment=ordered")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "kills"),
    [("sd-feel", 0), ("sd-feel", 5), ("hierfavg", 0), ("k-gt", 3), ("free-tracking", 0)],
)
def test_servers_that_join_leave_and_return_come_to_the_simulators_model(
    tmp_path: Path, scheme: str, kills: int
) -> None:
    more = (*MORE_NODES, f"scheme.name={scheme}", "scheme.tau1=5")
    chosen = experiment(*SERVERS_COME_AND_GO, more=more)
    deployment = LocalDeployment(chosen, tmp_path / "real")
    deployment.processes.trial = NodeTrial(pause=0.05 if kills else 0.0)
    draws = random.Random(scheme)
    done: list[str] = []

    def strike() -> None:
        if len(done) < kills and draws.random() < 0.25:
            name = draws.choice(sorted(deployment.processes.pids()))
            deployment.processes.kill(name)
            done.append(name)

    deployment.every_tick(strike)
    *_, last = deployment
    assert isinstance(last, Finished)
    assert min(kills, 1) <= len(done) <= kills  # as many as there was time for
    assert last.model_sha256 == simulated(chosen, last.number)
    log = (tmp_path / "real" / "nodes" / "edge-3" / "log.txt").read_text()
    assert "joins with epoch 1 in round 3, with 1 clients and the model of edge-0" in log
    assert "this server has left" in (tmp_path / "real/nodes/edge-0/log.txt").read_text()


@pytest.mark.slow
def test_a_change_during_a_run_takes_effect_everywhere_and_a_late_one_nowhere(
    tmp_path: Path,
) -> None:
    """By the operator's command during a run: a new client joins; a change that is late is void."""
    chosen = load(None, [*SETTINGS, "training.iterations=150"])
    directory = tmp_path / "real"
    deployment = LocalDeployment(chosen, directory)
    deployment.processes.trial = NodeTrial(pause=0.05)  # so that a change usually comes in time
    for last in deployment:
        if isinstance(last, Round) and last.number >= 2 and not membership.versions(directory):
            membership.change(directory, last.number + 15, ["client-0=none"])
    (begins,) = [version.begins for version in membership.versions(directory)]
    log = (directory / "nodes" / "edge-1" / "log.txt").read_text()
    assert isinstance(last, Finished)
    taken = f"epoch 1 from round {begins + 1} on" in log
    rule = f"{begins + 1}: client-0=none"
    same = experiment(rule, more=("training.iterations=150",)) if taken else chosen
    assert last.model_sha256 == simulated(same, last.number)


@pytest.mark.parametrize(
    ("overs", "ends"),
    [([True], True), ([True, False], False), ([True, True], True), ([True, False, True], True)],
)
def test_one_server_of_several_does_not_send_a_joining_one_home(
    overs: list[bool], ends: bool
) -> None:
    def link(d: int) -> Link:
        told = {"epoch": {}, "here": {"over": overs[d], "round": 3}}
        return Link(f"edge-{d}", Answering(lambda kind, header: Reply(told[kind])), "")

    net = SimpleNamespace(has=lambda d: d != 9, epoch=0)
    cluster = SimpleNamespace(complain=print)
    edge: Any = SimpleNamespace(federation=net, store=None, number=9, tell=print, cluster=cluster)
    book: Any = SimpleNamespace(adopted=[])
    boundary = Boundary(edge, book, {d: link(d) for d in range(len(overs))}, None)
    if ends:
        assert timeless.run(boundary.await_place()) is False
    else:
        with pytest.raises(TimeoutError):
            timeless.run(boundary.await_place(), seconds=30)


def test_files_that_cannot_be_read_yet_end_no_server(tmp_path: Path) -> None:
    """Somebody copies them while servers run, perhaps with other owners, or as links."""
    desk, told = Desk(tmp_path), list[str]()
    files = tmp_path / "epochs"
    files.mkdir()
    book = EpochBook(Store(tmp_path / "a"), "f", lambda: desk.ca, files)
    (files / "0001.json").symlink_to("nowhere")
    (files / "0002.json").mkdir()
    os.mkfifo(files / "0003.json")
    with (files / "0004.json").open("wb") as file:
        file.truncate(1 << 40)
    first = desk.version(1, 5)
    (files / "0005.json").write_bytes(first)
    assert book.files(told.append) == [first]
    assert [each.partition(".json")[0][-4:] for each in told] == ["0001", "0002", "0003", "0004"]
    assert book.files(told.append) == []
    (files / "0001.json").unlink()
    body = desk.version(2, 9)
    (files / "0001.json").write_bytes(body)
    assert book.files(told.append) == [body]
    assert book.files(told.append) == []


@pytest.mark.parametrize(
    ("begins", "words", "why"),
    [
        (45, ["client-0=none"], "round 46 never comes: a run of 45 iterations has at most as many"),
        (10**19, ["client-0=none"], "never comes"),
        (4, ["client-6=none"], "there is no client 6, so it cannot leave"),
        (4, ["edge-3=none"], "there is no server 3, so it cannot leave"),
        (4, ["client-999999999=edge-0"], "client-999999999 has too high a number"),
        (4, ["edge-99999=edge-0"], "edge-99999 has too high a number"),
        (4, ["client-9=edge-0"], "client-9 is new: say how many examples it has, such as"),
        (4, ["client-\u0663=none"], "is not a change to the network"),
    ],
)
def test_a_mistyped_change_is_refused_and_hinders_no_other(
    begins: int, words: list[str], why: str, tmp_path: Path
) -> None:
    make(prepare(experiment()), tmp_path, on_loopback(3), with_data=False)
    with pytest.raises(InputError, match=why):
        membership.change(tmp_path, begins, words)
    assert membership.versions(tmp_path) == []
    membership.change(tmp_path, 5, ["client-0=none"])
    assert len(membership.versions(tmp_path)) == 1


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("edge-3=nohost", "'edge-3=nohost' does not say where a server is: write edge-3=host:port"),
        ("edge-3=h:65536", "'h:65536' is not a host: write name or name:port"),
        ("edge-3=", "does not say where a server is"),
        ("edge-3=::1:7400", r"does not say where a server is: .* edge-3=\[address\]:port for IPv6"),
        ("edge-3=h:\u0667", "'h:\u0667' is not a host"),
        ("edge-3=10.0.0.300:7400", "'10.0.0.300' is neither an IP address nor a host name"),
        ("edge-3={there}", "edge-0 and edge-3 cannot both be at .*: give another"),
        ("edge-3=a/b:7400", "'a/b' is neither an IP address nor a host name"),
        ("edge-7=a:7400", "edge-3 is new, and its address is unknown"),
    ],
)
def test_a_wrong_address_is_refused_before_a_version_is_signed(
    address: str, why: str, tmp_path: Path
) -> None:
    make(prepare(experiment()), tmp_path, on_loopback(3), with_data=False)
    words = ["edge-3=edge-0", "client-0=edge-3"]
    there = read_node(tmp_path / NODES / OPERATOR / NODE).peers["edge-0"]
    with pytest.raises(InputError, match=why):
        membership.change(tmp_path, 5, words, [address.format(there=there)])
    assert membership.versions(tmp_path) == []
    with pytest.raises(InputError, match="edge-7, which is not in the network"):
        membership.change(tmp_path, 5, words, ["edge-3=h:7400", "edge-7=h:7401"])
    assert membership.change(tmp_path, 5, words, ["edge-3=[::1]:7400"]).addresses[3] == "[::1]:7400"
    assert read_node(tmp_path / NODES / "edge-3" / NODE).listen == "[::]:7400"
