"""Copies of a deployment's nodes: the nodes' own code, fed with what they signed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sdfeel.core.errors import InputError, SdfeelError, printable
from sdfeel.core.run_files import EXPERIMENT, KEPT_MODELS, NETWORK, NODE, NODES
from sdfeel.deploy.files import NodeFile, read_node
from sdfeel.deploy.membership import OPERATOR
from sdfeel.deploy.node import own_engine, own_examples, trainer
from sdfeel.engine.arithmetic import arithmetic
from sdfeel.engine.base import Task
from sdfeel.engine.loop import TORCH
from sdfeel.live.client import Client
from sdfeel.live.edge.epoch_change import reset_rows
from sdfeel.live.edge.exchange_sync import SyncExchange
from sdfeel.live.edge.rows import PublicCopies, ServerRows, place
from sdfeel.live.edge.server_statements import at
from sdfeel.live.failover import Failover
from sdfeel.live.federation import Federation, by_torch
from sdfeel.live.statements import Statement, is_hash
from sdfeel.live.store import Store
from sdfeel.live.transport.tensors import digest
from sdfeel.live.trust.names import role_and_number


class NotAtHand(Exception):
    """The verifier lacks something that it needs to recompute a part."""


class Deviates(Exception):
    """A node deviated from what it should have done."""


# Why an honest client's model may differ from ours.
ELSEWHERE = (
    "torch rounds differently where it trained than here, or it is unknown how it rounded there: "
    "verify on a machine like that one; with training.engine=native, bits are the same everywhere"
)
# What computing raises if the input is not what its signer claimed.
IMPOSSIBLE = (SdfeelError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError)


def not_repeated(error: Exception) -> str:
    """Why a part was not recomputed: what was signed cannot be used in a computation."""
    return f"it cannot be repeated ({printable(str(error))[:200] or type(error).__name__})"


@dataclass
class Bodies:
    """The models at hand, by their hashes: files that servers kept, and what was recomputed.

    Several servers may bring a file of the same name, and some of these a wrong content.
    """

    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    _rounds: dict[int, dict[str, bytes]] = field(default_factory=dict)  # of the last two

    @classmethod
    def of(cls, directory: Path, most: int) -> "Bodies":
        """The files that servers kept, except those larger than `most` bytes."""
        found: dict[str, list[Path]] = {}
        for path in (directory / NODES).glob(f"*/{KEPT_MODELS}/*/*"):
            if is_hash(path.name) and path.is_file() and path.stat().st_size <= most:
                found.setdefault(path.name, []).append(path)
        return cls(found)

    def add(self, k: int, body: bytes) -> str:
        sha256 = digest(body)
        self._rounds.setdefault(k, {})[sha256] = body
        for old in [n for n in self._rounds if n < k - 1]:
            del self._rounds[old]
        return sha256

    def __len__(self) -> int:
        """The number of models that were recomputed lately."""
        return sum(map(len, self._rounds.values()))

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self.files or any(sha256 in each for each in self._rounds.values())

    def get(self, sha256: str, what: str) -> bytes:
        """The body with this hash, or `NotAtHand`."""
        for known in self._rounds.values():
            if sha256 in known:
                return known[sha256]
        for path in self.files.get(sha256, ()):
            body = path.read_bytes()
            if digest(body) == sha256:
                return body
        raise NotAtHand(f"{what} is not known: no server kept it (policy.keep_models)")


@dataclass
class Replayed(SyncExchange):
    """A server's exchanges, fed with the rows that it signed to have heard."""

    heard: Mapping[str, str] = field(default_factory=dict)
    away: frozenset[int] = frozenset()
    bodies: Bodies = field(default_factory=Bodies)

    async def _gather(
        self,
        k: int,
        hop: int,
        rows: list[int],
        own: ServerRows,
        copies: PublicCopies | None = None,
    ) -> dict[int, Tensor]:
        found = {}
        for n in rows:
            server = self._federation.holder(n)
            sha256 = self.heard.get(f"{server}/{at(hop, place(n))}")
            if sha256 is not None:
                body = self.bodies.get(sha256, f"what edge-{server} sent")
                found[n] = self._read(n, body, sha256, own, copies)
            elif server not in self.away:
                raise Deviates(f"it mixed without edge-{server}, and does not say so")
        return found


@dataclass
class ServerCopy:
    """One server, as the verifier repeats its rounds."""

    number: int
    store: Store
    memory: Mapping[str, Any] = field(default_factory=dict)
    result: str | None = None  # of its last signed round
    unsure: str = ""  # why its rows are not known
    known: bool = True  # are all its rounds so far at hand? Then we know its clients' steps

    def begin_anew(self, federation: Federation, k: int) -> None:
        """Reset all rows but the model, as an epoch begins with round `k`."""
        start, self.unsure = self.store.get("start", k), ""
        if start is None and federation.net.shelves:
            self.unsure = f"the model that edge-{self.number} began with is not known"
        elif start is not None:
            with self.store.commit():
                reset_rows(self.store, self.number, federation, start.body)


@dataclass
class ClientCopy:
    """One client, as the verifier repeats its rounds."""

    client: Client
    by_torch: bool = False  # then its bits depend on its CPU
    unsure: str = ""  # why what it keeps from round to round is not known

    def rounds_otherwise(self, own: Statement) -> bool:
        """According to its statement, may its arithmetic have differed from ours?"""
        return self.by_torch and own.get("arithmetic") != arithmetic()


@dataclass
class ClientCopies:
    """Makes copies of a deployment's clients, from their files and data."""

    directory: Path
    node: NodeFile  # where the shared files are
    module: nn.Module
    data: Mapping[int | None, str]  # by client; under None for all others
    temporary: Path
    stack: ExitStack  # ends what was opened

    def made(self, federation: Federation, number: int) -> ClientCopy | str:
        """A copy of a client with its data, or why its rounds cannot be repeated."""
        path = self.directory / NODES / f"client-{number}" / NODE
        node = read_node(path) if path.is_file() else self.node
        if node.trainer is not None:
            return f"it trains by {node.trainer}, which only its owner can repeat"
        if federation.private or federation.guard is not None:
            return "there is noise in its messages, drawn from a secret that only it knows"
        if federation.sums is not None:
            return "its messages are masked, by a secret that only it knows"
        place = self.data.get(number, self.data.get(None, node.data))
        if place is not None and ":" not in place:
            place = str(Path(place).resolve())
        shared = {"experiment": self.node.experiment, "network": self.node.network}
        node = node.model_copy(update={**shared, "data": place})
        examples = own_examples(node, number)
        expected = int(federation.net.samples[number])
        if len(examples) != expected:
            return f"its data at hand have {len(examples)} examples, not {expected}"
        engine = own_engine(node, number, examples, self.module)
        self.stack.callback(engine.close)
        copy = client_copy(federation, number, trainer(engine), self.temporary, self.stack)
        return replace(copy, by_torch=engine.bits.startswith(TORCH))


def client_copy(
    federation: Federation,
    number: int,
    train: Callable[[Task], Tensor],
    temporary: Path,
    stack: ExitStack,
) -> ClientCopy:
    """A copy of a client that trains by `train`; its memory lasts as long as the verification."""
    member = federation.member(number)
    samples = int(federation.net.samples[number])
    client = Client(member.schema, number, samples, Failover({}), by_torch(train), member.coding)
    if member.keeps:
        store = Store(temporary / f"client-{number}", durable=False)
        stack.enter_context(closing(store))
        client.kept, client.rows = member.memory(store), tuple(member.rows)
    return ClientCopy(client)


def data_of(words: Sequence[str]) -> dict[int | None, str]:
    """The place of each client's data; under None that of all clients not named."""
    found: dict[int | None, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        role, number = role_and_number(name) or ("", 0)
        if not equals:
            found[None] = word
        elif role == "client":
            found[number] = path
        else:
            raise InputError(f"--data takes client-3=PATH, or a directory, got '{word[:100]}'")
    return found


def shared_files(directory: Path) -> NodeFile:
    """A node file with the shared files: the operator's, or one with their usual places."""
    path = directory / NODES / OPERATOR / NODE
    if path.is_file():
        return read_node(path)
    base = directory.resolve()
    return NodeFile(experiment=str(base / EXPERIMENT), network=str(base / NETWORK))
