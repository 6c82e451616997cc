"""What figures about unequal devices share: who is compared, and for how long."""

from sdfeel.experiment.schema import Experiment
from sdfeel.figures.lines import FigureLine
from sdfeel.figures.settings import SAMPLES, FigureSetting, async_sd_feel, devices, sd_feel

SYNC, ASYNC, VANILLA = "synchronous", "asynchronous", "asynchronous, constant weights"
GFLOPS = 10.0  # the mean speed of the devices
EVERY = {"reduced": (4, 20)}  # rounds between measurements, synchronous and asynchronous
OFTEN = (1, 5)


def synchronous(setting: FigureSetting, spread: float, rounds: int, *more: str) -> Experiment:
    """Everybody waits for the slowest: tau1 is theta_min, the slowest client's steps."""
    theta = setting.theta_min
    return setting.experiment(
        *sd_feel(theta, 1, 1),
        devices(spread),
        f"training.iterations={theta * rounds}",
        f"evaluation.every={EVERY.get(setting.scale, OFTEN)[0]}",
        *more,
    )


def asynchronous(
    label: str,
    setting: FigureSetting,
    spread: float,
    limits: dict[str, float],
    psi: str,
    *more: str,
) -> FigureLine:
    """Each cluster at its own pace, for as long as `limits` says under each price list."""
    experiment = setting.experiment(
        *async_sd_feel(setting.theta_min, psi),
        devices(spread),
        "training.iterations=1000000",
        f"evaluation.every={EVERY.get(setting.scale, OFTEN)[1]}",
        *more,
    )
    return FigureLine(label, experiment, limits=limits)


def round_seconds(setting: FigureSetting, spread: float) -> dict[str, float]:
    """Seconds of one synchronous round under each price list."""
    latency = setting.experiment().latency
    operations, bits = latency.operations, latency.model_bits
    assert operations is not None  # every setting says it
    assert bits is not None
    slowest = 2 * GFLOPS * 1e9 / (1 + spread)
    sending = bits / (latency.client_server_mbps * 1e6) + bits / (latency.server_server_mbps * 1e6)
    return {
        price: setting.theta_min * operations * samples / slowest + sending
        for price, samples in (("A", 1), ("E", SAMPLES[operations]))
    }
