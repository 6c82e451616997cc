import numpy as np
import pytest

from sdfeel.core.cost import Cost
from sdfeel.core.errors import InputError
from sdfeel.experiment.cost_sections import LatencySection
from sdfeel.radio.latency import PRESETS, assigned, speeds, step_seconds

MNIST, CIFAR = 487_540, 138.4e6


@pytest.mark.parametrize(
    ("preset", "operations", "samples", "bits", "taus", "milliseconds"),
    [
        ("paper-literal", MNIST, 1200, 32 * 21_840, (5, 1, 1), 30.8),
        ("paper-epoch", MNIST, 1200, 32 * 21_840, (5, 1, 1), 89.3),
        ("paper-literal", CIFAR, 1000, 32 * 5_852_170, (2, 1, 5), 28_100),
        ("paper-epoch", CIFAR, 1000, 32 * 5_852_170, (2, 1, 5), 41_900),
    ],
)
def test_the_presets_reproduce_the_specifications_table(
    preset: str,
    operations: float,
    samples: float,
    bits: float,
    taus: tuple[int, int, int],
    milliseconds: float,
) -> None:
    step = step_seconds(np.array([1e10]), np.array([samples]), operations, 10, PRESETS[preset])
    price = Cost(step, bits, LatencySection().rates)
    tau1, tau2, alpha = taus
    per_iteration = (
        float(step[0])
        + price.transfer("client-server") / tau1
        + alpha * price.transfer("server-server") / (tau1 * tau2)
    )
    assert per_iteration * 1000 == pytest.approx(milliseconds, rel=2e-3)


def test_client_to_cloud_is_client_to_server_and_on() -> None:
    price = Cost(np.ones(1), 1e6, LatencySection().rates)
    both = price.transfer("client-server") + price.transfer("server-cloud")
    assert price.transfer("client-cloud") == pytest.approx(both)


def test_unequal_devices_keep_their_mean_and_their_gap() -> None:
    found = speeds(50, 10e9, 20.0)
    assert found.mean() == pytest.approx(10e9)
    assert found.max() / found.min() == pytest.approx(20)
    assert (speeds(5, 10e9, 1.0) == 10e9).all()


def test_devices_can_be_placed_anywhere_together_or_evenly() -> None:
    ascending, home = speeds(20, 10e9, 9.0), np.arange(20) % 4
    draws = np.random.default_rng(0)
    anywhere = assigned(ascending, "random", home, draws)
    together = assigned(ascending, "clustered", home, draws)
    evenly = assigned(ascending, "even", home, draws)
    for found in (anywhere, together, evenly):
        np.testing.assert_array_equal(np.sort(found), ascending)
    assert (np.diff(anywhere) < 0).any()
    means = [[found[home == d].mean() for d in range(4)] for found in (together, evenly)]
    assert np.std(means[0]) > 5 * np.std(means[1])
    assert together[home == 0].max() < together[home == 1].min()


def test_a_batch_is_never_larger_than_the_clients_data() -> None:
    from dataclasses import replace

    reading = replace(PRESETS["paper-literal"], samples_per_iteration="batch", backward_factor=3.0)
    found = step_seconds(np.array([1.0, 1.0]), np.array([4.0, 100.0]), 1.0, 10, reading)
    assert found.tolist() == [12.0, 30.0]


@pytest.mark.parametrize(("mean", "spread", "message"), [(1e9, 0.5, "spread"), (0, 1, "gflops")])
def test_impossible_devices_are_refused(mean: float, spread: float, message: str) -> None:
    with pytest.raises(InputError, match=f"devices.{message}"):
        speeds(3, mean, spread)
