"""A wrapper that records how long an engine was busy."""

from collections.abc import Iterator, Sequence
from time import perf_counter

from torch import Tensor

from sdfeel.engine.base import Engine, Scores, Task
from sdfeel.engine.estimates import probing


class Timed:
    """Any engine, with a stopwatch for training and one for measuring.

    Where workers keep training while the caller uses a model, the caller's time is training time,
    too.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ahead: bool = getattr(engine, "works_ahead", False)
        self.training = 0.0  # seconds
        self.evaluating = 0.0

    @property
    def name(self) -> str:
        return self._engine.name

    def initial(self) -> Tensor:
        return self._engine.initial()

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        models = self._engine.train(tasks)
        begin = perf_counter()
        for left in range(len(tasks), -1, -1):
            model = next(models, None)
            if model is None or left == 1 or not self._ahead:  # after the last, nobody trains
                self.training += perf_counter() - begin
            if model is None:
                return
            yield model
            if left == 1 or not self._ahead:
                begin = perf_counter()

    def loss_and_gradient(self, client: int, model: Tensor, step: int) -> tuple[float, Tensor]:
        begin = perf_counter()
        found = probing(self._engine).loss_and_gradient(client, model, step)
        self.training += perf_counter() - begin
        return found

    def evaluate(self, model: Tensor) -> Scores:
        begin = perf_counter()
        scores = self._engine.evaluate(model)
        self.evaluating += perf_counter() - begin
        return scores
