"""Writing TOML (the standard library only reads it): plain tables, with a comment per key."""

import json
import re
from collections.abc import Mapping
from typing import Any


def literal(value: Any) -> str:
    """
    >>> literal({"momentum": 0.9, "names": ["a", "b"], "nesterov": True})
    '{ momentum = 0.9, names = ["a", "b"], nesterov = true }'
    """
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {literal(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float):
        return repr(value)  # also for inf and nan, which JSON spells otherwise
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    """Keys of letters, digits, - and _ stand bare; others are quoted."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


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
            lines += _entry(key, key, value, notes)
    for section, keys in tables.items():
        if isinstance(keys, Mapping):
            lines += ["", *_comment(notes.get(section)), f"[{section}]"]
            for key, value in keys.items():
                lines += _entry(key, f"{section}.{key}", value, notes)
    return "\n".join(lines) + "\n"


def _entry(key: str, path: str, value: Any, notes: Mapping[str, str]) -> list[str]:
    name = _key(key)
    line = f"# {name} = (not set)" if value is None else f"{name} = {literal(value)}"
    return [*_comment(notes.get(path)), line]


def _comment(text: str | None) -> list[str]:
    return [f"# {line}" for line in text.split("\n")] if text else []
