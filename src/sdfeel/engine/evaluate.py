"""Measuring one model: metrics by name, whose examples they use, and how values are summarised.

A metric is a function of outputs and targets. To add one, add it to `METRICS`; to sum up the
clients' numbers in another way, add that to `SUMMARIES`: logs, tables, reports and pages follow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, said, unknown
from sdfeel.data.federated import Examples

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean loss
Metric = Callable[[Tensor, Tensor], float | Tensor]  # (outputs, targets) -> a number
Which = Literal["train", "test"]  # examples
Outputs = Callable[[Tensor, Ints, Which], tuple[Tensor, Tensor]]  # of a model on these rows: what
# it says, and the targets


IGNORED = -100  # the class of places that do not count, such as padding: torch's convention


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples, or of places, whose class is the one with the largest output."""
    _classes("accuracy", targets)
    counted = targets != IGNORED
    return float((outputs.argmax(dim=-1) == targets)[counted].double().mean())


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy."""
    return nn.functional.cross_entropy(outputs, targets)


def top_5(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose class is among the five with the largest outputs."""
    _classes("top-5", targets)
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return float((best == targets[..., None]).any(dim=-1).double().mean())


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error."""
    return _errors("mae", outputs, targets).abs().mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return _errors("rmse", outputs, targets).square().mean().sqrt()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the targets' variance that the model explains."""
    squares = _errors("r2", outputs, targets).square().sum()
    usual = targets.to(outputs.dtype)
    return 1 - squares / (usual - usual.mean(dim=0)).double().square().sum()


def perplexity(outputs: Tensor, targets: Tensor) -> Tensor:
    """e to the mean cross entropy of every token."""
    _classes("perplexity", targets)
    return tokens(outputs, targets).exp()


def tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of every position: outputs (N, ..., K), targets (N, ...)."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _classes(name: str, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise InputError(
            f"metric '{name}' needs class numbers, but the targets are of type {targets.dtype}: "
            f"choose mae, rmse or r2"
        )


def _errors(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """What the outputs miss the targets by, number by number."""
    if outputs.numel() != targets.numel():
        raise InputError(
            f"metric '{name}' compares a model's outputs with the targets number by number, but "
            f"their shapes are {tuple(outputs.shape)} and {tuple(targets.shape)}: choose accuracy, "
            f"loss or top-5 where the outputs are scores of classes"
        )
    return (_shaped(outputs, targets) - targets).double()


def _shaped(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs (N, 1) for targets (N,) must not become (N, N) when subtracted."""
    return outputs.view_as(targets) if outputs.numel() == targets.numel() else outputs


def _elementwise(loss: Loss) -> Loss:
    def found(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(_shaped(outputs, targets), targets.to(outputs.dtype))

    return found


LOSSES: dict[str, Loss] = {
    "cross-entropy": nn.functional.cross_entropy,
    "token-cross-entropy": tokens,
    "mse": _elementwise(nn.functional.mse_loss),
    "l1": _elementwise(nn.functional.l1_loss),
    "huber": _elementwise(nn.functional.huber_loss),
    "bce": _elementwise(nn.functional.binary_cross_entropy_with_logits),
}
METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "loss": loss_of,
    "top-5": top_5,
    "mae": mae,
    "rmse": rmse,
    "r2": r2,
    "perplexity": perplexity,
}
BETTER: dict[str, Literal["more", "less"]] = {
    "accuracy": "more",
    "loss": "less",
    "top-5": "more",
    "mae": "less",
    "rmse": "less",
    "r2": "more",
    "perplexity": "less",
    "personal accuracy": "more",
    "personal loss": "less",
}
# The loss that is minimised, and the metrics reported with it, unless the user names others.
TASK_LOSSES = {
    "classification": "cross-entropy",
    "regression": "mse",
    "labelling": "token-cross-entropy",
    "language": "token-cross-entropy",
}
TASK_METRICS = {"regression": ("rmse", "r2"), "language": ("perplexity",)}
DECILE = 0.1


def measured(name: str, metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """What a metric says: one number; InputError names the metric that gives something else."""
    return _one_number(f"metric '{name}'", metric(outputs, targets))


def check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss whose result torch cannot trace back to the model's outputs.

    A loss that raises an error here is not refused: it may work on the examples of the run.
    """
    asked = outputs.detach().requires_grad_()
    try:
        found: Any = loss(asked, targets)
    except Exception:  # somebody else's code may raise anything
        return
    if not isinstance(found, Tensor):
        what, so = said(found), "return the tensor itself, without .item(), float() or NumPy"
    elif found.numel() != 1:
        what, so = f"a tensor of shape {tuple(found.shape)}", "return its mean"
    elif not found.requires_grad:
        what = "a tensor that is cut off from the model's outputs"
        so = "compute it from them without .detach(), .item(), torch.no_grad() or NumPy"
    else:
        return
    raise InputError(
        f"training.loss must give one number that torch can differentiate, got {what}: {so}"
    )


def _one_number(name: str, found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError):
        shape = "x".join(map(str, getattr(found, "shape", ())))
        given = f"{type(found).__name__} of {shape}" if shape else f"{found!r:.60}"
        raise InputError(f"{name} must give one number, got {given}") from None


def _tenth(values: Floats) -> float:
    """The mean of the first tenth, at least of one."""
    return float(values[: ceil(DECILE * len(values))].mean())


# of the numbers of all clients or clusters, in ascending order
SUMMARIES: dict[str, Callable[[Floats], float]] = {
    "": lambda values: float(values.mean()),
    ": lowest 10 %": _tenth,
    ": highest 10 %": lambda values: _tenth(values[::-1]),
    ": spread": lambda values: float(values.std()),
}
WORST = {"more": (": lowest 10 %", ": highest 10 %"), "less": (": highest 10 %", ": lowest 10 %")}


def summed_up(
    metric: str, group: str, values: Iterable[float], like: str | None = None
) -> dict[str, float]:
    """What is reported about a metric, or one `like` it, measured for each member of a `group`.

    Where one end of a metric is known to be the worse one, the other end is not reported.

    >>> list(summed_up("accuracy", "client", [0.5, 0.75, 1.0]).values())[:2]
    [0.75, 0.5]
    """
    ascending = np.sort(np.array(list(values), dtype=np.float64))
    if not len(ascending):
        return {}
    found = {what: of(ascending) for what, of in SUMMARIES.items()}
    if (known := like or metric) in BETTER:
        worse, other = WORST[BETTER[known]]
        found = {": worst 10 %" if w == worse else w: v for w, v in found.items() if w != other}
    return {f"{metric} per {group}{what}": value for what, value in found.items()}


def chosen(
    names: Sequence[str], known: Mapping[str, Metric] = METRICS, classes: bool = True
) -> dict[str, Metric]:
    """These metrics by their names, or InputError."""
    for name in names:
        if name not in known:
            raise unknown("metric", name, known)
        if known[name] is accuracy and not classes:
            raise InputError("the targets are not class numbers, which accuracy needs: choose loss")
    return {name: known[name] for name in names}


@dataclass(frozen=True, eq=False)
class Groups:
    """Which metrics are measured on the examples of each client, or of each cluster."""

    outputs: Outputs  # of an engine
    parts: Sequence[Ints]  # each client's rows; clients without any are left out
    home: Ints  # (C,) each client's cluster; -1: none
    per_client: Mapping[str, Metric] = field(default_factory=dict)
    per_cluster: Mapping[str, Metric] = field(default_factory=dict)
    every: int = 1  # rounds between two measurements
    which: Which = "train"  # examples the rows are of
    clusters: Sequence[Ints] | None = None  # each cluster's rows; None: those of its clients
    tuned: Callable[[Callable[[int], Tensor], int], dict[str, float]] | None = None  # more
    # numbers about the clients' models, given how many local iterations were done

    def due(self, number: int) -> bool:
        """Is this a round after which they are measured?"""
        return number % self.every == 0

    def measured(self, models: Callable[[int], Tensor], iterations: int) -> dict[str, float]:
        """What is reported about all clients and clusters, each with its own of `models`."""
        found = self._measured(models)
        return found if self.tuned is None else {**found, **self.tuned(models, iterations)}

    def _measured(self, models: Callable[[int], Tensor]) -> dict[str, float]:
        told: dict[tuple[str, str], list[float]] = {
            (name, "client"): [] for name in self.per_client
        }
        told |= {(name, "cluster"): [] for name in self.per_cluster}
        clusters: dict[int, list[tuple[Tensor, Tensor]]] = {}
        together = self.per_cluster and self.clusters is None
        for client, part in enumerate(self.parts if self.per_client or together else ()):
            if not len(part):
                continue
            found = self.outputs(models(client), part, self.which)
            for name, metric in self.per_client.items():
                told[name, "client"].append(measured(name, metric, *found))
            if together and self.home[client] >= 0:
                clusters.setdefault(int(self.home[client]), []).append(found)
        if self.per_cluster and self.clusters is not None:
            clusters = self._of_servers(models, self.clusters)
        for members in clusters.values():
            whole = [torch.cat(each) for each in zip(*members, strict=True)]
            for name, metric in self.per_cluster.items():
                told[name, "cluster"].append(measured(name, metric, *whole))
        return {
            name: value
            for (metric, group), values in told.items()
            for name, value in summed_up(metric, group, values).items()
        }

    def _of_servers(
        self, models: Callable[[int], Tensor], rows: Sequence[Ints]
    ) -> dict[int, list[tuple[Tensor, Tensor]]]:
        """Outputs on each server's examples, by its clients' models, which may differ."""
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for client, server in enumerate(self.home.tolist()):
            if server < 0 or (server in found and models(client) is models(0)):  # all have one
                continue
            said = self.outputs(models(client), rows[server], self.which)
            found.setdefault(server, []).append(said)
        return found


def confusion(outputs: Tensor, targets: Tensor, classes: int) -> tuple[tuple[int, ...], ...]:
    """(K, K) how many examples of each class (rows) the model takes for which (columns).

    >>> confusion(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1]), 2)
    ((1, 0), (1, 1))
    """
    said = outputs[:, :classes].argmax(dim=1)
    counts = torch.bincount(targets * classes + said, minlength=classes * classes)
    return tuple(tuple(row) for row in counts.view(classes, classes).tolist())


BLOCK = 250  # examples at a time: small enough that activations stay in the cache


@dataclass(frozen=True)
class Measured:
    """A model on some examples."""

    loss: float
    accuracy: float | None
    metrics: dict[str, float]


@dataclass(frozen=True)
class Tally:
    """One block's part of a measurement. Tallies are summed in order, whoever made them."""

    loss: float  # summed over the block
    right: int | None  # classified correctly; None where targets are not class numbers
    count: int  # by which the loss is divided
    judged: int = 0  # by which the number of right ones is divided


def blocks(data: Examples) -> int:
    """How many blocks the examples make."""
    return -(-len(data) // BLOCK)


def tallies(
    module: nn.Module,
    data: Examples,
    loss: Loss,
    which: Iterable[int],
    keep: Callable[[Tensor], None] = lambda out: None,
) -> list[Tally]:
    """Measure the blocks called `which`; `keep` gets each block's outputs."""
    was_training = module.training
    module.eval()
    found = []
    with torch.inference_mode():
        for n in which:
            x, y = data.block(n * BLOCK, (n + 1) * BLOCK)
            out = module(x)
            found.append(_tally(out, y, loss))
            keep(out)
    module.train(was_training)
    return found


def _tally(out: Tensor, y: Tensor, loss: Loss) -> Tally:
    mean = _one_number("the loss (training.loss)", loss(out, y))
    if out.shape[:-1] != y.shape or y.dtype != torch.int64:
        return Tally(mean * len(y), None, len(y))
    counted = y != IGNORED
    right, judged = int(((out.argmax(dim=-1) == y) & counted).sum()), int(counted.sum())
    count = judged if loss is tokens else len(y)  # a mean over places, not over examples
    return Tally(mean * count if count else 0.0, right, count, judged)


def total(parts: Iterable[Tally]) -> tuple[float, float | None]:
    """The mean loss and the accuracy over all blocks."""
    loss, right, count, judged = 0.0, 0, 0, 0
    classes = True
    for part in parts:
        loss += part.loss
        count += part.count
        judged += part.judged
        classes = classes and part.right is not None
        right += part.right or 0
    return loss / count, right / judged if classes else None


def evaluate(
    module: nn.Module, data: Examples, loss: Loss, metrics: Mapping[str, Metric] | None = None
) -> Measured:
    """Loss, accuracy (where targets are class numbers) and the user's metrics on `data`."""
    outputs: list[Tensor] = []
    keep = outputs.append if metrics else lambda out: None
    mean, accuracy = total(tallies(module, data, loss, range(blocks(data)), keep))
    own = {}
    if metrics:
        whole = torch.cat(outputs)
        own = {name: measured(name, metric, whole, data.y) for name, metric in metrics.items()}
    return Measured(mean, accuracy, own)
