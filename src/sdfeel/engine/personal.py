"""Personal models: which parts of a model travel, and what becomes of those that stay.

A row is what is exchanged. What a client keeps to itself comes after it and never leaves the
client, so that servers, schemes, codecs and prices see a smaller model and need to know nothing
else. An engine of this kind trains whole rows (T + S,): what travels, then what stays.

FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
FedBN: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
2021.
FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning",
2021.
Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", 2021.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Ints, ints
from sdfeel.core.errors import InputError
from sdfeel.core.seeds import rng
from sdfeel.data.federated import Examples
from sdfeel.engine.base import ModuleEngine, Scores, Task, Training, Workload, one_thread
from sdfeel.engine.evaluate import Metric, Which, blocks, evaluate, measured, summed_up, tallies
from sdfeel.engine.optimizers import carried
from sdfeel.engine.parts import Personal, Split
from sdfeel.engine.select import Kind, choose
from sdfeel.models.flat import FlatModule, TensorInRow, tensors_of

TOGETHER = 64  # clients whose whole rows are in memory at once
MEASURED = 200  # clients whose own models are measured, at most
FEWEST = 50  # test examples of each of them, where there are that many


class Way(Protocol):
    """How a client trains what travels and what stays."""

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        """The trained whole row (T + S,) of each task."""
        ...


@dataclass(frozen=True, eq=False)
class Jointly:
    """All parts are trained together (FedPer, FedBN, adapters)."""

    engine: ModuleEngine
    split: Split
    initial: Tensor  # (P,)

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        for row in self.engine.train([_whole_task(self.split, self.initial, t) for t in tasks]):
            yield torch.cat([self.split.shared(row), self.split.own(row)])


@dataclass(frozen=True, eq=False)
class Alternately:
    """What stays is trained first, on the shared part as it is, and then what travels (FedRep)."""

    head: "Rearranged"  # trains what stays alone
    body: "Rearranged"  # trains what travels alone
    split: Split
    initial: Tensor  # (P,)
    share: float

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        firsts = [min(ceil(self.share * t.steps), max(t.steps - 1, 0)) for t in tasks]
        whole = [_whole_task(self.split, self.initial, task) for task in tasks]
        heads = [replace(t, steps=n, shift=None) for t, n in zip(whole, firsts, strict=True) if n]
        trained = {t.client: row for t, row in zip(heads, self.head.train(heads), strict=True)}
        bodies = [
            replace(t, start=trained.get(t.client, t.start), steps=t.steps - n, first=t.first + n)
            for t, n in zip(whole, firsts, strict=True)
        ]
        for row in self.body.train(bodies):
            yield torch.cat([self.split.shared(row), self.split.own(row)])


@dataclass(frozen=True, eq=False)
class Beside:
    """A whole model of the client's own as well, pulled towards the shared one (Ditto)."""

    engine: ModuleEngine
    own: ModuleEngine
    pull: float
    decays: bool  # does weight decay do half of the pulling?

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        plain = [replace(task, own=None) for task in tasks]
        shared = [row.clone() for row in self.engine.train(plain)]
        for row, own in zip(shared, self.own.train([self._own(t) for t in tasks]), strict=True):
            yield torch.cat([row, own])

    def _own(self, task: Task) -> Task:
        """The pull, pull * (v - w), is a penalty around a point that we know, and a constant."""
        assert task.own is not None
        around = torch.zeros_like(task.own) if self.decays else task.own
        shift = self.pull * (around - task.start) if self.pull else None
        return replace(task, start=task.own, own=None, shift=shift, pull=0.0)


def _whole_task(split: Split, initial: Tensor, task: Task) -> Task:
    start = split.put(initial.clone(), task.start, task.own)
    shift = task.shift
    if shift is not None:
        shift = split.put(torch.zeros_like(initial), shift, None)
    return replace(task, start=start, shift=shift, own=None)


@dataclass(frozen=True, eq=False)
class Rearranged:
    """An engine whose rows have the same tensors in another order."""

    engine: ModuleEngine
    outside: tuple[TensorInRow, ...]
    inside: tuple[TensorInRow, ...]

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        inner = [
            replace(
                task,
                start=_reordered(task.start, self.outside, self.inside),
                shift=None
                if task.shift is None
                else _reordered(task.shift, self.outside, self.inside),
            )
            for task in tasks
        ]
        for row in self.engine.train(inner):
            yield _reordered(row, self.inside, self.outside)


def _reordered(row: Tensor, of: Sequence[TensorInRow], to: Sequence[TensorInRow]) -> Tensor:
    parts = dict(
        zip(
            (each.name for each in of),
            torch.split_with_sizes(row, [each.size for each in of]),
            strict=True,
        )
    )
    return torch.cat([parts[each.name] for each in to])


class PersonalEngine:
    """Trains what travels together with what stays; measures a client's model or the shared one."""

    def __init__(
        self,
        personal: Personal,
        workload: Workload,
        kind: Kind = "auto",
        workers: int | None = None,
    ) -> None:
        if carried(workload.module, workload.training):
            raise InputError(
                f"personal.method = {personal.method} needs an optimiser that sends nothing along "
                f"with the model, but training.optimizer is {workload.training.optimizer}: set it "
                f"to sgd"
            )
        workload = workload.suited()
        self.personal, self.split = personal, personal.split(workload.module)
        # A copy: its tensors are rebound.
        self._flat = FlatModule(copy.deepcopy(workload.module))
        self._initial = self._flat.row.clone()
        self._shared = self.split.shared(self._initial)
        self._workload = workload
        self.engine, self._way, self.why = self._built(kind, workers)
        self.layout, self.parameters = self.split.layout, sum(self.split.layout.trainable)
        whole = self._initial
        self.stays = whole.clone() if self._beside else self.split.own(whole)  # (S,) at first

    @property
    def _beside(self) -> bool:
        return self.personal.method == "ditto"

    def _built(self, kind: Kind, workers: int | None) -> tuple[ModuleEngine, Way, str]:
        personal, workload, split = self.personal, self._workload, self.split
        if personal.method == "ditto":
            return self._built_beside(kind, workers)
        if personal.method == "fedrep":
            going = {t.name for t, goes in zip(split.tensors, split.travels, strict=True) if goes}
            head, why = self._frozen(kind, workers, lambda name: name in going)
            body, _ = self._frozen(kind, workers, lambda name: name not in going)
            way = Alternately(head, body, split, self._initial, personal.share)
            return body.engine, way, why
        engine, why = choose(kind, workload, workers)
        return engine, Jointly(engine, split, self._initial), why

    def _built_beside(self, kind: Kind, workers: int | None) -> tuple[ModuleEngine, Way, str]:
        workload, pull = self._workload, self.personal.pull
        decays = workload.training.optimizer.lower() == "sgd"
        other = replace(workload, training=pulled(workload.training, pull))
        own, why = choose(kind, other, workers)
        engine, other_why = choose(kind, workload, workers)
        if engine.bits != own.bits:  # then torch must do both
            engine.close()
            own.close()
            own, why = choose("parallel", other, workers)
            engine, other_why = choose("parallel", workload, workers)
        return engine, Beside(engine, own, pull, decays), why or other_why

    def _frozen(
        self, kind: Kind, workers: int | None, freezes: Callable[[str], bool]
    ) -> tuple[Rearranged, str]:
        module = copy.deepcopy(self._workload.module)
        for name, parameter in module.named_parameters():
            if freezes(name):
                parameter.requires_grad_(False)
        engine, why = choose(kind, replace(self._workload, module=module), workers)
        return Rearranged(engine, self.split.tensors, tensors_of(module)), why

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def bits(self) -> str:
        return self.engine.bits

    @property
    def works_ahead(self) -> bool:
        """Does it keep training while the caller uses a model?"""
        return bool(getattr(self.engine, "works_ahead", False))

    @property
    def workers(self) -> int:
        """Models that are trained at the same time."""
        return int(getattr(self.engine, "workers", 1))

    def initial(self) -> Tensor:
        """(T,) what everyone shares at first."""
        return self._shared.clone()

    def train(self, tasks: Sequence[Task]) -> Iterator[Tensor]:
        """(T + S,) for each task."""
        given = [replace(t, own=self.stays) if t.own is None else t for t in tasks]
        for begin in range(0, len(given), TOGETHER):
            yield from self._way.train(given[begin : begin + TOGETHER])

    def whole(self, model: Tensor) -> Tensor:
        """(P,) the module's numbers: of a client's model (T + S,), or of the shared part (T,)."""
        size = len(self._shared)
        if self._beside:
            return model[size:] if len(model) > size else model
        own = model[size:] if len(model) > size else None
        return self.split.put(self._initial.clone(), model[:size], own)

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """`model`, shared or a client's own, as a state_dict for the plain module."""
        return self._flat.state_dict(self.whole(model))

    def kept_dict(self, own: Tensor) -> dict[str, Tensor]:
        """What stays with a client, by the names of its tensors."""
        if self._beside:
            return self._flat.state_dict(own)
        kept = self.split.kept()
        parts = torch.split_with_sizes(own, [each.size for each in kept])
        shapes = {name: value.shape for name, value in self._flat.module.state_dict().items()}
        return {
            each.name: part.view(shapes[each.name]).clone()
            for each, part in zip(kept, parts, strict=True)
        }

    def outputs(self, model: Tensor, rows: Ints, which: Which = "train") -> tuple[Tensor, Tensor]:
        """What the model says about these examples, and their targets."""
        own = self._workload
        data = (own.train if which == "train" else own.test).some(rows)
        self._flat.load(self.whole(model))
        return _outputs(self._flat.module, data), data.y

    def evaluate(self, model: Tensor) -> Scores:
        """The shared model, with what stays as it was at first."""
        self._flat.load(self.whole(model))
        own, loss = self._workload, self._workload.training.loss
        with one_thread():
            train = evaluate(self._flat.module, own.losses_on, loss)
            test = evaluate(self._flat.module, own.test, loss, own.metrics)
        return Scores(train.loss, test.loss, test.accuracy, test.metrics)

    def measured(self, models: Callable[[int], Tensor]) -> tuple[Scores, tuple[float, ...]]:
        """Each client's own model on its own kind of examples: the means over clients, and all.

        With more than MEASURED clients, some are drawn once, and only the means are reported.
        """
        loss, found = self._workload.training.loss, []
        for client, (train, test) in self._examples.items():
            self._flat.load(self.whole(models(client)))
            with one_thread():
                seen = evaluate(self._flat.module, train, loss)
                found.append((seen.loss, evaluate(self._flat.module, test, loss)))
        classes = found[0][1].accuracy is not None
        each = [float(own.accuracy if own.accuracy is not None else own.loss) for _, own in found]
        what = "personal accuracy" if classes else "personal loss"
        scores = Scores(
            float(np.mean([seen for seen, _ in found])),
            float(np.mean([own.loss for _, own in found])),
            float(np.mean(each)) if classes else None,
            summed_up(what, "client", each),
        )
        return scores, tuple(each) if len(found) == len(self._workload.parts) else ()

    @cached_property
    def _examples(self) -> dict[int, tuple[Examples, Examples]]:
        """The training and test examples that each measured client is measured on."""
        own = self._workload
        return {
            client: (own.train.some(train), own.test.some(test))
            for client, (train, test) in own_rows(own).items()
        }

    def close(self) -> None:
        for name in ("engine", "own", "head", "body"):
            inner = getattr(self._way, name, None)
            inner = inner.engine if isinstance(inner, Rearranged) else inner
            if inner is not None:
                inner.close()


def own_rows(own: Workload) -> dict[int, tuple[Ints, Ints]]:
    """Which rows of the training and of the test examples each measured client is measured on.

    The latter are the client's own, or as many of each class as it trains on. With more than
    MEASURED clients, some are drawn once.
    """
    count = len(own.parts)
    who = np.arange(count)
    if count > MEASURED:
        draws = rng(own.seed, "measured clients")
        who = np.sort(draws.choice(count, MEASURED, replace=False))
    size = min(len(own.test), max(FEWEST, ceil(len(own.test) / count)))
    found = {}
    for client in who.tolist():
        part, draws = own.parts[client], rng(own.seed, "own examples", client)
        few = part if len(part) <= size else ints(np.sort(draws.choice(part, size, replace=False)))
        like = ints([]) if own.tests is None else own.tests[client]
        if not len(like):
            like = like_own(own.train.y[part.tolist()], own.test.y, size, draws)
        found[client] = few, like
    return found


@dataclass(frozen=True, eq=False)
class Tuned:
    """The clients' models before and after some local steps of each, on its own kind of examples.

    The steps are taken with the full learning rate from where a client is in its data, and are then
    forgotten: they change no run.
    """

    engine: ModuleEngine
    rows: Mapping[int, Ints]  # of the test examples
    metrics: Mapping[str, Metric]
    steps: int

    def __call__(self, models: Callable[[int], Tensor], iterations: int) -> dict[str, float]:
        """What is reported about all clients."""
        clients = list(self.rows)
        tasks = [Task(client, models(client), self.steps, iterations) for client in clients]
        told: dict[tuple[int, str], list[float]] = {
            (steps, name): [] for steps in (0, self.steps) for name in self.metrics
        }
        for begin in range(0, len(tasks), TOGETHER):
            some = tasks[begin : begin + TOGETHER]
            trained = [row.clone() for row in self.engine.train(some)]
            for task, row in zip(some, trained, strict=True):
                for steps, model in ((0, task.start), (self.steps, row)):
                    found = self.engine.outputs(model, self.rows[task.client], "test")
                    for name, metric in self.metrics.items():
                        told[steps, name].append(measured(name, metric, *found))
        return {
            key: value
            for (steps, name), values in told.items()
            for key, value in summed_up(
                f"{name} after {steps} steps", "client", values, like=name
            ).items()
        }


def pulled(training: Training, pull: float) -> Training:
    """Training with half of a pull: towards zero, where SGD's weight decay does that, or towards
    the start; the rest is a constant that is added to every gradient."""
    if not pull:
        return replace(training, proximal=0.0)
    if training.optimizer.lower() != "sgd":
        return replace(training, proximal=pull)
    decay = training.options.get("weight_decay", 0.0) + pull
    return replace(training, proximal=0.0, options={**training.options, "weight_decay": decay})


def like_own(own: Tensor, test: Tensor, size: int, draws: np.random.Generator) -> Ints:
    """(size,) or fewer test examples whose classes are as frequent as a client's own.

    Where targets are not class numbers, any test examples.
    """
    if own.ndim != 1 or own.is_floating_point():
        return ints(np.sort(draws.choice(len(test), size, replace=False)))
    mine, places = own.numpy(), test.numpy()
    kinds, counts = np.unique(mine, return_counts=True)
    ends = np.rint(np.cumsum(counts) / counts.sum() * size).astype(int)
    picked = []
    for kind, wanted in zip(kinds.tolist(), np.diff(ends, prepend=0).tolist(), strict=True):
        there = np.flatnonzero(places == kind)
        picked.append(draws.permutation(there)[:wanted])
    found = np.sort(np.concatenate(picked))
    return ints(found) if len(found) else ints(np.arange(len(test)))


def _outputs(module: nn.Module, data: Examples) -> Tensor:
    found: list[Tensor] = []
    with one_thread():
        tallies(module, data, nn.functional.cross_entropy, range(blocks(data)), found.append)
    return torch.cat(found)
