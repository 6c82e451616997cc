"""The models that clients handed in, read from the disk one at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from sdfeel.live.federation import Federation
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
