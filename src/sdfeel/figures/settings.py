"""What the paper's two data sets become at each scale, and what time costs.

`full` is the paper's own setting. `quick` trains a small perceptron on the built-in digits, split
and priced like the real thing, so that every verdict takes only minutes. `reduced`, for CIFAR-10
alone, is the real images and the real model with fewer clients and iterations: what a machine
without an accelerator can do in an hour or two.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sdfeel.core.errors import unknown
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment

Scale = Literal["quick", "reduced", "full"]
SCALES: tuple[Scale, ...] = ("quick", "reduced", "full")

# The models' sizes and operations as the paper prints them: digits are priced like these.
MNIST_PRICE = ("latency.operations=487540", f"latency.model_bits={32 * 21_840}")
CIFAR_PRICE = ("latency.operations=138.4e6", f"latency.model_bits={32 * 5_852_170}")
SAMPLES = {487_540.0: 1200, 138.4e6: 1000}  # per client in the paper's split, by operations

PRICES = {
    "A": "the printed constants: an iteration costs one sample's operations, so sending dominates",
    "E": "an iteration costs a pass over the client's samples, so computing dominates on MNIST",
}


@dataclass(frozen=True)
class FigureSetting:
    """One data set at one scale."""

    data: str
    scale: Scale
    iterations: int
    race: int  # iterations of the race between schemes
    rate: float  # the learning rate of all figures except those about it
    close: float  # how close two accuracies must be to count as the same
    target: float  # the accuracy that schemes race for
    theta_min: int  # steps of a cluster's slowest client, where servers do not wait
    settings: tuple[str, ...]
    note: str
    clients: int = 50
    cadence: int = 60  # iterations between two measurements: a multiple of most tau1

    @property
    def few(self) -> int:
        """Clients that take part where a tenth does; as many as there are in a cell."""
        return self.clients // 10

    def experiment(self, *changes: str) -> Experiment:
        """The setting's experiment with `section.key=value` changes on top."""
        common = (
            f"training.iterations={self.iterations}",
            f"training.learning_rate={self.rate}",
            "training.batch_size=10",
            f"network.clients={self.clients}",
        )
        return with_cadence(load(None, (*common, *self.settings, *changes)), self.cadence)


def with_cadence(experiment: Experiment, cadence: int) -> Experiment:
    """Measure every `cadence` iterations, whatever a round is, unless the experiment says when."""
    if experiment.evaluation.every:
        return experiment
    tau1 = int(experiment.scheme.options.get("tau1") or 5)
    every = max(1, cadence // tau1)
    evaluation = experiment.evaluation.model_copy(update={"every": every})
    return experiment.model_copy(update={"evaluation": evaluation})


DIGITS = ("data.name=digits", "model.name=mlp")
DIRICHLET = ("data.partition=dirichlet", "data.concentration=0.5")


def _quick(data: str, close: float, *settings: str) -> FigureSetting:
    """Digits instead of `data`."""
    note = "built-in digits, perceptron, priced as"
    own = (*DIGITS, *settings)
    return FigureSetting(data, "quick", 480, 480, 0.05, close, 0.9, 20, own, f"{note} {data}")


def _full(data: str, close: float, target: float, theta_min: int, *settings: str) -> FigureSetting:
    """The paper's setting, at the learning rate that its figure 11(a) finds best."""
    note = "60,000 images" if data != "cifar10" else "50,000 images"
    note = f"{data}, {note}, the paper's CNN with dropout"
    own = (f"data.name={data}", *settings)
    return FigureSetting(data, "full", 600, 1320, 0.01, close, target, theta_min, own, note)


def _reduced(*settings: str) -> FigureSetting:
    """CIFAR-10 and its model: a fifth of the clients, a fifteenth of the iterations, and steps ten
    times as large, without which nothing would be seen in so few.

    With one client per server, clusters differ in size by up to four times, and the paper's matrix
    then gives some models weights as low as -0.79: runs with one exchange diverged. Metropolis
    weights are never negative.
    """
    note = (
        "cifar10, 50,000 images, the paper's CNN with BatchNorm and dropout, REDUCED: 10 clients, "
        "few iterations, Metropolis weights, accuracy on 500 of the test images"
    )
    fewer = ("evaluation.train_examples=300", "evaluation.test_examples=500")
    kind = ("data.name=cifar10", "network.mixing=metropolis")
    own = (*kind, *settings, *fewer, "checkpoint.every_seconds=120")
    return FigureSetting("cifar10", "reduced", 40, 40, 0.1, 0.02, 0.25, 2, own, note, 10, 10)


MNIST_CNN, CIFAR_CNN = "model.name=mnist-cnn", "model.name=cifar-cnn"
ALL = (
    _quick("mnist", 0.01, *MNIST_PRICE),
    _quick("cifar10", 0.02, *CIFAR_PRICE, *DIRICHLET, "data.min_size=2"),
    _full("mnist", 0.01, 0.9, 100, MNIST_CNN, *MNIST_PRICE),
    _full("fashion-mnist", 0.01, 0.7, 100, MNIST_CNN, *MNIST_PRICE),
    _reduced(CIFAR_CNN, *CIFAR_PRICE, *DIRICHLET),
    _full("cifar10", 0.02, 0.6, 1000, CIFAR_CNN, *CIFAR_PRICE, *DIRICHLET),
)
SETTINGS = {(each.data, each.scale): each for each in ALL}


def setting(data: str, scale: Scale) -> FigureSetting:
    """What `data` is at `scale`."""
    if (data, scale) not in SETTINGS:
        raise unknown("data set", data, [name for name, each in SETTINGS if each == scale])
    return SETTINGS[data, scale]


def found_in(experiment: Experiment, directory: Path | None) -> Experiment:
    """The same experiment with its files looked for in `directory` first."""
    if directory is None or experiment.data.name == "digits":
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
