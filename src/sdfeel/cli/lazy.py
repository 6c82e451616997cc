"""Groups of commands that are imported only when called, so that help need not wait for torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
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
