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
    """Who answered in a round, with how many steps, and who did not."""

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
    keep: int  # hops of earlier rounds can no longer be asked for
    told: Mapping[str, Any] = field(default_factory=dict)  # for the round's record
    save: Callable[[], None] = lambda: None  # more to write, in the same commit


class Behind(Exception):
    """Another server has moved on, and no longer keeps what this one asks for."""

    def __init__(self, server: int, k: int) -> None:
        super().__init__(f"edge-{server} is already in round {k}")
        self.server, self.round = server, k


class PeerAhead(Exception):
    """Another server has leapt to a later round, and waits there for the others."""

    def __init__(self, server: int, k: int) -> None:
        super().__init__(f"edge-{server} waits in round {k}")
        self.server, self.round = server, k


class Left(Exception):
    """Another server says that this one has left the network."""

    def __init__(self, server: int) -> None:
        super().__init__(f"edge-{server} says that this server has left the network")
        self.server = server


class Exchange(Protocol):
    """How a server exchanges models with others."""

    @property
    def absent(self) -> Absent:
        """Servers that were dropped, and silent since."""
        ...

    async def finish(self, known: ServerState, turn: Turn, closed: Closed) -> Ended:
        """End a round whose results have all arrived; raises Behind if others have moved on."""
        ...

    async def caught_up(self, known: ServerState, behind: Behind) -> ServerState:
        """Continue in the others' round, if it is true that they moved on without this one."""
        ...

    def offended(self, server: int, k: int, error: SdfeelError) -> None:
        """Another server said what no honest one says."""
        ...

    async def serve(self, server: int, kind: str, header: Header, body: bytes | None) -> Answer:
        """Answer another server."""
        ...

    def committed(self) -> None:
        """A round has been committed, or the node begins: do what follows from it."""
        ...

    async def settle(self) -> None:
        """After the last round: give others what they still need from this one."""
        ...

    def settled(self) -> bool:
        """Has everyone received what this server's rounds owe them?"""
        ...

    def current(self) -> bytes:
        """This server's model as it is now."""
        ...

    def leapt(self) -> bool:
        """Is this server in a round that it came to without doing the one before?"""
        ...

    async def finished(self, steps: float) -> bool:
        """Is the run over, as far as this server may believe the others? It has taken `steps`."""
        ...

    def waiting(self) -> list[str]: ...

    def traffic(self) -> int: ...

    def last_error(self) -> str: ...
