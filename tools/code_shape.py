"""The shape of the code: sizes, repeated names, and what the start of a run crosses.

python tools/code_shape.py          the table
python tools/code_shape.py --names  also where repeated names are, small files, the path of a start
python tools/code_shape.py --tree   the start of a run as a tree: who calls whom, in order
"""

import argparse
import ast
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "sdfeel"
SMALL = 60  # lines


def sources() -> dict[str, str]:
    """Every file of the package, by its path below it."""
    return {
        str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


def lengths(texts: dict[str, str]) -> dict[str, int]:
    """Lines of every file."""
    return {name: len(text.splitlines()) for name, text in texts.items()}


def repeated_classes(texts: dict[str, str]) -> dict[str, list[str]]:
    """Class names that are defined more than once, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def module(name: str) -> str:
    """The dotted name of a file."""
    return ".".join(("sdfeel", *Path(name).with_suffix("").parts)).removesuffix(".__init__")


def imported(text: str) -> Iterator[str]:
    """Dotted names that a file imports, also inside functions; for `from a import b`, a and a.b."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(texts: dict[str, str]) -> dict[str, set[str]]:
    """Who imports each file."""
    modules = {module(name): name for name in texts}
    found: dict[str, set[str]] = {name: set() for name in texts}
    for name, text in texts.items():
        for dotted in imported(text):
            if dotted in modules and modules[dotted] != name:
                found[modules[dotted]].add(name)
    return found


def inner_imports(texts: dict[str, str]) -> int:
    """Imports inside functions."""
    return sum(
        isinstance(inner, ast.Import | ast.ImportFrom)
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    )


class Crossed(NamedTuple):
    """Functions that a run has entered."""

    start: set[CodeType]  # until there is a session
    records: set[CodeType]  # of these, constructors and properties
    compiling: set[CodeType]  # of these, only to find or make the model's native code
    rest: set[CodeType]  # of these, all others
    first: set[CodeType]  # until the first round is done
    tree: list[tuple[int, CodeType]]  # the start: each function at its first call, with its depth


def crossed() -> Crossed:
    """The functions that a run enters if it does what `sdfeel run` does without a file.

    Its engine is compiled beforehand, so that a cold cache of native code does not count.
    """
    from sdfeel.core.events import Round
    from sdfeel.engine.native.available import available
    from sdfeel.experiment.loading import load
    from sdfeel.run.session import start

    entered: set[CodeType] = set()
    beside: set[CodeType] = set()  # entered while nothing is compiled
    tree: list[tuple[int, CodeType]] = []
    compiling = depth = 0

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal compiling, depth
        if frame.f_code is available.__code__ and event in ("call", "return"):
            compiling += 1 if event == "call" else -1
        if event == "call":
            if frame.f_code not in entered:
                tree.append((depth, frame.f_code))
            entered.add(frame.f_code)
            if not compiling:
                beside.add(frame.f_code)
        if event in ("call", "return") and ours({frame.f_code}):
            depth += 1 if event == "call" else -1

    with tempfile.TemporaryDirectory() as directory:
        experiment = load(None, ())
        start(experiment, Path(directory) / "warm").prepared.engine.close()
        sys.setprofile(enter)
        try:
            session = start(experiment, Path(directory) / "run")
            sys.setprofile(None)
            before, outside, begun_by = set(entered), set(beside), tree[:]
            sys.setprofile(enter)
            for event in session:
                if isinstance(event, Round):
                    break
        finally:
            sys.setprofile(None)
    begun, compiled = ours(before), ours(before - outside)
    records = (begun & of_records()) - compiled
    branches = [(level, code) for level, code in begun_by if code in begun]
    rest = begun - records - compiled
    return Crossed(begun, records, compiled, rest, ours(entered), branches)


def of_records() -> set[CodeType]:
    """Constructors and properties: where a reader looks up what a record holds."""
    kinds = (
        thing
        for name, module in list(sys.modules.items())
        if name.startswith("sdfeel")
        for thing in vars(module).values()
        if isinstance(thing, type)
    )
    found: set[CodeType] = set()
    for name, member in ((name, member) for kind in kinds for name, member in vars(kind).items()):
        getter = getattr(member, "fget", None) or getattr(member, "func", None)
        code = getattr(getter or member, "__code__", None)
        if code is not None and (getter is not None or name.startswith("__")):
            found.add(code)
    return found


def ours(codes: set[CodeType]) -> set[CodeType]:
    """The functions of the package among them, without bodies of modules and classes."""
    return {
        code
        for code in codes
        if Path(code.co_filename).is_relative_to(SOURCE)
        and not code.co_name.startswith("<")
        and code.co_flags & 0x2  # a function's own locals: not the body of a class
    }


def files(codes: set[CodeType]) -> set[str]:
    """The files in which these functions are defined."""
    return {str(Path(code.co_filename).relative_to(SOURCE)) for code in codes}


def counted(codes: set[CodeType]) -> str:
    """How many there are, and in how many files."""
    return f"{len(codes)} functions in {len(files(codes))} files"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--names", action="store_true", help="also list what was counted")
    parser.add_argument("--tree", action="store_true", help="only print the start of a run")
    asked = parser.parse_args()
    if asked.tree:
        for level, code in crossed().tree:
            place = Path(code.co_filename).relative_to(SOURCE)
            print(f"{'  ' * level}{place}: {code.co_qualname}")
        return
    texts = sources()
    lines = lengths(texts)
    packages = [name for name in lines if name.endswith("__init__.py") and lines[name] < 10]
    small = [name for name in lines if lines[name] < SMALL and name not in packages]
    largest = max(lines, key=lambda name: lines[name])
    repeated = repeated_classes(texts)
    single = sorted(name for name, users in importers(texts).items() if len(users) == 1)
    path = crossed()
    table = {
        "files": f"{len(lines)} ({len(packages)} of them only name a package)",
        "lines": f"{sum(lines.values()):,}",
        "median file": f"{statistics.median(lines.values()):g}",
        "largest file": f"{lines[largest]} ({largest})",
        f"files under {SMALL} lines": f"{len(small)} (without those that only name a package)",
        "files with one importer": f"{len(single)}",
        "imports inside functions": f"{inner_imports(texts)}",
        "class names defined more than once": f"{len(repeated)}",
        "the start of a run crosses": counted(path.start),
        "    to construct and read records": counted(path.records),
        "    to compile the model": counted(path.compiling),
        "    for all else": counted(path.rest),
        "with its first round": counted(path.first),
    }
    width = max(map(len, table))
    for key, value in table.items():
        print(f"{key:<{width}}  {value}")
    if asked.names:
        print("\nrepeated class names")
        for name, places in repeated.items():
            print(f"  {name}: {', '.join(places)}")
        print("\nsmall files")
        for name in small:
            print(f"  {lines[name]:3} {name}")
        print("\nfiles with one importer\n  " + "\n  ".join(single))
        for title, part in (
            ("the start of a run, without records and without compiling", path.rest),
            ("records that it constructs and reads", path.records),
            ("how it compiles the model", path.compiling),
        ):
            print(f"\n{title}")
            for name in sorted(files(part)):
                inside = sorted(
                    code.co_qualname for code in part if code.co_filename == str(SOURCE / name)
                )
                print(f"  {name} ({len(inside)}): {', '.join(inside)}")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.path.insert(0, str(SOURCE.parent))
    main()
