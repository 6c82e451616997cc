"""The clients' results of a round: written together, read from the disk one at a time."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sdfeel.live.federation import Federation, Turn
from sdfeel.live.store import Store


@dataclass
class Counts:
    """What a server counts about its clients, for people and for metrics."""

    results: int = 0
    repeated: int = 0
    rejected: int = 0
    dropped: int = 0
    withheld: int = 0  # averages that failed a check and were not kept
    last_error: str = ""
    received: int = 0  # bytes of models
    sent: int = 0


@dataclass(frozen=True)
class Visit:
    """When a client of another server asked for work, and what it said."""

    when: float
    taken: int  # the local iterations that it claims


@dataclass(frozen=True)
class Results(Mapping[int, Tensor]):
    """Models by client, each read from the disk when it is used: there may be many."""

    federation: Federation
    store: Store
    k: int
    clients: tuple[int, ...]
    total: Callable[[], Tensor] | None = None  # the masked sum, if servers see nothing else

    def __getitem__(self, client: int) -> Tensor:
        saved = self.store.get("result", self.k, client)
        if saved is None:
            raise KeyError(client)
        return self.federation.own_model(saved.body)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


@dataclass
class ResultDraft:
    """A result that passed its checks and waits for the next commit."""

    turn: Turn
    client: int
    sent: bytes
    body: bytes  # what is kept of it
    note: dict[str, Any]
    proof: bytes  # the client's signed statement
    done: "asyncio.Future[None]" = field(init=False)

    def __post_init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
