"""What an experiment names: something built in, `package.module:name`, or the thing itself.

Every key that names a thing has a `Kind`, which finds what is meant. `recorded_name` is how a
record writes a thing down, and `digest` is what tells two things apart.
"""

import dataclasses
import functools
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sdfeel.core.errors import InputError, SdfeelError, told, unknown

OBJECT = "object:"  # begins the name of a thing that only the program that made it can provide
PATH = "package.module:name"


@dataclass(frozen=True)
class Kind:
    """One kind of thing that experiments name."""

    noun: str
    known: Mapping[str, Any]  # what is built in
    group: str = ""  # of entry points, by which installed packages add more
    also: tuple[str, ...] = ()  # what else may be written

    def find(self, given: Any) -> Any:
        """The thing that a name, or the thing itself, means; InputError with a guess if unknown.

        >>> Kind("number", {"one": 1}).find("one"), Kind("number", {}).find(7)
        (1, 7)
        """
        if not isinstance(given, str):
            return given
        if given in self.known:
            return self.known[given]
        if given in (added := self.added()):
            return _loaded(added[given])
        if ":" in given:
            return imported(given)
        raise unknown(self.noun, given, [*self.known, *added, *self.also, PATH])

    def added(self) -> dict[str, EntryPoint]:
        """What installed packages add, by name."""
        return _installed(self.group, tuple(sys.path)) if self.group else {}


@functools.cache  # the search opens the files of every installed package
def _installed(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=group)}


def is_path(given: object) -> bool:
    """Is it `package.module:name`, or the record of a program's own object?

    >>> is_path("my.models:Net"), is_path("ring"), is_path("C:/graph.csv")
    (True, False, False)
    """
    return isinstance(given, str) and re.fullmatch(r"[\w.-]+:[\w.-]+", given) is not None


def is_object(given: object) -> bool:
    """Is it the record of a program's own object?"""
    return isinstance(given, str) and given.startswith(OBJECT)


_experiments: list[str] = []  # directories of experiments: they come first on the path


def search_in(directory: Path) -> None:
    """Modules in this directory can be named from now on."""
    place = str(directory.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
        _experiments.append(place)


def _search_here() -> None:
    """Modules in the current directory can be named, too, after those next to an experiment."""
    place = str(Path.cwd())
    if place not in sys.path:
        sys.path.insert(sum(each in sys.path for each in _experiments), place)


def imported(path: str) -> Any:
    """What `package.module:name` leads to; the current directory is searched, too."""
    module_name, _, attribute = path.partition(":")
    if path.startswith(OBJECT):
        raise InputError(
            f"'{path}' was an object of the program that began this: run that program again with "
            f"the same directory, or give its objects names that can be imported ({PATH})"
        )
    _search_here()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"cannot import '{module_name}' of '{path}' ({error}): put it next to the experiment, "
            f"start in the directory where it is, or install it"
        ) from None
    except (Exception, SystemExit) as error:  # somebody else's module may raise anything
        raise InputError(f"cannot import '{module_name}' of '{path}': {told(error)}") from None
    _check_only(module)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InputError(f"'{module_name}' has no '{attribute}' (asked for by '{path}')")
    return found


@contextmanager
def errors_naming(key: str, wanted: str) -> Iterator[None]:
    """Errors of a user's code name the experiment's key that led to it, and what it must give."""
    try:
        yield
    except SdfeelError:
        raise
    except Exception as error:  # somebody else's code may raise anything
        raise InputError(f"{key} must give {wanted}: {told(error)}") from error


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # somebody else's module may raise anything
        raise InputError(f"cannot import {entry.value} for '{entry.name}': {told(error)}") from None


def _check_only(module: ModuleType) -> None:
    """Refuse a module that was imported from elsewhere before this one was asked for."""
    top = module.__name__.partition(".")[0]
    spec, here = PathFinder.find_spec(top), getattr(sys.modules[top], "__file__", None)
    if spec is not None and spec.origin and here and not _same(spec.origin, here):
        raise InputError(
            f"two modules are called '{top}', {here} and {spec.origin}: rename one of them"
        )


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def recorded_name(thing: Any) -> str:
    """How a record names a thing: so that it can be imported again, if that is possible.

    >>> recorded_name("ring"), recorded_name(hashlib.sha256), recorded_name(Kind)
    ('ring', '_hashlib:openssl_sha256', 'sdfeel.core.named:Kind')
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module not in (None, "__main__") and name and "<" not in name:
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is thing:
            return f"{module}:{name}"
    label = name or type(thing).__name__
    return f"{OBJECT}{re.sub(r'[^A-Za-z0-9_]', '', label)}-{digest(thing)[:12]}"


def code_of(thing: Any) -> Path | None:
    """The file that a thing's code is in; None for what is not written in Python."""
    if isinstance(thing, functools.partial):
        thing = thing.func
    for each in (thing, type(thing)):
        try:
            return Path(inspect.getfile(each)).resolve()
        except (TypeError, OSError):
            continue
    return None


def digest(thing: Any) -> str:
    """SHA-256 of what a thing consists of: numbers, texts, code, and objects of those.

    >>> digest({"a": [1, 2.5]}) == digest({"a": [1, 2.5]}) != digest({"a": [1, 2]})
    True
    """
    found = hashlib.sha256()
    _absorb(found, thing, set())
    return found.hexdigest()


def _absorb(found: Any, thing: Any, seen: set[int]) -> None:
    if thing is None or isinstance(thing, str | int | float | bool | bytes | Path):
        found.update(f"{type(thing).__name__}:{thing!r};".encode())
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    parts: list[Any] = []
    with suppress(Exception):  # somebody else's object may raise anything: then its type must do
        if hasattr(thing, "__array__") and hasattr(thing, "shape") and hasattr(thing, "dtype"):
            _absorb_array(found, thing)
            return
        parts = list(_parts(thing))
    found.update(f"{type(thing).__module__}.{type(thing).__qualname__};".encode())
    for part in parts:
        _absorb(found, part, seen)


def _absorb_array(found: Any, thing: Any) -> None:
    import numpy as np

    values = thing.detach().cpu() if hasattr(thing, "detach") else thing
    if str(values.dtype) == "torch.bfloat16":  # which NumPy does not know
        values = values.float()
    array = np.ascontiguousarray(values)
    found.update(f"{thing.dtype}{tuple(array.shape)};".encode())
    found.update(repr(array.tolist()).encode() if array.dtype == object else array.data)


def _parts(thing: Any) -> Iterable[Any]:
    """What else an object consists of."""
    if isinstance(thing, Mapping):
        return [part for pair in thing.items() for part in pair]
    if isinstance(thing, list | tuple):
        return thing
    if isinstance(known := getattr(thing, "_fingerprint", None), str):
        return (known,)  # a data set of Hugging Face's, which hashes itself
    if isinstance(thing, set | frozenset):
        return sorted(thing, key=repr)
    if isinstance(thing, functools.partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        several = thing.__code__.co_code if thing.__name__ == "<lambda>" else b""  # in one line
        return _source(thing), several, thing.__defaults__, thing.__kwdefaults__, cells
    if isinstance(thing, type):
        return (_source(thing),)
    if hasattr(thing, "state_dict") and callable(thing.state_dict):
        return repr(thing), dict(thing.state_dict())
    if dataclasses.is_dataclass(thing):
        return [getattr(thing, field.name) for field in dataclasses.fields(thing)]
    kept = (
        {name: value for name, value in vars(thing).items()} if hasattr(thing, "__dict__") else {}
    )
    return (kept,) if kept else (re.sub(r"0x[0-9a-f]+", "", repr(thing)),)


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        return repr(thing) if code is None else f"{code.co_code.hex()}{code.co_consts!r}"
