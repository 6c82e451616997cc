"""DESIGN, CONTRIBUTING, README and the ADRs are true, where that can be checked cheaply."""

import ast
import re
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import ANYTHING, LAYERS, SOURCE
from tests.waiting import finished

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
DOCUMENTS = [ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md", ROOT / "README.md", *DECISIONS]
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
PAGES = [*DOCUMENTS, *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
NAMED_FILE = re.compile(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|hpp|json|md|html))?)`")
NAMED_IN_CODE = re.compile(r"(?<![\w./{}*-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:py|hpp))\b")
EXAMPLES = {"mine.py"}  # of users
NAMED_PROGRAM = re.compile(r"python\s+-m\s+([a-z_0-9.]+)")
NAMED_TARGET = re.compile(r"`make\s+([a-z-]+)|^(?:\$ )?make ([a-z-]+)", re.MULTILINE)
NAMED_FIELD = re.compile(r"`([A-Z][A-Za-z]+)\.([a-z_]+)`")


def parsed(containing: str) -> Iterator[tuple[Path, ast.Module]]:
    """The files of the package that match a pattern: parsing all of them takes seconds."""
    pattern = re.compile(containing)
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if pattern.search(text):
            yield path, ast.parse(text)


@each_document
def test_every_file_that_is_named_exists(path: Path) -> None:
    named = NAMED_FILE.findall(path.read_text(encoding="utf-8"))
    assert not [name for name in named if not any((at / name).exists() for at in (SOURCE, ROOT))]


def test_every_file_that_the_code_names_exists() -> None:
    """In comments and docstrings: whoever renames a file finds those who point to it."""
    homes = (SOURCE, ROOT / "tests", ROOT / "tools")
    there = [path.as_posix() for home in homes for path in home.rglob("*.*")]
    lost = []
    for path in SOURCE.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            for name in NAMED_IN_CODE.findall(line):
                if name not in EXAMPLES and not any(at.endswith(f"/{name}") for at in there):
                    lost.append(f"{path.relative_to(SOURCE)}: {name}")
    assert not lost


@each_page
def test_every_program_that_is_named_exists(path: Path) -> None:
    named = NAMED_PROGRAM.findall(path.read_text(encoding="utf-8"))
    homes = [ROOT / "src" if name.startswith("sdfeel") else ROOT for name in named]
    at = [home / name.replace(".", "/") for home, name in zip(homes, named, strict=True)]
    assert not [path for path in at if not (path.is_dir() or path.with_suffix(".py").exists())]


@each_page
def test_every_target_that_is_named_exists(path: Path) -> None:
    named = {a or b for a, b in NAMED_TARGET.findall(path.read_text(encoding="utf-8"))}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_the_installation_page_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page.partition("## Extras")[2].partition("## ")[0]
    for_developers = {"dev", "docs"}
    extras = set(project["optional-dependencies"]) - for_developers
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras


@each_document
def test_every_field_that_is_named_exists(path: Path) -> None:
    named = NAMED_FIELD.findall(path.read_text(encoding="utf-8"))
    assert not [f"{kind}.{field}" for kind, field in named if field not in fields().get(kind, ())]


@cache
def fields() -> dict[str, set[str]]:
    """The fields and methods of every class that a document names, by its name."""
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    kinds = {kind for text in texts for kind, _ in NAMED_FIELD.findall(text)}
    found: dict[str, set[str]] = {}
    for _, tree in parsed(rf"class ({'|'.join(kinds)})\b"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = {
                    part.target.id
                    for part in node.body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                }
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                found.setdefault(node.name, set()).update(fields | methods)
    return found


def test_the_table_of_packages_is_complete() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == (set(LAYERS) | ANYTHING) - {"version", "__init__", "__main__"}


def test_the_table_of_packages_names_nothing_that_is_forbidden() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("| `"):
            _, packages, _, may, _ = line.split("|")
            allowed, _, forbidden = may.partition(" but ")
            for package in set(re.findall(r"`(\w+)`", packages)) & set(LAYERS):
                assert set(re.findall(r"`(\w+)`", allowed)) <= LAYERS[package], package
                assert not set(re.findall(r"`(\w+)`", forbidden)) & LAYERS[package], package


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_lists_every_target_with_what_it_does() -> None:
    told = finished(["make", "--no-print-directory", "help"], cwd=ROOT)
    assert told.returncode == 0, told.stderr
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (named,) = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert {line.split()[1] for line in told.stdout.splitlines()} == set(named.split())


def test_every_decision_has_its_number() -> None:
    for number, path in enumerate(DECISIONS, 1):
        text = path.read_text(encoding="utf-8")
        assert path.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number}. ")


def test_the_picture_of_the_layers_shows_every_package() -> None:
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"## The layers\n+```\n(.*?)```", text, flags=re.DOTALL)
    shown = set(re.findall(r"\w+", picture))
    assert set(LAYERS) - {"version"} <= shown


def calls(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """What of these is called, as far as its name shows: `View`, `scheme.work`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in names:
                yield ast.unparse(node.func)


def test_only_decide_makes_views_and_asks_schemes() -> None:
    asked = re.compile(r"(^|[._])scheme\.(work|mix|lanes)$|^View$")
    found = {}
    for path, tree in parsed(r"\b(View|scheme\.(work|mix|lanes))\("):
        called = calls(tree, {"work", "mix", "lanes", "View"})
        if who := [name for name in called if asked.search(name)]:
            found[path.relative_to(SOURCE).as_posix()] = sorted(set(who))
    assert found == {
        "core/decide.py": ["View", "scheme.lanes", "self.scheme.mix", "self.scheme.work"],
        "schemes/__init__.py": ["scheme.lanes"],  # what the table says about its own schemes
    }
