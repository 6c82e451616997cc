"""What runs inside a Ray actor: one engine, one thread, the data of many clients."""

import torch
from torch import Tensor

from sdfeel.core.errors import SdfeelError, told
from sdfeel.engine.base import Task
from sdfeel.engine.evaluate import Tally
from sdfeel.engine.loop import LoopEngine
from sdfeel.engine.ray.recipe import LocalEngine, Packed, Parcel, pack, the_pickler, unpack, unwrap

# client, steps, first, rate, and which of the rows it starts from and is shifted by
Order = tuple[int, int, int, float, int, int | None]
Failure = tuple[str, str]  # an error's kind, and its text
Trained = tuple[Packed, Failure | None]  # the models before the failure
Measured = tuple[dict[str, list[Tally]], Failure | None]


class Actor:
    """Results depend on the call alone, so nothing is lost with an actor."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._built: LocalEngine | None = None
        self._room = torch.empty(0)

    def train(self, orders: list[Order], *packed: Packed) -> Trained:
        """Models in the order of `orders`; if one fails, those before it."""
        rows = list(map(unpack, packed))
        tasks = [
            Task(client, rows[start], steps, first, rate, None if shift is None else rows[shift])
            for client, steps, first, rate, start, shift in orders
        ]
        room = self._space(len(tasks), rows[0])
        done, failure = 0, None
        try:
            for done, model in enumerate(self._engine().train(tasks), 1):
                room[done - 1] = model
        except SdfeelError as error:
            failure = (type(error).__name__, str(error))
        except Exception as error:
            failure = ("Exception", f"an actor failed: {told(error)}")
        return pack(room[:done]), failure

    def _space(self, rows: int, like: Tensor) -> Tensor:
        """Memory for a block's models, used again: Ray copies an answer before the next call."""
        if len(self._room) < rows or self._room.shape[1:] != like.shape:
            self._room = like.new_empty(rows, len(like))
        return self._room[:rows]

    def measure(self, model: Packed) -> Measured:
        """The tallies of this actor's blocks of examples."""
        try:
            engine = self._engine()
            assert isinstance(engine, LoopEngine), "others measure where the run was started"
            row = unpack(model)
            return {
                which: engine.tallies(row, which, 0, engine.blocks(which))
                for which in ("measured", "test")
            }, None
        except SdfeelError as error:
            return {}, (type(error).__name__, str(error))
        except Exception as error:
            return {}, ("Exception", f"measuring failed: {told(error)}")

    def _engine(self) -> LocalEngine:
        # Not in __init__, whose errors Ray would report in its own words.
        if self._built is None:
            torch.set_num_threads(1)
            self._built = unwrap(self._parcel, the_pickler()).built()
        return self._built
