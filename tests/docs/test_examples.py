"""The examples and notebooks run as they are, in an empty directory, and say what they promise."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import site_pages

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = {  # and what the last lines must say
    "own_model": r"accuracy 0\.[6-9]",
    "own_scheme": r"\| OnePair \|(.|\n)*each seed compared with itself",
    "text": r"accuracy (0\.[7-9]|1\.0)",
    "lora": r"464 of 2,932 numbers travel; accuracy (0\.[7-9]|1\.0)",
    "regression": r"mean absolute error 0\.\d\d -> 0\.[0-3]",
    "optuna_search": r"70% after 0\.\d+ virtual seconds with \{'tau1'",
    "deployment": r"deployed  [0-9a-f]{16} in",
}
SLOW = {"deployment"}


def marked(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.fixture
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.usefixtures("_empty", "_undrawn")
@pytest.mark.parametrize("name", [marked(name) for name in PROGRAMS])
def test_an_example_runs_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "optuna_search":
        pytest.importorskip("optuna")
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert re.search(PROGRAMS[name], capsys.readouterr().out)


@pytest.mark.usefixtures("_empty", "_undrawn")
@pytest.mark.parametrize("path", site_pages.notebooks(), ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_in_order(path: Path) -> None:
    names: dict[str, object] = {"__name__": "notebook"}
    for kind, text in site_pages.cells(path):
        if kind == "code":
            exec(compile(text, path.name, "exec"), names)


def test_every_example_is_on_the_page_and_none_is_long() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert re.findall(r"<!-- example: (\w+)\.py -->", page) == [*PROGRAMS]
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 60
        assert not re.search(r"sdfeel\.\w+ import|import sdfeel\.", text), "from the front door"


def test_notebooks_keep_no_results() -> None:
    assert len(site_pages.notebooks()) == 3
    for path in site_pages.notebooks():
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs")


def test_the_site_names_every_page_and_reads_every_command() -> None:
    contents = (ROOT / "mkdocs.yml").read_text()
    for name in re.findall(r"([\w/]+\.md)$", contents, re.MULTILINE):
        made = name in (*site_pages.TOP, *site_pages.GENERATED)
        assert made or (ROOT / "docs" / name).is_file(), name
    told = site_pages.commands()
    assert "## sdfeel export" in told
    assert "| `--target` |" in told
    assert "$ sdfeel sweep scheme.tau1=1,3,20" in told
    assert "::: sdfeel.api.Run" in site_pages.api()
