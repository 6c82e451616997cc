"""Measuring one model: the metrics by name, on whose examples, and what becomes of many numbers.

A metric is a function of outputs and targets. To add one, add it to `METRICS`; to sum up the
clients' numbers in another way, add that to `SUMMARIES`: logs, tables, reports and pages follow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.errors import InputError, unknown
from sdfeel.data.federated import Examples

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> the mean loss
Metric = Callable[[Tensor, Tensor], float | Tensor]  # (outputs, targets) -> a number
Outputs = Callable[[Tensor, Ints], tuple[Tensor, Tensor]]  # (model, rows) -> outputs, targets


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose class is the one with the largest output."""
    return float((outputs.argmax(dim=-1) == targets).double().mean())


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy."""
    return nn.functional.cross_entropy(outputs, targets)


def top_5(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose class is among the five with the largest outputs."""
    best = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return float((best == targets[..., None]).any(dim=-1).double().mean())


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error."""
    return (_shaped(outputs, targets) - targets).abs().double().mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The root of the mean squared error."""
    return (_shaped(outputs, targets) - targets).double().square().mean().sqrt()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the targets' variance that the model explains."""
    squares = (_shaped(outputs, targets) - targets).double().square().sum()
    return 1 - squares / (targets - targets.mean(dim=0)).double().square().sum()


def perplexity(outputs: Tensor, targets: Tensor) -> Tensor:
    """e to the mean cross entropy of every token."""
    return tokens(outputs, targets).exp()


def tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of every position: outputs (N, ..., K), targets (N, ...)."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


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
DECILE = 0.1


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


def summed_up(metric: str, group: str, values: Iterable[float]) -> dict[str, float]:
    """What is reported about a metric that was measured for each member of a `group`.

    If it is known which end of a metric is the worse one, the other is not reported.

    >>> list(summed_up("accuracy", "client", [0.5, 0.75, 1.0]).values())[:2]
    [0.75, 0.5]
    """
    ascending = np.sort(np.array(list(values), dtype=np.float64))
    found = {what: of(ascending) for what, of in SUMMARIES.items()}
    if metric in BETTER:
        worse, other = WORST[BETTER[metric]]
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
    """Which metrics are measured on the training examples of each client, or of each cluster."""

    outputs: Outputs  # of an engine
    parts: Sequence[Ints]  # each client's rows of the training data
    home: Ints  # (C,) each client's cluster; -1: none
    per_client: Mapping[str, Metric] = field(default_factory=dict)
    per_cluster: Mapping[str, Metric] = field(default_factory=dict)
    every: int = 1  # rounds between two measurements

    def due(self, number: int) -> bool:
        """Is this a round after which they are measured?"""
        return bool(self.per_client or self.per_cluster) and number % self.every == 0

    def measured(self, models: Callable[[int], Tensor]) -> dict[str, float]:
        """What is reported about all clients and clusters, each with its own model of these."""
        if not self.per_client and not self.per_cluster:
            return {}
        told: dict[tuple[str, str], list[float]] = {
            (name, "client"): [] for name in self.per_client
        }
        told |= {(name, "cluster"): [] for name in self.per_cluster}
        clusters: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for client, part in enumerate(self.parts):
            found = self.outputs(models(client), part)
            for name, metric in self.per_client.items():
                told[name, "client"].append(float(metric(*found)))
            if self.per_cluster and self.home[client] >= 0:
                clusters.setdefault(int(self.home[client]), []).append(found)
        for members in clusters.values():
            whole = [torch.cat(each) for each in zip(*members, strict=True)]
            for name, metric in self.per_cluster.items():
                told[name, "cluster"].append(float(metric(*whole)))
        return {
            name: value
            for (metric, group), values in told.items()
            for name, value in summed_up(metric, group, values).items()
        }


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
    count: int


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
            x, y = data.x[n * BLOCK : (n + 1) * BLOCK], data.y[n * BLOCK : (n + 1) * BLOCK]
            out = module(x)
            classes = out.ndim == 2 and y.ndim == 1 and y.dtype == torch.int64
            right = int((out.argmax(dim=1) == y).sum()) if classes else None
            found.append(Tally(float(loss(out, y)) * len(y), right, len(y)))
            keep(out)
    module.train(was_training)
    return found


def total(parts: Iterable[Tally]) -> tuple[float, float | None]:
    """The mean loss and the accuracy over all blocks."""
    loss, right, count = 0.0, 0, 0
    classes = True
    for part in parts:
        loss += part.loss
        count += part.count
        classes = classes and part.right is not None
        right += part.right or 0
    return loss / count, right / count if classes else None


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
        own = {name: float(metric(whole, data.y)) for name, metric in metrics.items()}
    return Measured(mean, accuracy, own)
