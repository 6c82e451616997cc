"""The seam between a scheme's executor and the code that trains; regularisers, cores, threads."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, unknown
from sdfeel.core.learning_rates import Schedule
from sdfeel.core.named import imported
from sdfeel.data.federated import Examples
from sdfeel.engine.evaluate import Loss, Metric, Which
from sdfeel.engine.tasks import TaskOf
from sdfeel.models.flat import Layout
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


def penalties(asked: Mapping[str, float | str | Penalty]) -> dict[str, Penalty]:
    """Penalties by name: from the table with these strengths, or the user's own."""
    zero = (0, 0.0)
    return {name: _made(name, given) for name, given in asked.items() if given not in zero}


def _made(name: str, given: float | str | Penalty) -> Penalty:
    given = imported(given) if isinstance(given, str) else given
    if callable(given):
        return given
    if not isinstance(given, Real):
        raise InputError(
            f"the penalty {name} must be a strength, or a function of a tensor and its start, got "
            f"{given!r}"
        )
    if name not in PENALTIES:
        raise unknown("penalty", name, PENALTIES)
    given = float(given)
    if not given > 0:
        raise InputError(f"the penalty {name} must have a strength of at least 0, got {given:g}")
    return PENALTIES[name](given)


@dataclass(frozen=True)
class PrivateSteps:
    """DP-SGD: each example's gradient is clipped, and noise is added to their sum."""

    clip: float  # the greatest length of one example's gradient
    noise: float  # standard deviation of the noise on each number of the sum, over the clip
    secret: int  # what the noise is drawn from


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
    own: Callable[..., Any] | None = None  # the user's own optimiser
    private: PrivateSteps | None = None
    schedule: Schedule | None = None  # how the learning rate changes; makers of tasks use it
    clip_norm: float | None = None  # the largest norm of a mini-batch's gradient
    device: str = "cpu"  # other devices are for the engine `batched` alone


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
    measured: Examples | None = None  # what the training loss is measured on (None: `train`)
    tests: Sequence[Ints] | None = None  # each client's own rows of `test`, where they have any

    @property
    def losses_on(self) -> Examples:
        """The examples that the training loss is measured on."""
        return self.train if self.measured is None else self.measured

    def suited(self) -> "Workload":
        """The same with inputs in the type that the module takes (`models.zoo.taken`)."""
        x = self.train.first[None]
        if x.is_floating_point() or not taken(self.module, x).is_floating_point():
            return self
        measured = None if self.measured is None else self.measured.as_floats()
        train, test = self.train.as_floats(), self.test.as_floats()
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
    """Trains and measures models given as rows. `engine/loop.py` defines what training means.

    An engine may have more attributes, which callers look for: `workers`, `works_ahead`,
    `trains_beside`, and those of `tasks.Folding`.
    """

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


class ModuleEngine(Engine, Protocol):
    """An engine that was built around an nn.Module."""

    @property
    def bits(self) -> str:
        """A name: engines whose `bits` are the same train the same models, to the bit."""
        ...

    @property
    def parameters(self) -> int: ...

    @property
    def layout(self) -> Layout: ...

    def state_dict(self, model: Tensor) -> dict[str, Tensor]: ...

    def outputs(self, model: Tensor, rows: Ints, which: Which = "train") -> tuple[Tensor, Tensor]:
        """What the model says about these examples, and their targets."""
        ...

    def close(self) -> None: ...


class OverWorkers:
    """What engines with workers have in common: an engine in this process that has the module."""

    def __init__(self, engine: ModuleEngine) -> None:
        self._engine = engine

    @property
    def bits(self) -> str:
        return self._engine.bits

    @property
    def parameters(self) -> int:
        """Trainable numbers of the model."""
        return self._engine.parameters

    @property
    def layout(self) -> Layout:
        """The tensors that a row is made of."""
        return self._engine.layout

    def initial(self) -> Tensor:
        return self._engine.initial()

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """`model` as a state_dict for the plain module."""
        return self._engine.state_dict(model)

    def outputs(self, model: Tensor, rows: Ints, which: Which = "train") -> tuple[Tensor, Tensor]:
        """Like that engine's, in this process."""
        return self._engine.outputs(model, rows, which)


def cores() -> int:
    """Cores that this process may use."""
    available: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1


class one_thread:
    """One thread for torch: its sums depend on the number, and small ones are slower with more.

    A class, not a generator: every asynchronous event enters it.
    """

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != 1:  # otherwise the caller has set it, and will set it back
            torch.set_num_threads(1)

    def __exit__(self, *raised: object) -> None:
        if self._before != 1:
            torch.set_num_threads(self._before)
