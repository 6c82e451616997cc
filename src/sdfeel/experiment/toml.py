"""Writes TOML, which the standard library only reads: plain tables, with a comment per key."""

from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit.items import InlineTable


def document(tables: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """`tables` as TOML; `comments["section.key"]` stands above its key. None means "not set".

    >>> print(document({"seed": 1, "model": {"name": "mlp", "file": None}}, {"seed": "any number"}))
    # any number
    seed = 1
    <BLANKLINE>
    [model]
    name = "mlp"
    # file = (not set)
    <BLANKLINE>
    """
    notes = comments or {}
    lines = []
    for key, value in tables.items():
        if not isinstance(value, Mapping):
            lines += [*_comment(notes.get(key)), _entry(key, value)]
    for section, keys in tables.items():
        if isinstance(keys, Mapping):
            lines += ["", *_comment(notes.get(section)), f"[{section}]"]
            for key, value in keys.items():
                lines += [*_comment(notes.get(f"{section}.{key}")), _entry(key, value)]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> str:
    name = tomlkit.key(key).as_string()
    return f"# {name} = (not set)" if value is None else f"{name} = {literal(value)}"


def literal(value: Any) -> str:
    """A value as TOML writes it, on one line.

    >>> print(literal({"nesterov": True, "a key": [0.5, "\\x7f"]}))
    {nesterov = true, "a key" = [0.5, "\\u007f"]}
    """
    return (_inline(value) if isinstance(value, Mapping) else tomlkit.item(value)).as_string()


def _inline(values: Mapping[str, Any]) -> InlineTable:
    made = tomlkit.inline_table()
    for key, value in values.items():
        made.append(key, _inline(value) if isinstance(value, Mapping) else value)
    return made


def _comment(text: str | None) -> list[str]:
    return [f"# {line}" for line in text.split("\n")] if text else []
