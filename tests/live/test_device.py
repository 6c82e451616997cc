"""A client without torch takes part with the same bits, or a sentence says why it cannot."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdfeel.core.errors import InputError, SdfeelError
from sdfeel.core.network import Shelf
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.device import build_devices, read_devices
from sdfeel.deploy.files import read_libraries
from sdfeel.deploy.init import init
from sdfeel.deploy.node import engine_kind
from sdfeel.deploy.node_directories import deployed, make, on_loopback
from sdfeel.engine.native import build
from sdfeel.experiment.build import Prepared, prepare
from sdfeel.experiment.loading import load
from sdfeel.live import device
from sdfeel.live.device import BUNDLE, LIBRARY, Bundle, DeviceNode, checked_library, own_data
from sdfeel.live.protocol import About, Reception, Who
from sdfeel.live.transport.errors import Refused
from sdfeel.run.store import create
from tests.cli.command import call
from tests.engine.native.helpers import needs_compiler
from tests.tools.device import SETTINGS, Machine, federation
from tests.waiting import finished

SOURCE = Path(__file__).parents[2] / "src"
# Nothing but what sdfeel-device asks for, and what comes with that, can be imported.
WITHOUT = """
import sys
HAS = {"sdfeel", "numpy", "grpc", "cryptography", "safetensors", "typing_extensions", "bare"}
HAS |= {"cffi", "_cffi_backend", "pycparser", *sys.stdlib_module_names}
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in HAS:
            raise ModuleNotFoundError(f"a device has no {name}")
sys.meta_path.insert(0, Bare())
from sdfeel.live.device import main
main()
"""
OWN = os.uname().machine
SMALL = [*SETTINGS, "model.name=logistic", "training.iterations=20"]
pytestmark = [
    needs_compiler,
    pytest.mark.skipif(OWN not in build.DEVICES, reason="no device is of this machine's kind"),
]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """This machine's Python, with what a device has: no torch, no pydantic, no networkx."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "bare.py").write_text(WITHOUT)
    return Machine((sys.executable,), {"PYTHONPATH": f"{folder}:{SOURCE}"}, module="bare")


@pytest.fixture(scope="module")
def ready() -> Prepared:
    return prepare(load(None, SMALL))


@pytest.fixture(scope="module")
def home(ready: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a device's node."""
    directory = tmp_path_factory.mktemp("made")
    create(directory)
    make(ready, directory, on_loopback(2), devices={2: OWN})
    return directory / NODES / "client-2"


@pytest.fixture
def own(home: Path, tmp_path: Path) -> Path:
    """A copy of that directory, to be damaged."""
    for path in home.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "more", [[], pytest.param(["compression.uplink=uniform"], marks=pytest.mark.slow)]
)
def test_a_federation_with_clients_without_torch_ends_in_the_simulators_model(
    more: list[str], bare: Machine, tmp_path: Path
) -> None:
    experiment = load(None, [*SMALL, *more])
    ended = federation(experiment, tmp_path, {2: OWN, 3: OWN}, bare, kills=1)
    assert ended.model == ended.simulated
    assert ended.kills == 1
    assert all("finished after" in line for line in ended.told), ended.told


def test_a_whole_library_trains_the_reference_model(home: Path) -> None:
    bundle = Bundle.read(home / BUNDLE)
    assert checked_library(home / LIBRARY, bundle).fuses
    assert read_libraries(home.parents[1] / "network.json") == {2: bundle.library}


@contextmanager
def refused(text: str, kind: type[SdfeelError] = SdfeelError) -> Iterator[None]:
    with pytest.raises(kind, match=text) as error:
        yield
    assert "\n" not in str(error.value)


def test_a_damaged_library_is_refused(own: Path) -> None:
    content = bytearray((own / LIBRARY).read_bytes())
    content[len(content) // 2] ^= 1
    (own / LIBRARY).write_bytes(content)
    with refused(rf"is not the library that {BUNDLE} names: it is damaged"):
        checked_library(own / LIBRARY, Bundle.read(own / BUNDLE))
    (own / LIBRARY).unlink()
    with refused("cannot read .*No such file"):
        checked_library(own / LIBRARY, Bundle.read(own / BUNDLE))


def foreign(content: bytes) -> bytes:
    """The same file with another machine in its head."""
    other = 183 if content[18] != 183 else 62
    return content[:18] + other.to_bytes(2, "little") + content[20:]


def test_a_library_for_another_machine_is_refused(own: Path) -> None:
    content = foreign((own / LIBRARY).read_bytes())
    (own / LIBRARY).write_bytes(content)
    bundle = Bundle.read(own / BUNDLE)
    with refused(r"names \(it is for (aarch64|x86_64)\): it is damaged, or belongs to"):
        checked_library(own / LIBRARY, bundle)
    # Also if the whole directory is another device's.
    theirs = replace(bundle, device="riscv", library=hashlib.sha256(content).hexdigest())
    with refused(f"is for riscv and does not run on this {OWN}"):
        checked_library(own / LIBRARY, theirs)


@pytest.mark.skipif(OWN != "x86_64", reason="other CPUs have all that libraries use")
def test_a_cpu_without_fma_is_refused_before_it_is_tried(tmp_path: Path) -> None:
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx avx2\n")
    assert device.missing_instructions("x86_64", cpu) == ["fma"]
    cpu.write_text("flags\t\t: fpu avx2 fma\n")
    assert device.missing_instructions("x86_64", cpu) == []


def test_a_library_that_computes_other_numbers_is_refused(own: Path) -> None:
    bundle = Bundle.read(own / BUNDLE)
    changes: list[dict[str, Any]] = [{"reference": "0" * 64}, {"seed": bundle.seed + 1}]
    for change in changes:
        with refused("does not train the reference model .* cannot take part"):
            checked_library(own / LIBRARY, replace(bundle, **change))


def test_a_library_of_another_model_is_refused(own: Path) -> None:
    bundle = Bundle.read(own / BUNDLE)
    with refused("or belongs to another model or device; copy model.so again"):
        checked_library(own / LIBRARY, replace(bundle, library="0" * 64))


def test_a_server_refuses_a_device_with_another_library() -> None:
    edge = Reception("edge-0", About(network="n"), libraries={2: "a" * 64})
    good = {"about": About(network="n", library="a" * 64).told()}
    assert edge.meet(Who("client", 2), good) is not None
    stock = {"about": About(network="n").told()}  # it trains by its own engine
    assert edge.meet(Who("client", 2), stock) is not None
    bad = {"about": About(network="n", library="b" * 64).told()}
    with refused("edge-0 and client-2 have different native libraries", Refused):
        edge.meet(Who("client", 2), bad)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("not json", "is damaged: copy it again"),
        ("{}", "was written by another version of sdfeel"),
        ('{"form": 1}', "is damaged: copy it again"),
    ],
)
def test_a_damaged_bundle_is_refused(own: Path, change: str, text: str) -> None:
    (own / BUNDLE).write_text(change)
    with refused(text):
        Bundle.read(own / BUNDLE)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('trainer = "mine:make"', "a device trains with its library alone"),
        ("data = 5", "data must be text, got 5"),
        ('dat = "x"', "unknown key 'dat'"),
        ("= 5", "is not valid TOML"),
    ],
)
def test_a_wrong_node_file_is_refused(own: Path, line: str, text: str) -> None:
    (own / NODE).write_text(line)
    with refused(text):
        DeviceNode.read(own / NODE)


def test_data_that_the_library_cannot_read_are_refused(own: Path, home: Path) -> None:
    bundle = Bundle.read(own / BUNDLE)
    x, y = own_data(own / "data.npz", bundle)
    assert len(x) == len(y) == bundle.samples
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": x, "z": y}, "save x and y with numpy.savez"),
        ({"x": x.astype(float), "y": y}, "is float64 .* must be float32"),
        ({"x": x[..., :1], "y": y}, "must be float32"),
        ({"x": x, "y": y + 1000}, "must be class numbers from 0 to 9"),
        ({"x": x, "y": y[:-1]}, "class numbers"),
    ]
    for wrong, text in cases:
        np.savez(own / "data.npz", **wrong)
        with refused(text):
            own_data(own / "data.npz", bundle)


def test_devices_are_named_by_kind_or_by_client() -> None:
    assert read_devices(["2,3=armv7"], 4) == {2: "armv7", 3: "armv7"}
    with refused("unknown device 'aarch65'", InputError):
        read_devices(["aarch65"], 4)
    with refused("names client '4', but there are clients 0 to 3", InputError):
        read_devices(["4=aarch64"], 4)


def test_schemes_whose_clients_keep_rows_are_not_for_devices(ready: Prepared) -> None:
    rows = replace(ready.decisions.net, shelves=(Shelf("own", "client", held="client"),))
    kept = replace(ready, decisions=replace(ready.decisions, net=rows))
    with refused("clients of sd-feel keep rows in addition to the model, which devices cannot"):
        build_devices(kept, {2: OWN})


def test_a_device_is_asked_for_on_the_command_line(tmp_path: Path) -> None:
    words = [word for setting in SMALL for word in ("--set", setting)]
    done = call("deploy", "init", str(tmp_path / "made"), "--device", f"1,3={OWN}", *words)
    assert done.code == 0, done.err
    names = [path.parent.name for path in (tmp_path / "made").glob(f"nodes/*/{BUNDLE}")]
    assert sorted(names) == ["client-1", "client-3"]


def test_a_device_is_not_for_experiments_that_torch_trains(tmp_path: Path) -> None:
    experiment = load(None, [*SMALL, "training.engine=loop"])
    with refused("devices train with the native engine, but this experiment is trained by loop"):
        init(experiment, tmp_path / "made", devices=[OWN])


def test_without_a_compiler_for_it_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.BuildFault, match=r"install arm-linux-gnueabihf-g\+\+$"):
        build.device_library("", "armv7")


def test_a_deployment_names_the_engine_that_was_chosen(ready: Prepared) -> None:
    chosen = deployed(prepare(load(None, [*SMALL, "training.engine=auto"])))
    assert chosen.training.engine == engine_kind(chosen) == "native"
    torch = deployed(prepare(load(None, [*SMALL, "training.engine=parallel"])))
    assert engine_kind(torch) == "loop"
    with refused("training.engine = auto, which leaves open how clients train", InputError):
        engine_kind(load(None, [*SMALL, "training.engine=auto"]))
    for bits, engine in (("native 2", "native"), ("torch", "loop")):
        training = ready.experiment.training.model_copy(update={"engine": "ray"})
        experiment = ready.experiment.model_copy(update={"training": training})
        ray = replace(ready, experiment=experiment, engine=Bits(bits))  # type: ignore[arg-type]
        assert deployed(ray).training.engine == engine


class Bits:
    """An engine that has only the name of its bits."""

    def __init__(self, bits: str) -> None:
        self.bits = bits


def test_a_device_can_be_checked_before_it_is_used(home: Path, bare: Machine) -> None:
    done = finished(
        [*bare.command, "-m", "bare", str(home / NODE), "--check"],
        env={**os.environ, **bare.environment},
    )
    assert done.stdout == f"{LIBRARY} for {OWN} trains the reference model\n"
    assert json.loads((home / BUNDLE).read_text())["device"] == OWN
