"""The form of an experiment, from the same classes as its file, its checks and its help texts."""

from typing import Any

from pydantic import TypeAdapter

from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import TOPOLOGIES
from sdfeel.core.scheme import meanings
from sdfeel.experiment.schema import Experiment, keys
from sdfeel.schemes import SCHEMES

SUGGESTED = {  # a file may be named, too, so these are not all
    "network.graph": [*TOPOLOGIES],
    "network.mixing": [*GOSSIP_RULES],
}
KINDS = {"integer": "whole", "number": "number", "boolean": "switch", "object": "table"}
BOUNDS = {"minimum": "min", "maximum": "max", "exclusiveMinimum": "above"}


def form() -> dict[str, Any]:
    """Sections with their fields; schemes with their options."""
    schema = Experiment.model_json_schema()
    helps = keys()
    sections = []
    alone = []  # fields outside any section
    for name, part in schema["properties"].items():
        section = _section(schema, part)
        if section is None:
            alone.append(_field(name, name, part, helps))
        else:
            fields = [
                _field(f"{name}.{key}", key, inner, helps)
                for key, inner in section["properties"].items()
            ]
            sections.append({"name": name, "help": helps[name], "fields": fields})
    first = {"name": "", "help": "", "fields": alone}
    schemes = {name: _scheme(kind) for name, kind in SCHEMES.items()}
    for section in sections:
        if section["name"] == "scheme":
            section["fields"][0] |= {"kind": "choice", "choices": [*SCHEMES]}
    return {"sections": [first, *sections], "schemes": schemes}


def _section(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any] | None:
    refer = part.get("$ref") or next((p["$ref"] for p in part.get("allOf", [])), None)
    return None if refer is None else schema["$defs"][refer.rpartition("/")[2]]


def _field(path: str, key: str, part: dict[str, Any], helps: dict[str, str]) -> dict[str, Any]:
    kinds = [kind for kind in part.get("anyOf", [part]) if kind.get("type") != "null"]
    inner = kinds[0]
    return {
        "path": path,
        "key": key,
        "help": " ".join(helps.get(path, "").split()),
        "kind": "choice" if "enum" in inner else KINDS.get(inner.get("type", ""), "text"),
        "choices": inner.get("enum", []),
        "suggested": SUGGESTED.get(path, []),
        "default": part.get("default"),
        "optional": "anyOf" in part,
        **{ours: inner[theirs] for theirs, ours in BOUNDS.items() if theirs in inner},
    }


def _scheme(kind: Any) -> dict[str, Any]:
    """A scheme's options; their help texts are in their annotations."""
    parts = TypeAdapter(kind).json_schema().get("properties", {})
    helps = {f"scheme.{option}": text for option, text in meanings(kind).items()}
    fields = [_field(f"scheme.{key}", key, part, helps) for key, part in parts.items()]
    return {"help": kind.__doc__.split("\n")[0], "fields": fields}
