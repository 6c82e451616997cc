"""Whatever the documents tell a reader to type works, in the order in which it is written."""

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import site_pages
from typer.core import TyperGroup

from sdfeel.cli import COMMANDS
from tests.docs.snippets import Runner, blocks, execute
from tests.waiting import finished

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@pytest.fixture
def _reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty directory, and no trace of the modules that a document made there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("SDFEEL_DATA", raising=False)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@every_document
def test_nothing_below_the_package_itself_is_imported(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert not re.findall(r"^(?:from|import) sdfeel\.\S+", text, re.MULTILINE)


@pytest.mark.slow
@every_document
@pytest.mark.usefixtures("_reader")
def test_the_snippets_run(document: Path, request: pytest.FixtureRequest) -> None:
    if document.name != "README.md":
        request.getfixturevalue("_undrawn")
    runner = Runner(document)
    for block in blocks(document.read_text(encoding="utf-8")):
        if block.skipped is None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                runner.run(block)


@every_document
def test_what_is_not_run_has_a_reason(document: Path) -> None:
    for block in blocks(document.read_text(encoding="utf-8")):
        assert block.skipped != "", f"{document.name}, line {block.line}: not run, but why?"


COMMAND = re.compile(r"(?:`|^\$ )(sdfeel [^`\n]*)", re.MULTILINE)


@every_document
def test_every_command_that_is_named_takes_what_it_is_given(document: Path) -> None:
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in COMMAND.findall(text):
        words = line.split()[1:]
        command = COMMANDS[words[0]].command(words[0]) if words and words[0] in COMMANDS else None
        while isinstance(command, TyperGroup) and len(words) > 1 and words[1] in command.commands:
            command, words = command.commands[words[1]], words[1:]
        if command is None:
            assert not words or words[0].startswith("-"), f"{document.name}: `{line}`"
            continue
        if isinstance(command, TyperGroup) and len(words) > 1:
            assert words[1].startswith("-"), f"{document.name}: `{line}`"
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= {*known, "--help", "-h"}, f"{document.name}: `{line}`"


def test_the_command_is_installed() -> None:
    script = Path(sys.executable).with_name("sdfeel")
    done = finished([script, "--version"], check=True)
    assert done.stdout.startswith("sdfeel ")


@pytest.mark.parametrize("command", ["sdfeel run --set seed", "sdfeel nonsense | cat", "ls no"])
def test_a_line_that_fails_is_noticed(command: str) -> None:
    status, output = execute(command)
    assert status != 0
    assert output


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        made = target in site_pages.GENERATED and document.parent.name == "docs"
        assert made or (document.parent / target).exists(), (
            f"{document.name} links to a missing {target}"
        )
