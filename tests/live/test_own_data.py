"""A client trains on its own data from its own disk, and gets the simulator's bits."""

import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.errors import DataError, InputError
from sdfeel.core.run_files import NODE, NODES, client_arrays
from sdfeel.deploy.files import NodeFile, read_node, write_node
from sdfeel.deploy.node import federation_of, own_engine, own_examples, trainer
from sdfeel.deploy.node_directories import make, on_loopback
from sdfeel.engine.base import Task
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from tests.examples import examples

SETTINGS = ["network.clients=5", "network.servers=2", "data.partition=dirichlet"]


@pytest.fixture(scope="module", params=["loop", "native"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Prepared, Path]:
    directory = tmp_path_factory.mktemp("own")
    ready = prepare(load(None, [*SETTINGS, f"training.engine={request.param}"]))
    make(ready, directory, on_loopback(2))
    return ready, directory


def test_a_clients_engine_knows_only_its_data_and_trains_the_same_model(
    made: tuple[Prepared, Path],
) -> None:
    ready, directory = made
    node = read_node(directory / NODES / "client-3" / NODE)
    own = own_examples(node, 3)
    assert len(own) == len(ready.data.parts[3])
    federation, module = federation_of(node)
    assert torch.equal(federation.initial, ready.engine.initial())
    task = Task(3, ready.engine.initial(), steps=7, first=20)
    found = trainer(own_engine(node, 3, own, module))(task)
    assert torch.equal(found, next(ready.engine.train([task])))


def test_a_directory_means_the_clients_part_of_the_experiments_data(
    made: tuple[Prepared, Path],
) -> None:
    ready, directory = made
    node = read_node(directory / NODES / "client-1" / NODE)
    own = own_examples(node.model_copy(update={"data": str(directory)}), 1)
    rows = torch.from_numpy(np.array(ready.data.parts[1]))
    assert torch.equal(own.x, ready.data.train.x[rows])


def test_a_factory_brings_data_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data_factory.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    return np.ones((4, 3), np.float32), np.arange(4) % 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = own_examples(NodeFile(data="own_data_factory:load"), 0)
    assert own.x.shape == (4, 3)
    assert own.y.tolist() == [0, 1, 0, 1]
    del sys.modules["own_data_factory"]


def test_data_that_cannot_be_used_is_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no data"):
        own_examples(NodeFile(), 0)
    with pytest.raises(InputError, match=r"neither an \.npz file, a directory nor module:factory"):
        own_examples(NodeFile(data="somewhere"), 0)
    with pytest.raises(DataError, match=r"data are missing: save x and y to .*none\.npz"):
        own_examples(NodeFile(data=str(tmp_path / "none.npz")), 0)
    np.savez(tmp_path / "odd.npz", z=np.ones(3))
    with pytest.raises(DataError, match="save x and y with numpy"):
        own_examples(NodeFile(data=str(tmp_path / "odd.npz")), 0)


def test_a_node_file_survives_writing_and_says_what_is_wrong(tmp_path: Path) -> None:
    node = NodeFile(peers={"edge-0": "a:1"}, data="data.npz")
    write_node(tmp_path, "client", node)
    text = (tmp_path / NODE).read_text()
    assert "listen" not in text  # what concerns servers only
    found = read_node(tmp_path / NODE)
    assert found.peers == {"edge-0": "a:1"}
    assert found.data == str(tmp_path / "data.npz")
    for wrong, told in {
        'polisy = "x"': r"unknown key 'polisy': did you mean 'policy'",
        "listen = 5": "listen must be a text, got 5",
        '[policy]\ndead_client = "panic"': "policy.dead_client must be 'wait' or 'drop'",
        "= 5": "is not valid TOML",
    }.items():
        (tmp_path / NODE).write_text(wrong)
        with pytest.raises(InputError, match=told):
            read_node(tmp_path / NODE)


@given(
    place=st.integers(0, 10**6), cut=st.booleans(), packed=st.booleans(), byte=st.integers(1, 255)
)
@examples(100)
def test_data_that_are_damaged_are_refused_in_a_sentence(
    place: int, cut: bool, packed: bool, byte: int
) -> None:
    whole = BytesIO()
    save = np.savez_compressed if packed else np.savez
    save(whole, x=np.ones((20, 4), np.float32), y=np.arange(20))
    content = bytearray(whole.getvalue())
    place %= len(content)
    content[place] ^= byte
    with TemporaryDirectory() as directory:
        path = Path(directory) / "data.npz"
        path.write_bytes(content[:place] if cut else content)
        with suppress(DataError), client_arrays(path) as (x, _):
            assert not cut
            assert len(x) <= 20
