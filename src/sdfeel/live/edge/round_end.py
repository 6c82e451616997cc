"""How a server's round ends: what synchronous and asynchronous exchanges share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from sdfeel.core.errors import SdfeelError
from sdfeel.core.scheme import Mix
from sdfeel.live.edge.absent_servers import Absent
from sdfeel.live.edge.state import ServerState
from sdfeel.live.federation import Turn
from sdfeel.live.protocol import Answer, Header


@dataclass(frozen=True)
class Closed:
    """The clients that answered in a round, with their steps, and those that did not."""

    steps: Mapping[int, int]
    missing: tuple[int, ...] = ()

    def record(self, k: int) -> dict[str, Any]:
        steps = {str(client): count for client, count in sorted(self.steps.items())}
        return {"k": k, "steps": steps, "missing": list(self.missing)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Closed":
        steps = {int(client): int(count) for client, count in record["steps"].items()}
        return cls(steps, tuple(record["missing"]))


@dataclass(frozen=True)
class Ended:
    """A server's model after a round, and what it must remember about it."""

    model: Tensor
    mix: Mix
    met: tuple[int, ...]  # servers whose models the exchange changed
    keep: int  # nobody can ask any more for hops of rounds before this one
    told: Mapping[str, Any] = field(default_factory=dict)  # for the round's record
    save: Callable[[], None] = lambda: None  # more to write, in the same commit


class Behind(Exception):
    """Another server has moved on, and no longer has the rows that this one needs."""

    def __init__(self, server: int, k: int) -> None:
        super().__init__(f"edge-{server} is already in round {k}")
        self.server, self.round = server, k


class PeerAhead(Exception):
    """Another server has leapt to a later round, and waits there for the others."""

    def __init__(self, server: int, k: int) -> None:
        super().__init__(f"edge-{server} waits in round {k}")
        self.server, self.round = server, k


class Left(Exception):
    """Another server says that this server has left the network."""

    def __init__(self, server: int) -> None:
        super().__init__(f"edge-{server} says that this server has left the network")
        self.server = server


class Exchange(Protocol):
    """How a server exchanges models with others."""

    @property
    def absent(self) -> Absent:
        """Servers that were dropped and have not come back."""
        ...

    async def finish(self, known: ServerState, turn: Turn, closed: Closed) -> Ended:
        """End a round whose results have all arrived; raises Behind if others have moved on."""
        ...

    async def caught_up(self, known: ServerState, behind: Behind) -> ServerState:
        """Continue in the others' round, if they really moved on without this server."""
        ...

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        """Another server sent what no honest one sends."""
        ...

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        """Answer another server."""
        ...

    def committed(self) -> None:
        """Do what follows from a committed round; also called when the node starts."""
        ...

    async def settle(self) -> None:
        """After the last round: give others what they still need from this one."""
        ...

    def settled(self) -> bool:
        """Has every server received what this one's rounds owe it?"""
        ...

    def current(self) -> bytes:
        """This server's model as it is now."""
        ...

    def leapt(self) -> bool:
        """Did this server leap to its present round without doing the one before?"""
        ...

    async def finished(self, steps: float) -> bool:
        """Is the run over, as far as the others can be believed? This server has taken `steps`."""
        ...

    def waiting(self) -> list[str]: ...

    def traffic(self) -> int: ...

    def last_error(self) -> str: ...
