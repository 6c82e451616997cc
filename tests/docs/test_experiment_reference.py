"""docs/experiment.md is generated from the classes that read the file, so it cannot go stale.

python -m tests.docs.test_experiment_reference     rewrites it
"""

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sdfeel.core.errors import InputError
from sdfeel.core.scheme import meanings
from sdfeel.experiment.loading import checked, keys
from sdfeel.experiment.schema import Experiment
from sdfeel.experiment.toml import literal
from sdfeel.schemes import SCHEMES

DOCUMENT = Path(__file__).parents[2] / "docs" / "experiment.md"

HEAD = """\
# The experiment file

<!-- Generated: do not edit. `python -m tests.docs.test_experiment_reference` rewrites it. -->

Everything that decides a run's result is in one TOML file. Every section and every key may be
left out; a key that is left out has the default below. `sdfeel init` writes a file with all keys
and their comments, and the directory of every run contains `experiment.toml`, that run's file with
every choice filled in.

```toml
seed = 1

[network]
servers = 6
graph = "complete"

[scheme]
name = "sd-feel"
alpha = 3

[training]
iterations = 200
target_accuracy = 0.9
```

`--set section.key=value` changes a key for one run and may be repeated. Its value is written as
in the file, but a bare word needs no quotes:

```console
$ sdfeel topology --set network.servers=6 --set network.graph=complete
```

A key that does not exist is refused, with a guess at what you meant. File names are relative to
the experiment file, or to the current directory when given with `--set`. To unset a key whose
default is "not set", leave it out.
"""

SCHEME_NOTE = """\
The other keys depend on the scheme. In a comparison each scheme takes the keys that it knows; a
single run prints a note about keys that its scheme does not use.
"""


def reference() -> str:
    """The whole document."""
    text, defaults = keys(), Experiment().model_dump()
    properties, shapes = _shapes()
    parts = [HEAD, "## At the top\n", _table(_row("seed", properties["seed"], 0, text["seed"]))]
    for section in (name for name, value in defaults.items() if isinstance(value, dict)):
        parts.append(f"## [{section}]\n\n{text[section]}\n")
        rows = [
            _row(key, shapes[section][key], default, text[f"{section}.{key}"])
            for key, default in defaults[section].items()
        ]
        parts.append(_table(*rows))
        if section == "scheme":
            parts += [SCHEME_NOTE, *map(_scheme, SCHEMES)]
    return "\n".join(parts)


def _shapes() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Types and bounds as JSON schemas: of the keys at the top, and of each section's."""
    schema = Experiment.model_json_schema()
    top = schema["properties"]
    sections = {
        name: schema["$defs"][value["$ref"].rpartition("/")[2]]["properties"]
        for name, value in top.items()
        if "$ref" in value
    }
    return top, sections


def _scheme(name: str) -> str:
    kind: Any = SCHEMES[name]
    shapes = TypeAdapter(kind).json_schema()["properties"]
    rows = [
        _row(
            field.name,
            {**shapes[field.name], **_least(kind, field.name)},
            field.default,
            meanings(kind)[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
    return f'### name = "{name}"\n\n{kind.__doc__.splitlines()[0]}\n\n{_table(*rows)}'


def _least(kind: Any, key: str) -> dict[str, float]:
    """The smallest value that a scheme's option may have, according to its own error."""
    try:
        kind(**{key: -(10**9)})  # of the right kind, and far too small
    except InputError as error:
        bound = re.search(r"at least (\S+), got", str(error))
        return {"minimum": float(bound[1])} if bound else {}
    return {}


def _row(key: str, shape: dict[str, Any], default: Any, meaning: str) -> tuple[str, ...]:
    return f"`{key}`", _values(shape), _default(default), " ".join(meaning.split())


def _values(shape: dict[str, Any]) -> str:
    """What a key may hold, in words.

    >>> _values({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]})
    'number, above 0'
    """
    if "anyOf" in shape:
        kinds = [each for each in shape["anyOf"] if each != {"type": "null"}]
        return " or ".join(_values({**each}) for each in kinds)
    if shape.get("type") == "array":
        return f"list of {_values(shape['items'])}s"
    if "enum" in shape or "const" in shape:
        return ", ".join(f"`{literal(value)}`" for value in shape.get("enum", [shape.get("const")]))
    words = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "`true`, `false`",
        "object": "table",
    }
    limits = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    bounds = [f"{word} {shape[key]:g}" for key, word in limits.items() if key in shape]
    return ", ".join([words[shape["type"]], *bounds])


def _default(value: Any) -> str:
    return "not set" if value is None else f"`{literal(value)}`"


def _table(*rows: tuple[str, ...]) -> str:
    head = ("key", "values", "default", "meaning")
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in lines)


def test_the_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), (
        "docs/experiment.md is stale: run `python -m tests.docs.test_experiment_reference`"
    )


def test_every_key_has_a_line() -> None:
    document = reference()
    for key in keys():
        name = key.rpartition(".")[2]
        assert f"| `{name}` |" in document or f"## [{name}]" in document
        assert keys()[key], f"{key} has no help text"


def test_every_experiment_shown_is_valid() -> None:
    root = DOCUMENT.parents[1]
    for path in (root / "README.md", *(root / "docs").glob("*.md")):
        for text in re.findall(r"^```toml\n(.*?)^```", path.read_text("utf-8"), re.S | re.M):
            checked(tomllib.loads(text))


if __name__ == "__main__":
    DOCUMENT.write_text(reference(), encoding="utf-8")
    print(f"wrote {DOCUMENT}")
