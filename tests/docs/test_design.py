"""DESIGN and CONTRIBUTING say what the code does, where that can be checked cheaply."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import ANYTHING, LAYERS, SOURCE

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["DESIGN.md", "CONTRIBUTING.md", "README.md"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_is_named_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", text)
    missing = [path for path in named if not any((at / path).exists() for at in (SOURCE, ROOT))]
    assert not missing


def test_the_table_of_packages_is_complete() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == (set(LAYERS) | ANYTHING) - {"version", "__init__", "__main__"}


def test_the_picture_of_the_layers_shows_every_package() -> None:
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"## The layers\n+```\n(.*?)```", text, flags=re.DOTALL)
    shown = set(re.findall(r"\w+", picture))
    assert set(LAYERS) - {"version"} <= shown


def calls(tree: ast.AST) -> Iterator[str]:
    """What is called, as far as a name tells: `View`, `scheme.work`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_only_decide_makes_views_and_asks_schemes() -> None:
    asked = re.compile(r"(^|[._])scheme\.(work|mix|lanes)$|^View$")
    found = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if who := [name for name in calls(tree) if asked.search(name)]:
            found[path.relative_to(SOURCE).as_posix()] = sorted(set(who))
    assert found == {
        "core/decide.py": ["View", "scheme.lanes", "self.scheme.mix", "self.scheme.work"],
        "schemes/__init__.py": ["scheme.lanes"],  # what its own schemes are, told by the table
    }
