"""Imports point down only, and looking at the help does not wait for torch."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import finished

SOURCE = Path(__file__).parents[1] / "src" / "sdfeel"

# What each package may import of the others. Everyone may import itself.
LAYERS: dict[str, set[str]] = {
    "core": set(),
    "schemes": {"core"},
    "radio": {"core"},
    "theory": {"core"},
    "data": {"core"},
    "models": {"core"},
    "engine": {"core", "data", "models"},
    "sim": {"core", "engine"},
    "live": {"core", "engine"},
    "experiment": {"core", "schemes", "radio", "data", "models", "engine", "sim"},
    "run": {"core", "schemes", "theory", "data", "models", "radio", "engine", "sim", "experiment"},
    "planning": {
        "core",
        "schemes",
        "theory",
        "data",
        "models",
        "engine",
        "sim",
        "experiment",
        "run",
    },
    "deploy": {"core", "schemes", "data", "models", "engine", "sim", "live", "experiment", "run"},
    "report": {"core", "schemes", "theory", "experiment", "run", "planning"},
    "figures": {"core", "schemes", "theory", "data", "sim", "experiment", "run", "report"},
    "dashboard": {"core", "schemes", "experiment", "run", "planning", "deploy", "report"},
    "bench": {
        "sim",
        "core",
        "schemes",
        "data",
        "models",
        "engine",
        "live",
        "experiment",
        "run",
        "planning",
        "deploy",
    },
    "show_runs": {"core", "experiment", "run", "report"},
    "commands": {
        "show_runs",
        "core",
        "schemes",
        "engine",
        "experiment",
        "run",
        "planning",
        "report",
    },
    "api": {
        "commands",
        "show_runs",
        "core",
        "schemes",
        "radio",
        "data",
        "models",
        "engine",
        "sim",
        "experiment",
        "run",
        "planning",
        "report",
    },
    "version": set(),
}
ANYTHING = {"cli", "__init__", "__main__"}  # the command line, and the front door
THE_ALGORITHM = ("core", "schemes")  # NumPy, networkx and the standard library

PACKAGES = sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")})
LAYERED = [name for name in (p.removesuffix(".py") for p in PACKAGES) if name not in ANYTHING]


def imports(package: str) -> Iterator[tuple[str, str]]:
    """(where, the module's dotted name) of every import of a package, also inside functions."""
    single = SOURCE / f"{package}.py"
    for path in [single] if single.exists() else sorted((SOURCE / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                yield from ((where, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{where}: write imports in full"
                if node.module == "sdfeel":
                    yield from ((where, f"sdfeel.{alias.name}") for alias in node.names)
                else:
                    yield where, node.module or ""


@pytest.mark.parametrize("package", LAYERED)
def test_imports_point_down(package: str) -> None:
    assert package in LAYERS, f"give {package} its place in LAYERS"
    allowed = {package, *LAYERS[package]}
    if package != "version":
        allowed.add("version")
    for where, name in imports(package):
        if name.split(".")[0] == "sdfeel":
            assert name.count(".") > 0, f"{where}: import from a package, not from the front door"
            used = name.split(".")[1]
            assert used in allowed, f"{where}: {package} may not import sdfeel.{used}"


@pytest.mark.parametrize("package", THE_ALGORITHM)
def test_the_algorithm_needs_no_more_than_arrays_and_graphs(package: str) -> None:
    allowed = {*sys.stdlib_module_names, "sdfeel", "numpy", "networkx"}
    for where, name in imports(package):
        assert name.split(".")[0] in allowed, f"{where}: {package} may not import {name}"


def test_the_table_has_no_circle() -> None:
    done: set[str] = set()
    while ready := {name for name, below in LAYERS.items() if name not in done and below <= done}:
        done |= ready
    assert done == set(LAYERS)


def loaded(program: str) -> set[str]:
    """All modules that are in memory when `program` has run in a fresh Python."""
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    done = finished([sys.executable, "-c", tell + program], check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "program",
    [
        "import sdfeel",
        "import sdfeel.schemes, sdfeel.experiment.schema",
        "import sys; sys.argv = ['sdfeel', '--help']; import sdfeel.cli; sdfeel.cli.main()",
    ],
    ids=["import", "schemes and experiment", "help"],
)
def test_nobody_waits_for_torch_or_matplotlib(program: str) -> None:
    assert not loaded(program) & {"torch", "matplotlib"}


def test_reports_are_made_from_logs_alone() -> None:
    names = [path.stem for path in (SOURCE / "report").glob("*.py") if path.stem != "__init__"]
    modules = loaded("import " + ", ".join(f"sdfeel.report.{name}" for name in names))
    assert not {name for name in modules if name.startswith(("torch", "sdfeel.sim", "sdfeel.live"))}


def test_a_client_needs_nothing_that_a_small_device_cannot_carry() -> None:
    found = loaded("import sdfeel.live.device")
    assert not found & {"torch", "pydantic", "networkx", "prometheus_client"}
