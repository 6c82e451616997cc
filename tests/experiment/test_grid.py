import pytest

from sdfeel.core.errors import InputError
from sdfeel.experiment.grid import axis, panels, points, text_axes
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment


def test_a_grid_is_every_combination_and_seeds_share_a_label() -> None:
    axes = text_axes(["scheme.tau1=1,3", "network.graph=ring,complete", "seed=0..1"])
    found = points(load(None, ["training.iterations=7"]), axes)
    assert len(found) == 8
    assert len({point.name for point in found}) == 8
    assert len({point.label for point in found}) == 4
    assert found[0].experiment.scheme.options == {"tau1": 1}
    assert found[0].experiment.network.graph == "ring"
    assert {point.experiment.seed for point in found} == {0, 1}
    assert all(point.experiment.training.iterations == 7 for point in found)


def test_keys_with_the_same_last_word_do_not_share_a_name() -> None:
    axes = text_axes(["scheme.name=sd-feel,fedavg", "model.name=mlp,logistic", "scheme.tau1=1,2"])
    found = points(Experiment(), axes)
    assert len({point.name for point in found}) == len({point.label for point in found}) == 8
    assert found[0].name == "scheme.name=sd-feel_model.name=mlp_tau1=1"
    assert panels(found)["scheme.name=fedavg"] == {
        f"model.name={model} tau1={tau1}": f"scheme.name=fedavg model.name={model} tau1={tau1}"
        for model in ("mlp", "logistic")
        for tau1 in (1, 2)
    }


def test_runs_that_would_share_a_directory_are_refused() -> None:
    with pytest.raises(InputError, match=r"would both be called name=a-b\.npz: choose values"):
        points(Experiment(), text_axes(["data.name=a/b.npz,a-b.npz"]))


@pytest.mark.parametrize("axes", [["seed=0..100000000"], ["seed=1..999", "scheme.tau1=1..999"]])
def test_a_grid_without_end_is_refused_at_once(axes: list[str]) -> None:
    with pytest.raises(InputError, match=r"means [\d,]+ runs: sweep over at most 100,000"):
        points(Experiment(), text_axes(axes))


@pytest.mark.parametrize("text", ["tau1", "=1,2", "scheme.tau1=", "scheme.tau1=,"])
def test_what_is_not_an_axis_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not an axis: write section\.key=value"):
        axis(text)


def test_a_key_given_twice_or_wrongly_is_refused() -> None:
    with pytest.raises(InputError, match="seed is given twice"):
        text_axes(["seed=1", "seed=2"])
    with pytest.raises(InputError, match=r"unknown key 'network\.grpah'"):
        points(Experiment(), text_axes(["network.grpah=ring"]))
