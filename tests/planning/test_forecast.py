"""What is predicted is what the simulator does."""

from collections.abc import Mapping

import pytest

from sdfeel.api import Run
from sdfeel.core.errors import InputError
from sdfeel.experiment.loading import load
from sdfeel.planning.forecast import LINKS, Forecaster
from sdfeel.report.history import History

SMALL = ["network.clients=6", "network.servers=3", "training.iterations=24", "devices.spread=3"]
SMALL += ["training.engine=loop"]
CHANGES: list[Mapping[str, float]] = [
    {},
    {"scheme.tau1": 2, "scheme.alpha": 3, "latency.server_server_mbps": 0.5},
    {"scheme.tau2": 4, "latency.client_server_mbps": 50, "latency.server_cloud_mbps": 1},
    {"scheme.tau1": 6, "latency.client_cloud_mbps": 20},
    {"scheme.theta_min": 3, "latency.server_server_mbps": 2},
]
VARIANTS = [
    ["scheme.name=sd-feel", "scheme.tau1=3", "scheme.tau2=2"],
    ["scheme.name=sd-feel", "compression.uplink=top-k", "radio.rates=distance"],
    ["scheme.name=hierfavg", "scheme.tau2=2", "latency.downlink=true", "network.cloud=1"],
    ["scheme.name=sd-feel", "robust.cluster=median"],
    ["scheme.name=fedavg", "latency.preset=deployed"],
    ["scheme.name=k-gt", "scheme.tau1=4", "network.graph=star"],
    ["scheme.name=async-sd-feel", "training.iterations=300", "training.engine=native"],
]


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_a_prediction_costs_what_the_run_costs(variant: list[str]) -> None:
    """Whatever is changed: the prediction and the run that starts with these changes agree."""
    asked = [*SMALL, *variant]
    forecaster = Forecaster(load(None, asked))
    seen: list[Mapping[str, float]] = []
    for changes in CHANGES:
        turned = {key: value for key, value in changes.items() if key in forecaster.knobs}
        if turned in seen:
            continue
        seen.append(turned)
        found = forecaster.forecast(turned)
        started = load(None, [*asked, *(f"{key}={value}" for key, value in turned.items())])
        history = History.of("", list(Run(started)))
        assert history.finished is not None
        near = 0.03 if "async" in variant[0] else 1e-9
        assert found.seconds == pytest.approx(history.finished.seconds, rel=near)
        assert found.bytes == pytest.approx(history.finished.bytes, rel=near)
        assert found.joules == pytest.approx(history.finished.joules, rel=near)
        assert found.iterations == pytest.approx(history.finished.iterations, rel=near)


def test_only_what_has_an_effect_can_be_asked_about() -> None:
    links = {
        "sd-feel": {LINKS[0], LINKS[1]},
        "hierfavg": {LINKS[0], LINKS[2]},
        "fedavg": {LINKS[3]},
    }
    for scheme, wanted in links.items():
        forecaster = Forecaster(load(None, [*SMALL, f"scheme.name={scheme}"]))
        assert {key for key in forecaster.knobs if key in LINKS} == wanted
        for key in {*LINKS} - wanted:
            with pytest.raises(InputError, match="cannot be asked about here"):
                forecaster.forecast({key: 1.0})
    for value in (0, 2.5, 10**9, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"must be a whole number from 1 to 500"):
            forecaster.forecast({"scheme.tau1": value})
    with pytest.raises(InputError, match="but not safa"):
        Forecaster(load(None, ["scheme.name=safa"]))
    with pytest.raises(InputError, match="wait for one another"):
        Forecaster(load(None, [*SMALL, "scheme.name=async-sd-feel", "latency.holds=true"]))
    with pytest.raises(InputError, match="up to 50"):
        _ = Forecaster(load(None, [*SMALL, "scheme.tau2=1000000"])).knobs


def test_a_second_run_turns_bounds_into_an_estimate() -> None:
    forecaster = Forecaster(load(None, SMALL))
    own, far = {"scheme.tau1": 5}, {"scheme.tau1": 20}
    assert forecaster.forecast(own).to_target is None  # nobody was there
    least, most = forecaster.forecast(own, [(own, 40)]).to_target or (0, 0)
    assert least == most  # it is the run itself
    least, most = forecaster.forecast(far, [(own, 40)]).to_target or (0, 0)
    assert least < most
    both = forecaster.forecast(far, [(own, 40), (far, 80)])
    assert both.to_target is not None
    assert least < both.to_target[0] == both.to_target[1] < most
    driven = Forecaster(load(None, [*SMALL, "training.momentum=0.5"]))
    assert driven.forecast(far, [(own, 40)]).to_target is None  # the law is for plain SGD
