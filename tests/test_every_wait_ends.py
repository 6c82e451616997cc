"""No test, and no tool among the tests, waits without a bound: `tests/waiting.py` has the ways."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HOME = HERE / "waiting.py"
STARTS = {"run", "call", "check_call", "check_output", "Popen"}  # of subprocess
AWAITED = {"wait", "communicate", "join", "get", "recv", "acquire"}  # by method
BOUNDS = {"timeout", "blocking", "block"}
# Files without any of this need not be parsed.
SUSPECT = re.compile(
    r"subprocess|asyncio\.run|waitpid|communicate\(|\.(wait|join|get|recv|acquire)\(\s*\)"
)


def unbounded(text: str) -> Iterator[tuple[int, str]]:
    """Line and reason of every call that may wait for ever."""
    tree = ast.parse(text)
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    # A process that is a context is waited for when its block is left.
    contexts = {id(node.context_expr) for node in ast.walk(tree) if isinstance(node, ast.withitem)}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "subprocess"
        for alias in node.names
        if alias.name in STARTS
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg for keyword in node.keywords}
        match node.func:
            case ast.Attribute(value=ast.Name(id="subprocess"), attr=name) if name in STARTS:
                if id(node) in contexts if name == "Popen" else "timeout" not in given:
                    yield node.lineno, f"subprocess.{name}"
            case ast.Name(id=name) if name in imported:
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="run"):
                if not _is_wait_for(node.args[:1]):
                    yield node.lineno, "asyncio.run"
            case ast.Attribute(value=ast.Name(id="os"), attr="waitpid"):
                yield node.lineno, "os.waitpid"
            case ast.Attribute(attr=name) if name in AWAITED:
                # What is awaited, a coroutine's, is bounded where its story is run.
                if not node.args and not given & BOUNDS and id(node) not in awaited:
                    yield node.lineno, f".{name}()"


def _is_wait_for(arguments: list[ast.expr]) -> bool:
    match arguments:
        case [ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="wait_for"))]:
            return True
    return False


def test_every_wait_in_the_tests_has_an_end() -> None:
    found = [
        f"{path.relative_to(HERE.parent)}:{line}: {what}"
        for path in sorted(HERE.rglob("*.py"))
        if path != HOME
        if SUSPECT.search(text := path.read_text(encoding="utf-8"))
        for line, what in unbounded(text)
    ]
    assert not found, "these may wait for ever; use tests/waiting.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "call",
    [
        "subprocess.run(words)",
        "subprocess.check_output(words, text=True)",
        "with subprocess.Popen(words) as process:\n    pass",
        "from subprocess import run\nrun(words)",
        "process.wait()",
        "process.communicate()",
        "thread.join()",
        "things.get()",
        "pipe.recv()",
        "lock.acquire()",
        "os.waitpid(child, 0)",
        "asyncio.run(story())",
    ],
)
def test_a_call_that_may_wait_for_ever_is_found(call: str) -> None:
    assert SUSPECT.search(call)
    assert len(list(unbounded(call))) == 1


@pytest.mark.parametrize(
    "call",
    [
        "subprocess.run(words, timeout=9)",
        "process = subprocess.Popen(words)",
        "process.wait(9)",
        "process.communicate(timeout=9)",
        "thread.join(9)",
        "' '.join(words)",
        "things.get(timeout=9)",
        "given.get(key)",
        "asyncio.run(asyncio.wait_for(story(), 9))",
        "async def story():\n    await event.wait()",
    ],
)
def test_a_call_that_ends_is_left_alone(call: str) -> None:
    assert not list(unbounded(call))
