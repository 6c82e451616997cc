"""An experiment from a file, settings and nested values, or one clear error about them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel, ValidationError

from sdfeel.core import named
from sdfeel.core.errors import InputError, UnknownName, of_kind, said, unknown
from sdfeel.core.gossip_weights import GOSSIP_RULES
from sdfeel.core.graphs import ALIASES, TOPOLOGIES
from sdfeel.core.peers import NAMES as PEERS
from sdfeel.core.run_files import of_toml, read_toml
from sdfeel.data.clusters import ASSIGNMENTS
from sdfeel.data.partition import PARTITIONS, USERS
from sdfeel.data.sources import DATASETS
from sdfeel.experiment import toml
from sdfeel.experiment.schema import Experiment

PATHS = (
    "network.graph",
    "network.mixing",
    "network.assignment",
    "network.changes",
    "network.places",
    "network.whereabouts",
    "data.name",
    "data.directory",
    "data.partition",
    "devices.file",
    "radio.rates",
    "radio.trace",
    "radio.links",
)


# A file called `ring` must not hide the topology of that name.
MEETINGS = {*GOSSIP_RULES, *PEERS}
NAMES = {*TOPOLOGIES, *ALIASES, *MEETINGS, *PARTITIONS, USERS, *ASSIGNMENTS, "equal", "distance"}


def load(file: str | Path | None = None, settings: Sequence[str] = ()) -> Experiment:
    """The experiment in a file (default: all defaults) with `section.key=value` settings on top."""
    values: dict[str, Any] = {}
    if file is not None:
        of_kind("file", file, (str, PathLike), "an experiment's file")
        file = Path(file)
        values = _read(file)
        _locate(values, file.parent)
        named.search_in(file.parent)
        checked(values)  # a mistake in the file must not hide behind a setting
    return checked(_merged(values, _nested(dict(setting(each) for each in settings))))


def setting(text: str) -> tuple[str, Any]:
    """A key and its value, as `--set` takes them; file names become absolute.

    >>> setting("scheme.tau1=3"), setting("network.graph=ring")
    (('scheme.tau1', 3), ('network.graph', 'ring'))
    """
    path, value = _parsed(text)
    nested = _nested({".".join(path): _worded(path, value)})
    _locate(nested, Path())
    for part in path:
        nested = nested[part]
    return ".".join(path), nested


def changed(experiment: Experiment, choices: Mapping[str, Any]) -> Experiment:
    """The same experiment with other values: `{"scheme.tau1": 3}`."""
    return checked(_merged(experiment.model_dump(), _nested(choices)))


def checked(values: Mapping[str, Any]) -> Experiment:
    """The experiment with these values, nested or as `section.key`, or one clear error.

    >>> checked({"scheme.tau1": 3, "network": {"clients": 6}}).scheme.options["tau1"]
    3
    """
    values = _plain(values)
    for key in values:
        of_kind("a key of an experiment", key, str, "a text such as training.iterations")
    dotted = _nested({key: value for key, value in values.items() if "." in str(key)})
    whole = {
        # A name may stand for a section: `scheme = "fedavg"` is `scheme.name = "fedavg"`.
        key: {"name": value} if key in dotted and not isinstance(value, Mapping) else value
        for key, value in values.items()
        if "." not in str(key)
    }
    try:
        return Experiment.model_validate(_merged(whole, dotted))
    except ValidationError as error:
        raise InputError(sentence(error)) from None


def _plain(value: Any) -> Any:
    """`value` with NumPy's numbers as Python's: loops over arrays give NumPy's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    return value


def keys() -> dict[str, str]:
    """Every `section.key` with its help text."""
    found: dict[str, str] = {}
    for name, field in Experiment.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found[name] = (kind.__doc__ or "").strip()
            for key, inner in kind.model_fields.items():
                found[f"{name}.{key}"] = _help(inner.description)
        else:
            found[name] = _help(field.description)
    return found


def template(experiment: Experiment) -> str:
    """A commented experiment file."""
    head = "# An experiment for `sdfeel run FILE`. Every key may be left out.\n\n"
    return head + toml.document(experiment.model_dump(mode="json"), keys())


def _help(text: str | None) -> str:
    return "\n".join(line.strip() for line in (text or "").split("\n"))


def _read(file: Path) -> dict[str, Any]:
    missing = f"no experiment file {file}: write one with `sdfeel init {file}`"
    return read_toml(file, "the experiment file", missing)


def _parsed(setting: str) -> tuple[list[str], Any]:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise InputError(f"'{setting}' is not a setting: write section.key=value")
    try:
        value = of_toml(f"value = {text}".encode(errors="surrogateescape"))["value"]
    except ValueError:
        words = {"true": True, "false": False, "none": None}
        value = words.get(text.lower(), text)  # any other bare word is a string
    return path.strip().split("."), value


def _worded(path: list[str], value: Any) -> Any:
    """The value; but None becomes the word `none` where the key takes that word."""
    section = Experiment.model_fields.get(path[0])
    kind = None if section is None else section.annotation
    if value is not None or len(path) != 2 or not isinstance(kind, type):
        return value
    field = kind.model_fields.get(path[1]) if issubclass(kind, BaseModel) else None
    words = () if field is None else get_args(field.annotation)
    return "none" if "none" in words else value


def _nested(choices: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in choices.items():
        _put(values, key.split("."), value)
    return values


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise InputError(f"'{'.'.join(path)}' is not a key: '{part}' holds a value, not keys")
    values[path[-1]] = value


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = _merged(result[key], value) if both else value
    return result


def _locate(values: dict[str, Any], base: Path) -> None:
    """Make file names absolute, so that the run can be resumed from anywhere."""
    for path in PATHS:
        section, key = path.split(".")
        table = values.get(section)
        name = table.get(key) if isinstance(table, dict) else None
        if not isinstance(name, str) or name in NAMES:
            continue
        file = base / Path(name).expanduser()
        folder = path == "data.directory" or (path == "data.name" and name not in DATASETS)
        if file.is_file() or (folder and file.is_dir()):
            values[section] = {**values[section], key: str(file.resolve())}


def sentence(error: ValidationError) -> str:
    """The first mistake, as a sentence."""
    first = error.errors()[0]
    if first["type"] == "value_error" and not first["loc"]:  # said already
        return str(first["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"] if not _internal(part))
    if first["type"] == "extra_forbidden":
        section = ".".join(where.split(".")[:-1])
        siblings = [k for k in keys() if k.rpartition(".")[0] == section]
        return str(hinted(unknown("key", where, siblings if siblings else keys())))
    if first["type"] == "model_type":
        given = said(first["input"])
        return f"{where} is a section with keys, got {given}: write {where}.key = value"
    hint = ELSEWHERE.get(str(first["input"]).lower()) if "literal" in first["type"] else None
    told = f"{where} must be {rule_of(first)}, got {said(first['input'])}"
    return told if hint is None else f"{told}: here it is {hint}"


def _internal(part: Any) -> bool:
    """Is it one of the words by which pydantic tells the members of a union apart?"""
    return part in ("float", "int", "str") or str(part).startswith(("literal[", "function-before["))


def rule_of(error: Mapping[str, Any]) -> str:
    """What one of pydantic's errors asks for, in our words."""
    kind = error["type"]
    if kind == "string_twice":
        return str(error["msg"])
    kinds = {
        "int_": "a whole number",
        "float_": "a number",
        "bool_": "true or false",
        "string_": "a text",
        "finite_number": "a finite number",
        "dict_type": "a table like { key = value }",
    }
    if found := [words for start, words in kinds.items() if kind.startswith(start)]:
        return found[0]
    bounds = {
        "less_than": "below {lt:g}",
        "greater_than": "above {gt:g}",
        "greater_than_equal": "at least {ge:g}",
        "less_than_equal": "at most {le:g}",
    }
    if kind in bounds:
        return bounds[kind].format(**error["ctx"])
    return str(error["msg"]).removeprefix("Input should be ")


# Names that papers and other programs use, and our keys for the same things.
ELSEWHERE = {
    "alpha": "data.concentration (Dirichlet), or scheme.alpha (exchanges between servers)",
    "batchsize": "training.batch_size",
    "bs": "training.batch_size",
    "client_fraction": "sampling.share",
    "client_sampling_rate": "sampling.share",
    "clients_per_round": "sampling.clients",
    "cohort_size": "sampling.clients",
    "cuda": "batched, with training.device = cuda",
    "dataset": "data.name",
    "device": "training.device, for training.engine = batched",
    "dirichlet_alpha": "data.concentration",
    "epochs": "training.iterations (see latency.iteration_unit)",
    "eta": "training.learning_rate",
    "fedadagrad": "server.optimizer = adagrad",
    "fedadam": "server.optimizer = adam",
    "fedavgm": "server.optimizer = momentum",
    "fedprox": "training.proximal, with any scheme such as fedavg",
    "fedyogi": "server.optimizer = yogi",
    "frac": "sampling.share",
    "fraction_fit": "sampling.share",
    "gamma": "training.schedule_options = { factor = ... }, or network.imbalance",
    "global_rounds": "training.iterations",
    "gpu": "batched, with training.device = cuda",
    "hierfl": "hierfavg",
    "local_epochs": "scheme.tau1",
    "local_steps": "scheme.tau1",
    "lr": "training.learning_rate",
    "lr_scheduler": "training.schedule",
    "max_grad_norm": "training.clip_norm",
    "min_available_clients": "sampling.clients",
    "mu": "training.proximal",
    "n_clients": "network.clients",
    "noniid": "data.partition = dirichlet or classes",
    "num_clients": "network.clients",
    "num_rounds": "training.iterations",
    "num_servers": "network.servers",
    "num_users": "network.clients",
    "optim": "training.optimizer",
    "optimiser": "training.optimizer",
    "participants": "sampling.clients",
    "participation": "sampling.share",
    "proximal_mu": "training.proximal",
    "random_seed": "seed",
    "rounds": "training.iterations",
    "scheduler": "training.schedule",
    "strategy": "scheme.name",
    "topology": "network.graph",
    "wd": "training.weight_decay",
}


KINDS = ("key", "scheme", "scheme to plan", "server optimizer", "engine", "partition")


def hinted(error: UnknownName) -> InputError:
    """The same error, with our word for what papers or other programs call by the unknown name.

    >>> from sdfeel.core.errors import unknown
    >>> print(hinted(unknown("key", "training.lr", ["training.batch_size"])))
    unknown key 'training.lr': here it is training.learning_rate (known: training.batch_size)
    """
    word = error.value.lower().rpartition(".")[2].replace("-", "_")
    if word not in ELSEWHERE or error.kind not in KINDS:
        return error
    known = ", ".join(error.known)
    return InputError(
        f"unknown {error.kind} '{error.value}': here it is {ELSEWHERE[word]} (known: {known})"
    )


@contextmanager
def in_our_words() -> Iterator[None]:
    """A block in which errors about unknown names say what the thing is called here."""
    try:
        yield
    except UnknownName as error:
        raise hinted(error) from None
