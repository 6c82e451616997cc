"""What ships: types, templates and data, no keys and no developers' tools; and what it needs."""

import os
import re
import shutil
import sys
import tomllib
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from sdfeel.version import __version__
from tests.tools.device import own_machine
from tests.waiting import finished

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sdfeel"
SUFFIXES = {".py", ".typed", ".hpp", ".npz", ".md"}  # the program, kernels, built-in data
SUFFIXES |= {
    ".html",
    ".css",
    ".js",
    ".svg",
    ".service",
    ".sh",
    ".yaml",
    ".json",
    "",
}  # pages, templates
# The package of an import, wherever it stands; parsing all files would take seconds.
IMPORT = re.compile(r"^ *(?:from|import) ([A-Za-z]\w*)(?=[\w.]*(?: import | as |\n))", re.MULTILINE)
# Modules that come with a package of another name.
TOGETHER = {"markupsafe": "jinja2", "grpc": "grpcio", "anyio": "starlette", "PIL": "matplotlib"}
IF_THERE = {
    "flwr",
    "ray",
    "dp_accounting",
    "pyarrow",
    "topohub",
}  # adapters to what a user has installed, and extras


def shipped() -> list[Path]:
    """Files that the wheel has: everything below the package that git would keep."""
    return [p for p in SOURCE.rglob("*") if p.is_file() and p.parent.name != "__pycache__"]


def test_the_wheel_has_types_and_no_keys() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert {path.suffix for path in shipped()} <= SUFFIXES


def test_everything_that_is_imported_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dash"], *extras["deploy"]]
    named = {re.split(r"[<>=\[]", line)[0] for line in wanted}
    missing = set()
    for path in SOURCE.rglob("*.py"):
        tops = set(IMPORT.findall(path.read_text(encoding="utf-8")))
        tops -= {"sdfeel", *sys.stdlib_module_names}
        missing |= {TOGETHER.get(top, top) for top in tops} - named - IF_THERE
    assert not missing


def test_every_package_that_is_asked_for_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    asked = {re.split(r"[<>=\[]", line)[0].lower() for line in project["dependencies"]}
    assert asked <= pinned


def test_the_wheel_for_devices_holds_what_a_client_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of the package."""
    hatch = ModuleType("interface")
    hatch.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", hatch)
    spec = spec_from_file_location("hook", ROOT / "packaging" / "device" / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    tell = "import sys, sdfeel.live.device; print(*(m for m in sys.modules if m[:6] == 'sdfeel'))"
    done = finished([sys.executable, "-c", tell], check=True)
    loaded = {SOURCE.parent.joinpath(*name.split(".")) for name in done.stdout.split()}
    shipped = {path for path in hook.modules() if path.suffix == ".py"}
    named = {path.parent if path.stem == "__init__" else path.with_suffix("") for path in shipped}
    assert named == loaded


@pytest.mark.slow
def test_the_wheel_for_devices_installs_into_an_empty_environment(tmp_path: Path) -> None:
    machine = own_machine(tmp_path)
    command = [*machine.command, "-c", "from sdfeel.live.device import main; main()", "--version"]
    done = finished(command, env={})
    assert (done.stdout.strip(), done.stderr) == (__version__, "")
    assert machine.installed is not None
    names = {path.name.lower() for path in machine.installed.iterdir()}
    assert not names & {"torch", "pydantic", "networkx", "prometheus_client"}


def test_the_release_is_described_completely_and_in_one_voice() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {
        "authors",
        "classifiers",
        "description",
        "keywords",
        "license",
        "readme",
        "urls",
    } <= set(project)
    assert all(re.match(r"https://[a-z]+\.org/", url) for url in project["urls"].values())
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M) == [
        __version__
    ]
    changes = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes[0] in (__version__, "Unreleased")
    assert __version__ in changes


@pytest.mark.slow
def test_sdist_and_wheel_work_where_there_is_no_checkout(tmp_path: Path) -> None:
    """The wheel is built from what the sdist has."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    finished([*build, "-t", "sdist"], cwd=ROOT, check=True)
    (source,) = tmp_path.glob("sdfeel-*.tar.gz")
    shutil.unpack_archive(source, tmp_path, filter="data")
    tree = tmp_path / source.name.removesuffix(".tar.gz")
    finished([*build, "-t", "wheel"], cwd=tree, check=True)
    (wheel,) = tmp_path.glob("sdfeel-*.whl")
    assert wheel.name.startswith(f"sdfeel-{__version__}-")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(installed)
    kept = {str(path.relative_to(SOURCE.parent)) for path in shipped()}
    found = {
        str(p.relative_to(installed)) for p in (installed / "sdfeel").rglob("*") if p.is_file()
    }
    assert found == kept
    settings = ["-s", "training.iterations=5", "-s", "network.clients=6", "-s", "network.servers=2"]
    told = "import sdfeel; print(sdfeel.__file__); from sdfeel.cli import main; main()"
    command = [sys.executable, "-c", told, "run", *settings, "--out", "tried", "--json"]
    env = {**os.environ, "PYTHONPATH": str(installed), "MPLBACKEND": "Agg"}
    done = finished(command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(installed)
