"""What a run was made from: versions, machine, data and code, so that no change goes unnoticed."""

import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from sdfeel import schemes
from sdfeel.core import named
from sdfeel.core.errors import AnotherRun, InputError
from sdfeel.core.run_files import PROVENANCE, write_atomic
from sdfeel.data.federated import Examples, Federated
from sdfeel.engine.arithmetic import arithmetic
from sdfeel.engine.evaluate import BLOCK
from sdfeel.engine.loop import TORCH
from sdfeel.experiment.build import Prepared
from sdfeel.experiment.loading import PATHS
from sdfeel.experiment.schema import Experiment
from sdfeel.version import __version__

GIT_SECONDS = 5  # that git may take to answer


@dataclass(frozen=True)
class Provenance:
    """What a run began with. Hashes are SHA-256."""

    command: tuple[str, ...]
    directory: str  # in which the command was given
    versions: Mapping[str, str]  # of sdfeel, torch, numpy and Python
    machine: Mapping[str, str]  # system, CPU, its instructions; how torch rounds, where it trains
    engine: str
    bits: str  # engines with the same name here give the same models
    data: str  # hash of all examples, and of who holds which
    # Files and their hashes, by the key that names them, or by the name of the user's module.
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    roots: tuple[str, ...] = ()  # directories from which that code can be imported
    repository: Mapping[str, str] | None = None  # the user's: its directory and commit
    project: Mapping[str, str] | None = None  # sdfeel's own, if it runs from a clone
    accepted: tuple[str, ...] = ()  # changes with which the run was continued

    def keep(self, directory: Path) -> None:
        """Write it into a run's directory."""
        text = json.dumps(asdict(self), indent=1) + "\n"
        write_atomic(directory / PROVENANCE, text.encode())

    @classmethod
    def kept(cls, directory: Path) -> "Provenance | None":
        """The provenance of a run; None if it is damaged, or if the run's version wrote none."""
        try:
            record = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
            lists: dict[str, Any] = {k: tuple(record[k]) for k in ("command", "roots", "accepted")}
            return cls(**{**record, **lists})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def importable(self) -> None:
        """Make the modules of a run importable, wherever this program was started."""
        for root in self.roots:
            named.search_in(Path(root))


def of(ready: Prepared) -> Provenance:
    """What a run that begins now is made from."""
    experiment = ready.experiment
    modules = list(modules_of(own_objects(experiment)))
    files = {each.__name__: _file(each) for each in modules}
    place = next(iter(files.values())).parent if files else Path.cwd()
    by_torch = ready.engine.bits.startswith(TORCH)
    return Provenance(
        command=(Path(sys.argv[0]).name, *sys.argv[1:]),
        directory=str(Path.cwd()),
        versions=versions(),
        machine={**machine(), **({"arithmetic": arithmetic()} if by_torch else {})},
        engine=ready.engine.name,
        bits=ready.engine.bits,
        data=data_hash(ready.data),
        sources={
            name: {"file": str(file), "sha256": _hash(file)}
            for name, file in {**_named_files(experiment), **files}.items()
        },
        roots=tuple(dict.fromkeys(str(_root(each)) for each in modules)),
        repository=repository(str(place)),
        project=project(),
    )


def changes(began: Provenance, now: Provenance) -> list[str]:
    """What decides the result and is no longer what it was: data, files and code."""
    found = ["its data"] if began.data != now.data else []
    for name in {**began.sources, **now.sources}:
        then, today = began.sources.get(name, {}), now.sources.get(name, {})
        if then.get("sha256") != today.get("sha256"):
            found.append(then.get("file") or today["file"])
    return found


def changed_files(began: Provenance) -> list[str]:
    """The files of a run that have changed since it began; its data need not be loaded for this."""
    known = [(each["file"], each["sha256"]) for each in began.sources.values()]
    return [file for file, digest in known if _hash(Path(file)) != digest]


def drift(began: Provenance, now: Provenance) -> list[str]:
    """What may change the last bits: other versions and, where torch trains, another CPU."""
    then, today = ({**each.versions, **each.machine} for each in (began, now))
    found = [
        f"{what} was {then[what]} and is {today[what]}"
        for what in ("sdfeel", "torch", "numpy")
        if what in then and then[what] != today[what]
    ]
    if now.bits.startswith(TORCH) and then.get("torch") == today["torch"]:
        # Earlier versions recorded only the CPU's name and its instruction set.
        signs = ("arithmetic",) if "arithmetic" in then else ("CPU", "instruction set")
        if any(each in then and then[each] != today[each] for each in signs):
            cpus = [f"{each.get('CPU')} ({each.get('instruction set')})" for each in (then, today)]
            found.append(f"torch rounded as on {cpus[0]} and now rounds as on {cpus[1]}")
    return found


def continued(ready: Prepared, directory: Path, accept: bool) -> "Continued":
    """What to say when a run is continued; AnotherRun if its data or code have changed."""
    began, now = Provenance.kept(directory), of(ready)
    if began is None:
        damaged = (directory / PROVENANCE).exists()  # versions before 0.2 did not write it
        unknown = f"{PROVENANCE} cannot be read: data or code may have changed"
        said = (unknown,) if damaged else ()
        return Continued(replace(now, accepted=said), said)
    changed = changes(began, now)
    if changed and not accept:
        raise AnotherRun(
            f"{_listed(changed)} changed since the run in {directory} began: undo that, start the "
            f"run anew with `sdfeel rerun {directory}`, or continue it as it is now with "
            f"--accept-changes (accept_changes=True), which its log will record"
        )
    notes = [f"continued although {_listed(changed)} changed"] if changed else []
    notes += [f"continued elsewhere: {'; '.join(told)}"] if (told := drift(began, now)) else []
    kept = replace(now, command=began.command, directory=began.directory)
    return Continued(replace(kept, accepted=(*began.accepted, *notes)), tuple(notes))


@dataclass(frozen=True)
class Continued:
    """A run that continues: its provenance from now on, and the notes for its log."""

    provenance: Provenance
    notes: tuple[str, ...]


def versions() -> dict[str, str]:
    """The versions of everything that computes."""
    own = {"sdfeel": __version__, "torch": str(torch.__version__), "numpy": np.__version__}
    return {**own, "Python": platform.python_version()}


@cache
def machine() -> dict[str, str]:
    """The system, the CPU and its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return {
        "system": platform.platform(),
        "CPU": name.strip() or platform.processor() or platform.machine(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
    }


@cache
def repository(directory: str, part: str = ":/") -> dict[str, str] | None:
    """The commit that is checked out there, and whether files differ from it; None without one.

    `part` says which files count, as git writes it: all by default, "." those of the directory.
    """
    top = _git(directory, "rev-parse", "--show-toplevel", "HEAD")
    if top is None:
        return None
    root, commit = top.splitlines()
    clean = _git(directory, "diff", "--quiet", "HEAD", "--", part) is not None
    return {"directory": root, "commit": commit, "changed": "no" if clean else "yes"}


def project() -> dict[str, str] | None:
    """The repository that sdfeel itself runs from; None if it was installed.

    Only the package counts as changed: results that a figure has just kept beside it do not.
    """
    package = Path(__file__).resolve().parents[1]
    found = repository(str(package), ".")
    return found if found and Path(found["directory"], "src", "sdfeel") == package else None


def _git(directory: str, *words: str) -> str | None:
    """What git prints; None if it fails or is not installed."""
    command = ["git", "-C", directory, *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_SECONDS, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def data_hash(data: Federated) -> str:
    """SHA-256 of all examples, and of who holds which."""
    found = hashlib.sha256()
    for examples in (data.train, data.test):
        _absorb(found, examples)
    found.update(np.array([len(part) for part in data.parts], np.int64).tobytes())
    for part in data.parts:
        found.update(np.ascontiguousarray(part, np.int64).data)
    return found.hexdigest()


def _absorb(found: Any, examples: Examples) -> None:
    if examples.reads_anew:  # not all of them in memory at once
        for begin in range(0, len(examples), BLOCK):
            _absorb(found, Examples(*examples.block(begin, begin + BLOCK)))
        return
    for values in (examples.x, examples.y):
        array = values.detach().contiguous()
        found.update(f"{array.dtype}{tuple(array.shape)}".encode())
        found.update(array.view(torch.uint8).numpy().data if array.numel() else b"")


def own_objects(experiment: Experiment) -> list[Any]:
    """The user's own objects that an experiment names, and its scheme."""
    return [*_own_objects(experiment.model_dump()), schemes.find(experiment.scheme.name)]


def _own_objects(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _own_objects(each)
    elif named.is_path(value):
        try:
            yield named.imported(value)
        except InputError:
            return  # a text that only looks like a name
    elif not isinstance(value, str | int | float | type(None)):
        yield value


def modules_of(found: Iterable[Any]) -> Iterator[ModuleType]:
    """The user's modules that define these objects, and those that they import."""
    names = {name for thing in found for name in _homes(thing)}
    waiting, seen = sorted(names), set(names)
    while waiting:
        module = sys.modules.get(waiting.pop())
        if module is None or not _is_users(module):
            continue
        if module.__name__ != "__main__":  # a program may change, the modules it imports may not
            yield module
        new = {*_imports(module)} - seen
        seen |= new
        waiting += sorted(new)


def _imports(module: ModuleType) -> Iterator[str]:
    """The names of the modules that a module imports, and a few more that need not exist."""
    try:
        tree = ast.parse(_file(module).read_bytes())
    except (OSError, SyntaxError, ValueError):  # no file: a notebook
        yield from (each.__name__ for each in vars(module).values() if isinstance(each, ModuleType))
        yield from map(_home, list(vars(module).values()))
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            written = "." * node.level + (node.module or "")
            with suppress(ImportError):  # a program's relative import, which would fail there, too
                source = resolve_name(written, getattr(module, "__package__", None) or "")
                yield source
                yield from (f"{source}.{alias.name}" for alias in node.names)


def _homes(thing: Any) -> Iterator[str]:
    """The names of the modules that define an object, its class and its parts."""
    thing = getattr(thing, "func", thing)  # functools.partial
    yield _home(thing) if isinstance(thing, type) else _home(type(thing))
    yield _home(thing)
    if isinstance(thing, torch.nn.Module):
        yield from {_home(type(part)) for part in thing.modules()}


def _home(thing: Any) -> str:
    return str(getattr(thing, "__module__", ""))


def _is_users(module: ModuleType) -> bool:
    """Is it neither ours nor installed?"""
    file = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0] == "sdfeel" or not file:
        return module.__name__ == "__main__"
    path = Path(file).resolve()
    return not path.is_relative_to(_LIBRARY) and not _INSTALLED.intersection(path.parts)


_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
_INSTALLED = {"site-packages", "dist-packages"}  # of this environment, or of one that it sees


def _file(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "").resolve()


def _root(module: ModuleType) -> Path:
    """The directory from which a module can be imported by its whole name."""
    file, depth = _file(module), module.__name__.count(".")
    return file.parents[depth + (file.name == "__init__.py")]


def _named_files(experiment: Experiment) -> dict[str, Path]:
    """Files that decide the result, by their keys; data files are not among them, because
    `data_hash` covers the examples."""
    values = {
        path: getattr(getattr(experiment, path.split(".")[0]), path.split(".")[1])
        for path in PATHS
        if path != "data.name"
    }
    return {
        key: Path(value)
        for key, value in values.items()
        if isinstance(value, str) and Path(value).is_file()
    }


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "absent"


def _listed(names: list[str]) -> str:
    verb = "has" if len(names) == 1 and names[0] != "its data" else "have"
    return f"{' and '.join(names)} {verb}"
