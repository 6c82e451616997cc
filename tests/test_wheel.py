"""What ships: types, templates and data, no keys and no developers' tools; and what it needs."""

import ast
import re
import sys
import tomllib
from pathlib import Path

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
# Modules that come with a package of another name.
TOGETHER = {"markupsafe": "jinja2", "grpc": "grpcio", "anyio": "starlette", "PIL": "matplotlib"}
IF_THERE = {"flwr", "ray"}  # adapters to what a user has installed


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            tops = {name.split(".")[0] for name in names} - {"sdfeel", *sys.stdlib_module_names}
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
