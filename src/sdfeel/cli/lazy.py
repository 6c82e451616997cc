"""Commands, and what they need, are imported when called, so that help need not wait for torch."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Home:
    """The module that holds a command (or a group) under its name, and its sentence in the help."""

    module: str
    help: str

    def command(self, name: str) -> Any:
        """Import it."""
        found = getattr(import_module(self.module), name)
        app = found if isinstance(found, typer.Typer) else _alone(name, found)
        command = typer.main.get_command(app)
        command.name = name
        return command


def _alone(name: str, function: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(name)(function)
    return app


def lazy(homes: Mapping[str, Home]) -> type[TyperGroup]:
    """The class of a group that imports a command of `homes` once it is called."""

    class Lazy(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, command, rest = super().resolve_command(ctx, args)
            home = homes.get(name or "")
            return name, command if name is None or home is None else home.command(name), rest

    return Lazy


def announce(app: typer.Typer, homes: Mapping[str, Home]) -> None:
    """Make the commands known to help, completion and suggestions without importing them."""
    for name, home in homes.items():
        app.command(name, help=home.help)(_never_called)


def _never_called() -> None:
    """Stands for a command until it is imported."""


@contextmanager
def later() -> Iterator[None]:
    """Our own modules that are imported inside this context load only when first used.

    Import a module, not something in it: `from sdfeel.run import session`.
    """
    finder = _Later()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.promised:  # everybody else imports the module itself
            package, _, own = name.rpartition(".")
            del sys.modules[name]
            delattr(sys.modules[package], own)


class _Promised(ModuleType):
    """Stands for a module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the machinery of imports looks for those
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _Later(MetaPathFinder, Loader):
    """Promises our own modules; packages are imported."""

    def __init__(self) -> None:
        self.promised: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname.startswith("sdfeel.") else None
        if found is None or found.submodule_search_locations is not None:
            return None
        self.promised.append(fullname)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Promised(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""
