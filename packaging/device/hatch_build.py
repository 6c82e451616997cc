"""Which modules a client on a device imports: those are what its wheel holds."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # hatch brings it

SOURCE = Path(__file__).parents[2] / "src"
ENTRY = "sdfeel.live.device"


class DeviceModules(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Puts them into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        found = {str(path): str(path.relative_to(SOURCE)) for path in modules()}
        build_data["force_include"].update(found)


def modules() -> list[Path]:
    """The files of the entry and of all that it imports when it is loaded."""
    found: dict[str, Path] = {}
    waiting = [ENTRY]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(path)]
    return [*sorted(found.values()), SOURCE / "sdfeel" / "py.typed"]


def _file(name: str) -> Path | None:
    path = SOURCE.joinpath(*name.split("."))
    if name.split(".")[0] != "sdfeel":
        return None
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Imports of a module itself; not those for type checkers, and not those inside functions."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
