"""The seam between a scheme's executor and the code that trains; and regularisers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, unknown
from sdfeel.data.federated import Examples
from sdfeel.engine.evaluate import Loss, Metric
from sdfeel.engine.task import TaskOf
from sdfeel.models.zoo import taken


class Penalty(Protocol):
    """A term of the loss."""

    def __call__(self, parameter: Tensor, start: Tensor) -> Tensor:
        """What one tensor of the model adds; `start` is what it was when the round began."""
        ...


@dataclass(frozen=True)
class Proximal:
    """A pull towards where the round began (FedProx): `training.proximal`, known to schemes."""

    strength: float

    def __call__(self, parameter: Tensor, start: Tensor) -> Tensor:
        return self.strength / 2 * (parameter - start).square().sum()


@dataclass(frozen=True)
class L1:
    """The sum of all magnitudes, which makes models sparse."""

    strength: float

    def __call__(self, parameter: Tensor, start: Tensor) -> Tensor:
        return self.strength * parameter.abs().sum()


PENALTIES: dict[str, Callable[[float], Penalty]] = {"l1": L1}


def penalties(asked: Mapping[str, float | Penalty]) -> dict[str, Penalty]:
    """Penalties by name: from the table with these strengths, or the user's own."""
    return {name: _made(name, given) for name, given in asked.items() if given != 0}


def _made(name: str, given: float | Penalty) -> Penalty:
    if callable(given):
        return given
    if name not in PENALTIES:
        raise unknown("penalty", name, PENALTIES)
    if not given > 0:
        raise InputError(f"the penalty {name} must have a strength of at least 0, got {given:g}")
    return PENALTIES[name](given)


@dataclass(frozen=True)
class Training:
    """How a client takes its local iterations."""

    learning_rate: float
    batch_size: int
    optimizer: str = "sgd"
    options: dict[str, Any] = field(default_factory=dict)  # of the optimiser
    iteration: Literal["batch", "epoch"] = "batch"  # what one local iteration is
    loss: Loss = nn.functional.cross_entropy
    proximal: float = 0.0  # how strongly a client is pulled to where its round began
    penalties: Mapping[str, Penalty] = field(default_factory=dict)  # what else is added to the loss
    own: Callable[..., Any] | None = None  # the optimiser itself, where it is the user's


@dataclass(frozen=True, eq=False)
class Workload:
    """What is learned, from whose data, and how: everything an engine is built around."""

    module: nn.Module
    train: Examples
    parts: Sequence[Ints]  # each client's rows of `train`
    test: Examples
    training: Training
    seed: int
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # the user's own, on test data
    measured: Examples | None = None  # what the training loss is measured on; None: `train`

    @property
    def losses_on(self) -> Examples:
        """The examples that the training loss is measured on."""
        return self.train if self.measured is None else self.measured

    def suited(self) -> "Workload":
        """The same with inputs in the type that the module takes (`models.zoo.taken`)."""
        x = self.train.x
        if x.is_floating_point() or not taken(self.module, x[:1]).is_floating_point():
            return self
        train, test = (Examples(each.x.float(), each.y) for each in (self.train, self.test))
        own = self.measured
        measured = None if own is None else Examples(own.x.float(), own.y)
        return replace(self, train=train, test=test, measured=measured)


Task = TaskOf[Tensor]


@dataclass(frozen=True)
class Scores:
    """How good one model is."""

    loss: float  # on training data
    test_loss: float
    accuracy: float | None  # on test data
    metrics: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Trains and measures models given as rows. `engine/loop.py` defines what training means."""

    @property
    def name(self) -> str: ...

    def initial(self) -> Tensor:
        """(P,) the model that everyone starts from."""
        ...

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        """The trained models (P,), in the order of `tasks`; each is valid until the next.

        A model depends only on its task and the seed: not on the other tasks, their order or
        the number of workers.
        """
        ...

    def evaluate(self, model: Tensor) -> Scores: ...
