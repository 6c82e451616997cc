"""What the paper's data sets become at each scale, under each reading of "one local iteration".

`full` is the paper's own setting. `quick` trains a small perceptron on the built-in digits, split
and priced like the real thing, so that every verdict takes only minutes. `small` is the real
images with fewer clients and iterations; for CIFAR-10, at half the resolution with a smaller CNN,
priced as the paper's.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Literal

from sdfeel.core.errors import unknown
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment

Scale = Literal["quick", "small", "full"]
SCALES: tuple[Scale, ...] = ("quick", "small", "full")
Reading = Literal["A", "E"]
READINGS: dict[Reading, str] = {
    "A": "an iteration is one batch, charged with the printed number of operations, and the "
    "learning rate is 0.01, which the paper's figure 11(a) finds best: sending takes nearly all of "
    "the time",
    "E": "an iteration is a pass over the client's data, trained as well as charged, at the "
    "printed learning rate 0.001: computing takes most of the time on MNIST",
}

# The models' sizes and operations as the paper prints them: digits are priced like these.
MNIST_OPERATIONS, CIFAR_OPERATIONS = 487_540.0, 138.4e6
MNIST_PRICE = (f"latency.operations={MNIST_OPERATIONS}", f"latency.model_bits={32 * 21_840}")
CIFAR_PRICE = (f"latency.operations={CIFAR_OPERATIONS}", f"latency.model_bits={32 * 5_852_170}")
HELD = 1200  # samples of a client in the paper's split of MNIST
DIGITS_HELD = 29  # of a client when digits stand in for them: each costs as much as 41
GFLOPS = 10.0  # the mean speed of the devices
MEASURED = 40  # about this many measurements in a run, where `cadence` would give more


@dataclass(frozen=True)
class FigureSetting:
    """One data set at one scale under one reading."""

    data: str
    scale: Scale
    reading: Reading
    iterations: int
    window: float  # seconds of the race between schemes
    rate: float  # the learning rate of all figures except those about it
    close: float  # how close two accuracies must be to count as the same
    target: float  # the accuracy that schemes race for
    unusable: float  # below this accuracy a model is of no use
    theta_min: int  # batches of a cluster's slowest client, where servers do not wait
    rounds: int  # synchronous rounds of that length
    settings: tuple[str, ...]
    note: str
    clients: int = 50
    cadence: int = 60  # iterations between two measurements: a multiple of most tau1
    held: int = HELD  # samples of a client

    @property
    def few(self) -> int:
        """Clients that take part where only a tenth of them does; a cell has as many."""
        return self.clients // 10

    def experiment(self, *changes: str) -> Experiment:
        """The setting's experiment with `section.key=value` changes on top."""
        return _experiment(self, changes)

    def step_seconds(self) -> float:
        """Seconds that one local iteration takes on a device of mean speed."""
        latency = self.experiment().latency
        assert latency.operations is not None  # every setting says it
        counted = {"paper-literal": 1, "paper-epoch": self.held}[latency.preset]
        if latency.samples_per_iteration == "batch":
            counted = 10
        return counted * latency.operations / (GFLOPS * 1e9)

    def model_seconds(self, mbps: float) -> float:
        """Seconds that one model takes over a link."""
        bits = self.experiment().latency.model_bits
        assert bits is not None
        return bits / (mbps * 1e6)

    def pace(self, tau1: int = 5, between: float | None = None) -> float:
        """Seconds of an iteration on equal devices, by the paper's formula.

        `between` is what servers send per round, in seconds; None: one exchange at 50 Mbit/s.
        """
        exchange = self.model_seconds(50.0) if between is None else between
        return self.step_seconds() + (self.model_seconds(5.0) + exchange) / tau1

    def lasting(self, seconds: float, pace: float, tau1: int) -> int:
        """Iterations, in whole rounds, that last at least `seconds`; a little more for clients
        that hold more data than the others."""
        return tau1 * ceil(1.03 * seconds / pace / tau1)

    def by_batches(self) -> "FigureSetting":
        """The same with a batch as the iteration, at its share of the price of a pass: where
        clients are stopped in the middle of a pass."""
        if self.reading == "A":
            return self
        own = ("latency.preset=paper-literal", "latency.samples_per_iteration=batch")
        return replace(self, settings=(*self.settings, *own))


@lru_cache(maxsize=256)
def _experiment(made: FigureSetting, changes: tuple[str, ...]) -> Experiment:
    common = (
        f"training.iterations={made.iterations}",
        f"training.learning_rate={made.rate}",
        "training.batch_size=10",
        f"network.clients={made.clients}",
    )
    return with_cadence(load(None, (*common, *made.settings, *changes)), made.cadence)


def with_cadence(experiment: Experiment, cadence: int) -> Experiment:
    """Measure every `cadence` iterations, or MEASURED times if that is less often, however long a
    round is, unless the experiment says when."""
    if experiment.evaluation.every:
        return experiment
    tau1 = int(experiment.scheme.options.get("tau1") or 5)
    every = max(1, max(cadence, experiment.training.iterations // MEASURED) // tau1)
    evaluation = experiment.evaluation.model_copy(update={"every": every})
    return experiment.model_copy(update={"evaluation": evaluation})


DIGITS = ("data.name=digits", "model.name=mlp")
DIRICHLET = ("data.partition=dirichlet", "data.concentration=0.5")
PASSES = ("latency.preset=paper-epoch",)


def _quick(data: str, close: float, *settings: str) -> FigureSetting:
    """Digits instead of `data`."""
    note = f"built-in digits, perceptron, priced as {data}"
    own = (*DIGITS, *settings)
    return FigureSetting(
        data, "quick", "A", 480, 15.0, 0.05, close, 0.9, 0.7, 20, 20, own, note, cadence=30
    )


def _quick_passes() -> FigureSetting:
    """A pass over 29 digits is three batches: a sample is priced as 41 of MNIST's."""
    own = (*DIGITS, *MNIST_PRICE, *PASSES)
    price = f"latency.operations={MNIST_OPERATIONS * HELD / DIGITS_HELD}"
    made = _quick("mnist", 0.01)
    return replace(
        made, reading="E", iterations=160, settings=(*own, price), cadence=10, held=DIGITS_HELD
    )


def _full(data: str, *settings: str) -> FigureSetting:
    """The paper's setting, at the learning rate that its figure 11(a) finds best."""
    images = "60,000 images"
    target, note = {"mnist": 0.9, "fashion-mnist": 0.7}[data], f"{data}, {images}, the paper's CNN"
    own = (f"data.name={data}", *settings)
    return FigureSetting(data, "full", "A", 600, 50.0, 0.01, 0.01, target, 0.7, 100, 12, own, note)


def _full_passes(made: FigureSetting) -> FigureSetting:
    """60 passes at 0.001 are about as much training as 720 batches at 0.01."""
    own = (*made.settings, *PASSES)
    return replace(made, reading="E", iterations=60, rate=0.001, rounds=72, settings=own, cadence=5)


def _small() -> FigureSetting:
    """CIFAR-10 pooled to 16 x 16 pixels and a small CNN, with all 50 clients, the paper's matrix,
    batch and Dirichlet 0.5."""
    note = "cifar10, 50,000 images pooled to 16 x 16, a small CNN with BatchNorm, priced as cifar10"
    fewer = ("evaluation.train_examples=1000", "evaluation.test_examples=2000")
    own = (
        "data.name=sdfeel.figures.small_cifar:data",
        "model.name=sdfeel.figures.small_cifar:model",
        *CIFAR_PRICE,
        *DIRICHLET,
    )
    return FigureSetting(
        "cifar10", "small", "A", 600, 24_000.0, SMALL_RATE, 0.02, SMALL_TARGET, 0.4, 100, 12,
        (*own, *fewer, "checkpoint.every_seconds=120"), note,
    )  # fmt: skip


def _fewer(made: FigureSetting) -> FigureSetting:
    """The same images and CNN with 20 clients and half of the iterations."""
    note = f"{made.note}, 20 clients, 300 iterations"
    return replace(made, scale="small", iterations=300, clients=20, note=note)


def _full_cifar() -> FigureSetting:
    note = "cifar10, 50,000 images, the paper's CNN with BatchNorm and dropout"
    own = ("data.name=cifar10", "model.name=cifar-cnn", *CIFAR_PRICE, *DIRICHLET)
    return FigureSetting(
        "cifar10", "full", "A", 600, 24_000.0, 0.01, 0.02, 0.6, 0.4, 1000, 12, own, note
    )


# Both chosen before any run that is judged: docs/reproduce/cifar10.md says how.
SMALL_RATE, SMALL_TARGET = 0.1, 0.5
MNIST = _full("mnist", "model.name=mnist-cnn", *MNIST_PRICE)
FASHION = _full("fashion-mnist", "model.name=mnist-cnn", *MNIST_PRICE)
ALL = (
    _quick("mnist", 0.01, *MNIST_PRICE),
    _quick_passes(),
    _quick("cifar10", 0.02, *CIFAR_PRICE, *DIRICHLET, "data.min_size=2"),
    MNIST,
    _full_passes(MNIST),
    FASHION,
    _fewer(MNIST),
    _fewer(FASHION),
    _small(),
    _full_cifar(),
)
SETTINGS = {(each.data, each.scale, each.reading): each for each in ALL}


def setting(data: str, scale: Scale, reading: Reading = "A") -> FigureSetting:
    """What `data` is at `scale` under `reading`."""
    if (data, scale, reading) not in SETTINGS:
        known = [name for name, *rest in SETTINGS if rest == [scale, reading]]
        raise unknown("data set", data, known)
    return SETTINGS[data, scale, reading]


def found_in(experiment: Experiment, directory: Path | None) -> Experiment:
    """The same experiment with its files looked for in `directory` first."""
    if directory is None or experiment.data.name == "digits" or ":" in str(experiment.data.name):
        return experiment
    own = directory / experiment.data.name
    folder = own if own.is_dir() else directory
    data = experiment.data.model_copy(update={"directory": str(folder.resolve())})
    return experiment.model_copy(update={"data": data})


def sd_feel(tau1: int = 5, tau2: int = 1, alpha: int = 1) -> tuple[str, ...]:
    return (
        "scheme.name=sd-feel",
        f"scheme.tau1={tau1}",
        f"scheme.tau2={tau2}",
        f"scheme.alpha={alpha}",
    )


def hierfavg(tau1: int = 5, tau2: int = 1) -> tuple[str, ...]:
    return ("scheme.name=hierfavg", f"scheme.tau1={tau1}", f"scheme.tau2={tau2}")


def fedavg(tau1: int = 5, participants: int | None = None) -> tuple[str, ...]:
    few = () if participants is None else (f"scheme.participants={participants}",)
    return ("scheme.name=fedavg", f"scheme.tau1={tau1}", *few)


def feel(tau1: int = 5, scheduled: int = 5, pool: int | None = None) -> tuple[str, ...]:
    within = () if pool is None else (f"scheme.pool_size={pool}",)
    return ("scheme.name=feel", f"scheme.tau1={tau1}", f"scheme.scheduled={scheduled}", *within)


def async_sd_feel(theta_min: int, psi: str = "paper", balanced: bool = False) -> tuple[str, ...]:
    return (
        "scheme.name=async-sd-feel",
        f"scheme.theta_min={theta_min}",
        f"scheme.psi={psi}",
        f"scheme.balanced={'true' if balanced else 'false'}",
    )


def devices(spread: float) -> str:
    """H, the fastest device over the slowest, at the same mean speed."""
    return f"devices.spread={spread:g}"
