"""What the sections of an experiment are made of: kinds of values, and names that mean things."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sdfeel.core import named

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


def _several(given: Any) -> Any:
    """A list: of words with commas between them, as on the command line, or of any sequence's."""
    if isinstance(given, str):
        return given.split(",")
    return list(given) if isinstance(given, tuple) else given


Names = Annotated[list[str], BeforeValidator(_several)]


def _nameable(given: Any) -> Any:
    if given is None or isinstance(given, int | float | Mapping):
        raise PydanticCustomError("string_type", "a text")
    return given


def _own(given: Any) -> Any:
    if given is None or (isinstance(given, int | float | str) and not named.is_path(given)):
        raise PydanticCustomError("string_type", "a text")
    return given


def _kept(thing: Any, info: SerializationInfo) -> Any:
    """A thing itself; in a file, its name."""
    return named.spelled(thing) if info.mode == "json" else thing


_RECORDED = (PlainSerializer(_kept), WithJsonSchema({"type": "string"}))
# A name, `package.module:name`, or the thing itself: `core.named`.
Thing = Annotated[Any, BeforeValidator(_nameable), *_RECORDED]
Own = Annotated[Any, BeforeValidator(_own), *_RECORDED]  # all but a plain name


def _labelled(given: Any) -> Any:
    """Things by their names; those of a list, and words with commas, by the ends of their own."""
    if isinstance(given, Mapping):
        return given
    listed = given.split(",") if isinstance(given, str) else given
    listed = listed if isinstance(listed, list | tuple) else [listed]
    return {_label(each): each for each in listed}


def _label(thing: Any) -> str:
    name = thing if isinstance(thing, str) else getattr(thing, "__name__", type(thing).__name__)
    return str(name).rpartition(":")[2]


Things = Annotated[dict[str, Thing], BeforeValidator(_labelled)]


Listed = Annotated[list[Thing], BeforeValidator(_several)]  # whose names do not matter


class Section(BaseModel):
    """A frozen table that knows its keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # neither `true` nor "3" is a number
        protected_namespaces=(),  # older versions of pydantic warn about names like `model_bits`
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _paths_as_text(cls, given: Any) -> Any:
        """Programs name files by paths, and experiment files by text."""
        if not isinstance(given, Mapping):
            return given
        return {key: str(v) if isinstance(v, PurePath) else v for key, v in given.items()}


class NamedSection(Section):
    """A section whose name says it all: `model = "mlp"` is `model.name = "mlp"`."""

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: Any) -> Any:
        whole = isinstance(given, Mapping | Section | int | float | type(None))
        return given if whole else {"name": given}
