"""Every key that names a thing takes a name, `package.module:name`, or the thing itself."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sdfeel.core import named
from sdfeel.core.errors import InputError
from sdfeel.core.events import Finished
from sdfeel.experiment.build import prepare
from sdfeel.experiment.build_data import build_loss
from sdfeel.experiment.loading import checked, load
from sdfeel.experiment.schema import Experiment
from sdfeel.run.session import start
from sdfeel.schemes import SDFeel, find

MINE = '''
from dataclasses import dataclass

import numpy as np
import torch
from sdfeel import SDFeel
from sdfeel.core.stragglers import StragglerPolicy


@dataclass(frozen=True)
class Lazy(SDFeel):
    """SD-FEEL under another name, with an option of its own."""

    laziness: int = 2


def net():
    return torch.nn.Linear(3, 2)


def data():
    x = torch.arange(120.0).reshape(40, 3) / 120
    return (x, torch.arange(40) % 2), (x[:8], torch.arange(8) % 2)


def halves(labels, clients, rng):
    return np.array_split(np.arange(len(labels)), clients)


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


def largest(outputs, targets):
    return outputs.max()


class Plain(torch.optim.SGD):
    pass


def falling(iteration, iterations):
    return 1 - 0.5 * iteration / iterations


def links(servers, rng):
    return 1 - np.eye(servers)


def weights(links, mass):
    return np.full(links.shape, 1 / len(links))


def clusters(clients, servers, rng):
    return np.arange(clients) % servers


class Patient(StragglerPolicy):
    pass


class Steady:
    def __init__(self, radio, snr, seed):
        self.radio, self.snr = radio, snr

    def at(self, k, seconds):
        return self.radio, self.snr

    def chance(self, needed):
        return np.ones(len(self.radio))



'''
KEYS = {
    "scheme.name": "Lazy",
    "model.name": "net",
    "data.name": "data",
    "data.partition": "halves",
    "training.loss": "loss",
    "training.optimizer": "Plain",
    "training.schedule": "falling",
    "network.graph": "links",
    "network.mixing": "weights",
    "network.assignment": "clusters",
    "latency.late": "Patient",
    "radio.fading": "Steady",
}
SMALL = (
    "network.clients=4",
    "network.servers=2",
    "training.iterations=4",
    "training.engine=loop",
    "data.classes_per_client=5",
)


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[str]:
    """The name of a module next to an experiment."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    (tmp_path / "my.toml").write_text("seed = 3\n")
    before = list(sys.path)
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)


def finished(experiment: Experiment, directory: Path) -> str:
    last = list(start(experiment, directory))[-1]
    assert isinstance(last, Finished)
    return last.model_sha256


def test_a_file_and_python_say_the_same_with_the_same_names(tmp_path: Path, mine: str) -> None:
    settings = [f"{key}={mine}:{name}" for key, name in KEYS.items()]
    settings.append("scheme.laziness=3")
    settings.append(f"evaluation.metrics={mine}:largest,top-5")
    by_name = load(tmp_path / "my.toml", [*SMALL, *settings])
    module = __import__(mine)
    values: dict[str, Any] = load(None, SMALL).model_dump()
    values["seed"], values["scheme"]["laziness"] = 3, 3
    for key, name in KEYS.items():
        section, _, own = key.partition(".")
        values[section][own] = getattr(module, name)
    values["evaluation"]["metrics"] = {"largest": module.largest, "top-5": "top-5"}
    by_thing = checked(values)
    one, other = finished(by_name, tmp_path / "one"), finished(by_thing, tmp_path / "other")
    assert one == other
    # What can be imported again is recorded so, and the record says the same.
    record = load(tmp_path / "other" / "experiment.toml")
    assert record.scheme.name == f"{mine}:Lazy"
    assert record.model.name == f"{mine}:net"
    assert finished(record, tmp_path / "again") == one
    assert "largest" in (tmp_path / "one" / "metrics.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("key", [*KEYS, "evaluation.metrics"])
def test_a_name_that_leads_nowhere_is_refused_with_the_key_or_the_name(
    tmp_path: Path, mine: str, key: str
) -> None:
    with pytest.raises(InputError, match=f"'{mine}' has no 'nothing'"):
        prepare(load(tmp_path / "my.toml", [*SMALL, f"{key}={mine}:nothing"]))
    with pytest.raises(InputError, match="cannot import 'no_such_module'"):
        prepare(load(tmp_path / "my.toml", [*SMALL, f"{key}=no_such_module:thing"]))


def test_objects_without_a_name_are_recorded_by_what_they_hold() -> None:
    one, other = np.eye(3), np.eye(3)
    assert named.recorded_name(one) == named.recorded_name(other) != named.recorded_name(2 * one)
    assert named.recorded_name(one).startswith("object:ndarray-")
    layer, same = nn.Linear(2, 2), nn.Linear(2, 2)
    same.load_state_dict(layer.state_dict())
    assert named.digest(layer) == named.digest(same)
    with torch.no_grad():
        same.bias.add_(1)
    assert named.digest(layer) != named.digest(same)
    shift = 1
    assert named.digest(lambda x: x + shift) != named.digest(lambda x: x - shift)
    with pytest.raises(InputError, match="run that program again"):
        named.imported(named.recorded_name(one))


def test_two_modules_of_one_name_are_refused(tmp_path: Path, mine: str) -> None:
    named.search_in(tmp_path)
    named.imported(f"{mine}:net")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / f"{mine}.py").write_text("def net(): ...\n")
    named.search_in(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"two modules are called '{mine}'"):
        named.imported(f"{mine}:net")


def test_a_scheme_may_be_its_name_its_class_or_itself() -> None:
    for given in ("sd-feel", SDFeel, SDFeel(alpha=3), {"name": SDFeel, "alpha": 3}):
        chosen = Experiment.model_validate({"scheme": given}).scheme
        assert (chosen.name, chosen.label) == ("sd-feel", "sd-feel")
    assert chosen.options == {"alpha": 3}
    assert find(SDFeel(alpha=2)) is SDFeel
    with pytest.raises(InputError, match="lacks adapt, lanes, work, mix"):
        find(object)


def test_schemes_of_installed_packages_are_found(tmp_path: Path) -> None:
    about = tmp_path / "theirs-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[sdfeel.schemes]\ntheirs = sdfeel.schemes:SDFeel\n")
    sys.path.insert(0, str(tmp_path))
    try:
        assert find("theirs") is SDFeel
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("network.graph", "the links between servers"),
        ("network.mixing", "a matrix of weights"),
        ("network.assignment", "each client's server"),
        ("latency.late", "a policy"),
        ("radio.fading", "a channel"),
    ],
)
def test_code_that_fails_is_named_by_its_key(key: str, wanted: str) -> None:
    small = {"network.clients": 4, "network.servers": 2, "data.partition": "iid"}
    with pytest.raises(InputError, match=f"{key} must give {wanted}: OSError: no way"):
        prepare(checked({**small, key: Failing}))


class Failing:
    def __init__(self, *args: Any, **options: Any) -> None:
        raise OSError("no way")


def test_a_loss_may_be_one_of_torchs_classes() -> None:
    asked = Experiment(training={"loss": "torch.nn:CrossEntropyLoss"})
    assert isinstance(build_loss(asked), nn.CrossEntropyLoss)


def test_an_experiment_made_in_python_is_checked_in_the_same_words() -> None:
    wrong: list[dict[str, Any]] = [{"training": {"lr": 1}}, {"seed": -1}, {"trainig": {}}]
    for values in [*wrong, {"network": 3}]:
        with pytest.raises(InputError) as direct:
            Experiment(**values)
        with pytest.raises(InputError) as through:
            checked(values)
        assert str(direct.value) == str(through.value)
