"""The models that clients handed in: written together, read from the disk one at a time."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sdfeel.live.federation import Federation, Turn
from sdfeel.live.store import Store


@dataclass(frozen=True)
class Results(Mapping[int, Tensor]):
    """Models by client, each read from the disk when it is asked for: they may be many."""

    federation: Federation
    store: Store
    k: int
    clients: tuple[int, ...]

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
    """A result that was checked and waits for the next commit."""

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
