"""From an experiment to its data, its loss and its metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from torch import nn

from sdfeel.core.arrays import Ints, ints
from sdfeel.core.errors import InputError
from sdfeel.core.events import Evaluated
from sdfeel.core.named import Kind, is_path, recorded_name
from sdfeel.core.seeds import rng
from sdfeel.data import catalog as sources
from sdfeel.data.adapters import HowToRead
from sdfeel.data.federated import Dataset, Examples, Federated, LazyExamples, by_users, divided
from sdfeel.data.partition import USERS
from sdfeel.engine.evaluate import (
    LOSSES,
    METRICS,
    TASK_LOSSES,
    TASK_METRICS,
    Groups,
    Loss,
    Metric,
    Which,
)
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.sections import EvaluationSection

LOSS = Kind("loss", LOSSES, "sdfeel.losses")
METRIC = Kind("metric", METRICS, "sdfeel.metrics")
MODEL_FOR = {"mnist": "mnist-cnn", "fashion-mnist": "mnist-cnn", "cifar10": "cifar-cnn"}
SPLITTING = tuple(
    f"data.{key}"
    for key in ("partition", "classes_per_client", "concentration", "balance", "min_size")
)


def build_data(experiment: Experiment) -> Federated:
    """The data, split over the clients."""
    return split_data(experiment, load_data(experiment))


def load_data(experiment: Experiment) -> Dataset | Federated:
    """The data as they are found: whole, or already split."""
    section = experiment.data
    where = Path(section.directory) if section.directory is not None else None
    return sources.load(section.name, where, how_to_read(experiment))


def split_data(experiment: Experiment, loaded: Dataset | Federated) -> Federated:
    """The same data, split over the clients as the experiment asks."""
    section = experiment.data
    partition = (
        sources.PARTITION.find(section.partition)
        if is_path(section.partition)
        else section.partition
    )
    if loaded.classes == 0 and recorded_name(experiment.training.loss) == "cross-entropy":
        raise InputError(
            f"the targets of {recorded_name(section.name)} are not class numbers, which "
            f"cross-entropy needs: set training.loss to auto, or to mse for numbers"
        )
    if isinstance(loaded, Federated):
        return loaded
    if partition == USERS:
        return by_users(loaded)
    if loaded.classes == 0 and recorded_name(partition) in ("classes", "shards", "dirichlet"):
        raise InputError(
            f"data.partition is {partition}, which needs class numbers, but the targets of "
            f"{recorded_name(section.name)} are something else: set data.partition to iid or users"
        )
    return divided(
        loaded,
        experiment.network.clients,
        partition,
        experiment.seed,
        classes_per_client=section.classes_per_client,
        concentration=section.concentration,
        balance=section.balance,
        min_size=section.min_size,
    )


def split_notes(asked: Experiment, loaded: Dataset | Federated, clients: int) -> Iterator[str]:
    """A sentence about each key without effect, because the data are already split."""
    vain = [key for key in SPLITTING if key in asked.given] if isinstance(loaded, Federated) else []
    if vain:
        have = "has" if len(vain) == 1 else "have"
        yield f"{', '.join(vain)} {have} no effect with data that are already split"
    if "network.clients" in asked.given and asked.network.clients != clients:
        yield (
            f"network.clients = {asked.network.clients} has no effect: the data belong to "
            f"{clients} clients"
        )


def how_to_read(experiment: Experiment) -> HowToRead:
    """How the data are read."""
    section = experiment.data
    return HowToRead(
        tuple(section.inputs),
        section.target,
        section.user,
        section.task,
        section.lazy,
        section.pixels,
    )


def with_data(experiment: Experiment, data: Federated) -> Experiment:
    """The same experiment with as many clients as its data are split over, and with the loss, the
    metrics and the model that suit its task, where none were chosen."""
    task = data.task if experiment.data.task == "auto" else experiment.data.task
    training, evaluation, model = experiment.training, experiment.evaluation, experiment.model
    if recorded_name(model.name) == "auto":
        name = MODEL_FOR.get(recorded_name(experiment.data.name), "mlp")
        model = model.model_copy(update={"name": name})
    if recorded_name(experiment.training.loss) == "auto":
        training = training.model_copy(update={"loss": TASK_LOSSES[task]})
    if not evaluation.metrics and task in TASK_METRICS:
        own = {name: name for name in TASK_METRICS[task]}
        evaluation = evaluation.model_copy(update={"metrics": own})
    network = experiment.network.model_copy(update={"clients": len(data.parts)})
    return experiment.model_copy(
        update={
            "network": network,
            "training": training,
            "evaluation": evaluation,
            "model": model,
        }
    )


def build_loss(experiment: Experiment) -> Loss:
    """The loss that a client minimises."""
    given = experiment.training.loss
    found = LOSS.find(
        "cross-entropy" if recorded_name(experiment.training.loss) == "auto" else given
    )
    if isinstance(found, type) and issubclass(found, nn.Module):
        found = found()  # as torch writes its losses: torch.nn:CrossEntropyLoss
    if not callable(found):
        raise InputError(
            f"training.loss must be a function of outputs and targets, got {type(found).__name__}"
        )
    loss: Loss = found
    return loss


TAKEN_NAMES = frozenset(each.name for each in fields(Evaluated))


def known_metrics(experiment: Experiment) -> dict[str, Metric]:
    """The metrics by name, with the experiment's own and its loss."""
    own = {name: METRIC.find(given) for name, given in experiment.evaluation.metrics.items()}
    for name, metric in own.items():
        if name in TAKEN_NAMES and metric is not METRICS.get(name):
            raise InputError(
                f"evaluation.metrics names a metric '{name}', but every run already measures "
                "something of that name: give your metric another name"
            )
        if not name.strip():
            raise InputError("evaluation.metrics has a metric without a name: give it one")
    return {**METRICS, "loss": build_loss(experiment), **own}


def sample(data: Examples, count: int, seed: int) -> Examples:
    """`count` examples drawn once; all of them for 0, or if there are fewer."""
    picked = _drawn(data, count, seed)
    if picked is None:
        return data
    few = data.some(picked)
    return few.read() if isinstance(few, LazyExamples) else few


def _drawn(data: Examples, count: int, seed: int) -> Ints | None:
    if count == 0 or count >= len(data):
        return None
    return ints(np.sort(rng(seed, "measured").choice(len(data), size=count, replace=False)))


def with_tests(data: Federated, count: int, seed: int) -> Federated:
    """`data` in which clients and servers keep only those test rows that `sample` draws."""
    picked = _drawn(data.test, count, seed)
    if picked is None:
        return data

    def kept(groups: Sequence[Ints] | None) -> tuple[Ints, ...] | None:
        if groups is None:
            return None
        return tuple(np.flatnonzero(np.isin(picked, rows)) for rows in groups)

    return replace(data, tests=kept(data.tests), cluster_tests=kept(data.cluster_tests))


def groups_of(data: Federated, groups: Groups, every: int, on: str = "auto") -> Groups:
    """`groups` with the examples to measure on: the clients' or servers' own test examples if
    there are any, unless `on` is train."""
    if on == "train" or (data.tests is None and data.cluster_tests is None):
        return replace(groups, every=every)
    rows = data.tests if data.tests is not None else data.parts
    which: Which = "test"
    return replace(groups, parts=rows, every=every, which=which, clusters=data.cluster_tests)


def check_tests(data: Federated, section: EvaluationSection, servers: int) -> None:
    """Refuse examples that are not finite, and metrics on test examples that nobody has."""
    for each in (data.train, data.test):
        for part in () if each.reads_anew else (each.x, each.y):
            if part.is_floating_point() and not part.sum().isfinite():
                data.check_numbers()  # a sum may only have overflowed
    own = data.tests is not None
    if section.per_client_on == "test" and not own and data.cluster_tests is None:
        raise InputError(
            "evaluation.per_client_on is test, but clients have no test examples of their own: "
            "set data.partition to users, or give them with sdfeel.gather(..., tests=...)"
        )
    if data.cluster_tests is not None and len(data.cluster_tests) != servers:
        raise InputError(
            f"the data have test examples of {len(data.cluster_tests)} edge servers, but "
            f"network.servers is {servers}: make them equal"
        )
    measured = section.per_client and section.per_client_on != "train"
    if measured and data.cluster_tests is not None:
        raise InputError(
            "evaluation.per_client is set, but edge servers have test examples of their own, not "
            "clients: use evaluation.per_cluster, or set evaluation.per_client_on to train"
        )
