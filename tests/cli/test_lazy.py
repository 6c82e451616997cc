"""Commands are imported only when called, and help says what they say themselves."""

import json
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import pytest

from sdfeel import cli
from sdfeel.__main__ import main
from sdfeel.cli.lazy import Home
from tests.waiting import finished


@pytest.mark.parametrize("words", cli.COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(words: str) -> None:
    home: Home = cli.COMMANDS[words]
    told = home.command(words.split()[-1]).help
    assert " ".join(told.split("\n\n")[0].split()) == home.help


HELP_OF_ALL = """
import io, json, sys
from contextlib import redirect_stdout
from typer.main import get_command
from sdfeel.cli import COMMANDS, app

def helped(*words):
    with redirect_stdout(io.StringIO()) as told:
        get_command(app)([*words, "--help"], "sdfeel", standalone_mode=False)
    print(json.dumps([" ".join(words), told.getvalue(), [n for n in HEAVY if n in sys.modules]]))

helped()
for name, home in COMMANDS.items():
    helped(name)
    command = getattr(sys.modules[home.module], name)
    for each in getattr(command, "registered_commands", []):
        helped(name, each.name or each.callback.__name__)
"""
HEAVY = ["torch", "matplotlib", "networkx", "grpc", "cryptography", "starlette"]


def test_every_help_has_examples_and_imports_only_what_it_needs() -> None:
    script = f"HEAVY = {HEAVY}\n{HELP_OF_ALL}"
    done = finished([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {words for words, _, _ in told} >= {
        *cli.COMMANDS,
        "bench plan",
        "deploy local",
        "data show",
        "",
    }
    for words, text, loaded in told:
        assert not loaded, f"sdfeel {words} --help imports {loaded}"
        assert f"sdfeel {words}".strip() in text
        assert "Example" in text or not words, f"sdfeel {words} --help has no example"


def test_ctrl_c_while_the_code_is_being_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, name: str, path: Any, target: Any = None) -> None:
            if name == "sdfeel.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "sdfeel.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
