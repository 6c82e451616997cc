"""The authentication matrix with real processes: who is refused, how soon, and in which words.

`python -m tests.live.matrix` prints it; `test_matrix.py` holds it to what is promised.
"""

import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sdfeel.core.run_files import NODE, NODES, write_atomic
from sdfeel.deploy.files import NodeFile, read_node, write_node
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.live.trust.allow_list import revoke
from sdfeel.live.trust.authority import CA
from sdfeel.live.trust.identity import create_authority, issue
from tests.cli.command import Child
from tests.waiting import joined

SETTINGS = [
    "network.clients=4",
    "network.servers=2",
    "data.classes_per_client=5",
    "model.name=logistic",
    "training.engine=loop",
]


@dataclass(frozen=True)
class Fort:
    """A federation with one running edge server, which strangers call."""

    root: Path
    plaintext: str  # the address of a server that speaks no TLS

    @property
    def authority(self) -> Path:
        return self.root / "authority"

    def clone(self, name: str, case: str) -> Path:
        """A node's directory for one case, beside the real one."""
        home = self.root / NODES / f"{name}-{case}"
        shutil.copytree(self.root / NODES / name, home)
        if name.startswith("edge-"):  # at its own address it would be met by the honest server
            node = self.node(home).model_copy(update={"listen": "127.0.0.1:0"})
            write_node(home, "edge", node)
        return home

    def issued(self, home: Path, name: str, authority: Path | None = None, days: float = 2) -> str:
        """The serial number of a new certificate; with negative days it has expired."""
        now = datetime.now(UTC) - timedelta(days=max(0.0, 1 - days))
        found = issue(
            authority or self.authority, name, ["127.0.0.1"], home / "identity", abs(days), now
        )
        self.publish()
        return found.serial

    def publish(self) -> None:
        """Give the nodes the authority's list."""
        write_atomic(self.root / "trust" / "allow.txt", (self.authority / "allow.txt").read_bytes())

    def resident(self, server: str) -> str:
        """The number of a client that belongs to this server."""
        homes = sorted((self.root / NODES).glob("client-?"))
        return next(home.name for home in homes if server in self.node(home).peers)

    def directed(self, home: Path, role: str, peers: dict[str, str]) -> None:
        write_node(home, role, self.node(home).model_copy(update={"peers": peers}))

    def node(self, home: Path) -> NodeFile:
        return read_node(home / NODE)


Prepare = Callable[[Fort, Path, str], None]  # of a node's directory, which has a name


def _nothing(fort: Fort, home: Path, name: str) -> None:
    (home / "identity" / "cert.pem").unlink()


def _other_authority(fort: Fort, home: Path, name: str) -> None:
    stranger = fort.root / "stranger"
    if not stranger.exists():
        create_authority(stranger)
    fort.issued(home, name, stranger)


def _other_authority_that_trusts_ours(fort: Fort, home: Path, name: str) -> None:
    ours = (home / "identity" / CA).read_bytes()
    _other_authority(fort, home, name)
    both = (home / "identity" / CA).read_bytes() + ours
    (home / "identity" / CA).write_bytes(both)


def _expired(fort: Fort, home: Path, name: str) -> None:
    fort.issued(home, name, days=-1)


def _revoked(fort: Fort, home: Path, name: str) -> None:
    revoke(fort.authority / "allow.txt", fort.issued(home, name))
    fort.publish()


def _plaintext(fort: Fort, home: Path, name: str) -> None:
    fort.directed(home, name.partition("/")[0], {"edge-0": fort.plaintext})


def _wrong_name(fort: Fort, home: Path, name: str) -> None:
    """The address of edge-1 is that of edge-0."""
    address = fort.node(fort.root / NODES / fort.resident("edge-0")).peers["edge-0"]
    fort.directed(home, "client", {"edge-1": address})


def _other_experiment(fort: Fort, home: Path, name: str) -> None:
    text = Path(fort.node(home).experiment).read_text()
    (home / "experiment.toml").write_text(text + "\n# changed\n")
    node = fort.node(home).model_copy(update={"experiment": "experiment.toml"})
    write_node(home, name.partition("/")[0], node)


@dataclass(frozen=True)
class Case:
    """A stranger, and the words in which it is refused."""

    what: str
    role: str
    prepare: Prepare
    words: str
    server: str = "edge-0"  # to which the client belongs


CASES = [
    Case("no certificate", "client", _nothing, r"cannot read .*cert\.pem: No such file"),
    Case("wrong authority", "client", _other_authority, "is not from our authority"),
    Case(
        "wrong authority, trusts ours",
        "client",
        _other_authority_that_trusts_ours,
        r"edge/0 at .* does not accept our certificate, .*client/[0-9]",
    ),
    Case("expired", "client", _expired, r"our own certificate, .*client/[0-9], expired on"),
    Case("wrong name", "client", _wrong_name, r"/edge/0, not .*/edge/1: check", "edge-1"),
    Case(
        "revoked", "client", _revoked, r"does not accept certificate .*client/[0-9]: it was revoked"
    ),
    Case("plaintext server", "client", _plaintext, "answers without TLS, so it cannot be"),
    Case("other experiment", "client", _other_experiment, "have different experiments"),
    Case("no certificate", "edge", _nothing, r"cannot read .*cert\.pem: No such file"),
    Case("wrong authority", "edge", _other_authority, "is not from our authority"),
    Case(
        "wrong authority, trusts ours",
        "edge",
        _other_authority_that_trusts_ours,
        r"edge/0 at .* does not accept our certificate, .*edge/1",
    ),
    Case("expired", "edge", _expired, r"our own certificate, .*edge/1, expired on"),
    Case("revoked", "edge", _revoked, r"does not accept certificate .*edge/1: it was revoked"),
    Case("plaintext server", "edge", _plaintext, "answers without TLS, so it cannot be"),
    Case("other experiment", "edge", _other_experiment, "have different experiments"),
]


@contextmanager
def fort(root: Path) -> Iterator[Fort]:
    """Build it, and run its edge server."""
    make(prepare(load(None, SETTINGS)), root, on_loopback(2))
    with _http() as plaintext:
        built = Fort(root, plaintext)
        home = root / NODES / "edge-0"
        keeper = Child(home, "edge", home / NODE)
        try:
            keeper.until(lambda: keeper.says("listening on port"))
            yield built
        finally:
            keeper.process.kill()
            joined(keeper.process)


@contextmanager
def _http() -> Iterator[str]:
    """A server that answers everybody in plain text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Knock:
    """A stranger's process, and how it ended."""

    code: int
    seconds: float
    sentence: str


def knock(built: Fort, number: int, case: Case) -> Callable[[], Knock]:
    """Start the stranger's process; its outcome is read later."""
    name = "edge-1" if case.role == "edge" else built.resident(case.server)
    home = built.clone(name, str(number))
    case.prepare(built, home, name.replace("-", "/"))
    began = time.monotonic()
    child = Child(home, case.role, home / NODE)

    def ended() -> Knock:
        outcome = child.end()
        return Knock(outcome.code, time.monotonic() - began, outcome.sentence)

    return ended


def main() -> int:
    root = Path(tempfile.mkdtemp(prefix="matrix-")) / "federation"
    good = True
    try:
        with fort(root) as built:
            for number, case in enumerate(CASES):
                found = knock(built, number, case)()
                good = good and found.code != 0 and found.seconds < 30
                sentence = found.sentence.removeprefix("sdfeel: ").replace(f"{root}/", "")
                print(
                    f"{case.role:6} {case.what:29} exit {found.code}  {found.seconds:4.1f} s  "
                    f"{sentence}",
                    flush=True,
                )
    finally:
        shutil.rmtree(root.parent)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
