"""Outside `schemes/` and their contract, no code asks which scheme it has: schemes say it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdfeel.schemes import SCHEMES

SOURCE = Path(__file__).parents[1] / "src" / "sdfeel"
CONTRACT = SOURCE / "core" / "scheme.py"  # reads what a user's own scheme need not declare
CLASSES = {kind.__name__ for kind in SCHEMES.values()} | {"TwoLevels", "Scheme"}


def is_a_scheme(node: ast.expr) -> bool:
    """`scheme`, `self.scheme`, `ready.scheme`: what holds a scheme or its name."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name in ("scheme", "kind", "scheme_name")


def names(node: ast.expr) -> set[str]:
    """The texts in an expression: itself, or those of a tuple, a list or a set."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {str(part.value) for part in parts if isinstance(part, ast.Constant)}


def checks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that asks which scheme this is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            first, second = node.args[:2]
            asked = {each.id for each in ast.walk(second) if isinstance(each, ast.Name)}
            if node.func.id in ("isinstance", "issubclass") and asked & CLASSES:
                yield node.lineno, "isinstance of a scheme"
            if node.func.id in ("getattr", "hasattr") and is_a_scheme(first):
                yield node.lineno, f"{node.func.id} of a scheme"
        if isinstance(node, ast.Compare):
            told = set().union(*map(names, [node.left, *node.comparators]))
            if told & set(SCHEMES):
                yield node.lineno, "the name of a scheme is compared"
        if isinstance(node, ast.MatchClass) and getattr(node.cls, "id", "") in CLASSES:
            yield node.lineno, "a scheme is matched"


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(scheme, SDFeel)",
        "isinstance(x, (int, FedAvg))",
        "getattr(ready.scheme, 'staleness', 'hearsay')",
        "hasattr(scheme, 'tau1')",
        "experiment.scheme.name == 'fedavg'",
        "name in ('sd-feel', 'async-sd-feel')",
        "'d2' != name",
    ],
)
def test_a_check_is_found(line: str) -> None:
    assert list(checks(ast.parse(line)))


def test_nobody_asks_which_scheme_it_has() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "schemes" and path != CONTRACT
        for line, what in checks(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "let schemes declare it (core/scheme.py, core/tolerance.py)"
