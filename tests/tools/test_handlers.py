"""Whatever well-formed calls others make, an edge server keeps serving, even when restarted."""

import ast
import random
from itertools import chain
from pathlib import Path

import pytest

import sdfeel.live
from sdfeel.live.process import KINDS
from sdfeel.schemes import SDFeel
from tests.live.village import Village, network
from tests.tools.handlers import CALLS, Liars, play


# `python -m tests.tools.handlers` plays as many games as one likes.
@pytest.mark.parametrize("seed", range(4))
def test_any_calls_of_others_leave_a_server_that_serves(seed: int) -> None:
    counts = play(seed, 150)
    assert counts["answered"] > 2
    assert counts["refused"] > 10


def asked_for(tree: ast.AST) -> set[str]:
    """Kinds of calls that code tells apart: whatever it compares `kind` with."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            inside = list(ast.walk(node))
            if any(isinstance(each, ast.Name) and each.id == "kind" for each in inside):
                texts = (each.value for each in inside if isinstance(each, ast.Constant))
                found |= {text for text in texts if isinstance(text, str)}
    return found - {"operator", "client", "edge"}


def test_every_call_that_a_server_answers_is_made_by_everyone_who_may(tmp_path: Path) -> None:
    files = [Path(sdfeel.live.__path__[0]) / name for name in ("process.py", "edge")]
    sources = chain(files[:1], files[1].glob("*.py"))
    handled = set.union(*(asked_for(ast.parse(path.read_text())) for path in sources))
    assert {"work", "epoch", "backup", "lock", "model"} <= handled <= set(CALLS)
    assert set(chain(*KINDS.values())) <= handled
    village = Village(SDFeel(), network(), tmp_path)
    liars = Liars(random.Random(0), village, 0, 1)
    made = {(who.role, kind) for who, kind, *_ in (liars.message(0) for _ in range(4000))}
    assert {(role, kind) for role, kinds in KINDS.items() for kind in kinds} <= made
