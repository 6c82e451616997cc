"""One experiment, three spellings: a name, the thing itself, `module:name`; in a file, on the
command line and in Python. What is said in one place can be said in the others, with the same log.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, BeforeValidator
from typer.testing import CliRunner

import sdfeel
from sdfeel.cli import app
from sdfeel.core.errors import InputError
from sdfeel.core.events import Event, to_record
from sdfeel.experiment import sections
from sdfeel.experiment.loading import keys, load
from sdfeel.experiment.schema import Experiment
from tests.experiment.test_named import MINE

MORE = """
def wide():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def smooth(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def half(links, mass):
    return (np.eye(len(mass)) + np.tile(mass, (len(mass), 1))) / 2


def mean(messages, votes, instead):
    return messages.mean(axis=0)


def flat(parameter, start):
    return 0.01 * parameter.abs().sum()


def told(event):
    TOLD.append(type(event).__name__)


TOLD = []
"""
# Every key that names a thing: something built in, and a thing of the user's own.
THINGS = {
    "network.graph": ("path", "links"),
    "network.mixing": ("metropolis", "half"),
    "network.assignment": ("ordered", "clusters"),
    "data.name": ("digits", "data"),
    "data.partition": ("iid", "halves"),
    "model.name": ("mlp", "wide"),
    "scheme.name": ("hierfavg", "Lazy"),
    "robust.cluster": ("centred-clipping", "mean"),
    "robust.servers": ("cs+", "mean"),
    "training.schedule": ("cosine", "falling"),
    "training.optimizer": ("adam", "Plain"),
    "training.loss": ("cross-entropy", "smooth"),
    "latency.late": ("equalise", "Patient"),
    "radio.fading": ("rayleigh", "Steady"),
    "evaluation.metrics": ("top-5", "largest"),
    "tracking.to": ("tensorboard", "told"),
}
SMALL: dict[str, dict[str, Any]] = {
    "network": {"clients": 6, "servers": 3},
    "scheme": {"tau1": 2},
    "training": {"iterations": 6, "engine": "loop", "batch_size": 4},
    "evaluation": {"every": 1},
    "model": {"name": "logistic"},
}


def _names_things(kind: Any) -> bool:
    """Does a key of this type take a thing of one's own?"""
    if isinstance(kind, BeforeValidator):
        return kind.func in (sections._nameable, sections._own)
    within = (*get_args(kind), *getattr(kind, "__metadata__", ()))
    return any(_names_things(part) for part in within)


def test_this_file_knows_all_keys_that_name_a_thing() -> None:
    found = set()
    for name, section in Experiment.model_fields.items():
        kind = section.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for key, inner in kind.model_fields.items():
                if _names_things(inner.annotation) or any(map(_names_things, inner.metadata)):
                    found.add(f"{name}.{key}")
    assert found == {*THINGS, "training.penalties"}  # which have names and strengths


def test_penalties_of_ones_own_are_named_in_files_as_in_python(mine: str) -> None:
    path, text = f"{mine}:flat", "[training.penalties]\nl1 = 0.01\nmine = "
    small = {**SMALL, "training": {**SMALL["training"], "penalties": {"l1": 0.01, "mine": path}}}
    by_name = log(small)
    plain = [f"{s}.{k}={v}" for s, values in SMALL.items() for k, v in values.items()]
    Path("p.toml").write_text(f'{text}"{path}"\n')
    assert log(load(Path("p.toml"), plain)) == by_name
    thing = sys.modules[mine].flat
    small["training"]["penalties"] = {"l1": 0.01, "mine": thing}
    assert log(small) == by_name != log(SMALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module next to an experiment, in the current directory."""
    name = f"spelled_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE + MORE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)


def by_file(key: str, value: str) -> Experiment:
    """The experiment in a file, where the key has this value."""
    section, _, own = key.partition(".")
    settings = {**SMALL, section: {**SMALL.get(section, {}), own: value}}
    lines = []
    for name, values in settings.items():
        lines.append(f"[{name}]")
        lines += [f"{each} = {json.dumps(_listed(name, each, v))}" for each, v in values.items()]
    Path("e.toml").write_text("\n".join(lines))
    return load(Path("e.toml"))


def _listed(section: str, key: str, value: Any) -> Any:
    return [value] if f"{section}.{key}" in ("evaluation.metrics", "tracking.to") else value


def by_command(key: str, value: str) -> Experiment:
    """The experiment that the command line makes of `--set`."""
    plain = [f"{s}.{k}={v}" for s, values in SMALL.items() for k, v in values.items()]
    return load(None, [*plain, f"{key}={value}"])


def by_python(key: str, value: Any) -> dict[str, Any]:
    """What a program gives."""
    section, _, own = key.partition(".")
    return {**SMALL, section: {**SMALL.get(section, {}), own: value}}


def log(given: Any) -> list[dict[str, Any]]:
    """Everything that happened, as a log has it; or the sentence that refused it."""
    try:
        events: list[Event] = list(sdfeel.Run(given))
    except InputError as error:
        return [{"refused": str(error)}]
    return [to_record(event) for event in events]


@pytest.mark.parametrize("key", THINGS)
def test_all_spellings_of_a_thing_give_the_same_log_wherever_it_is_written(
    key: str, mine: str
) -> None:
    built_in, own = THINGS[key]
    first, *others = [log(how(key, built_in)) for how in (by_file, by_command, by_python)]
    assert len(first) > 4 or "needs its package" in str(first) or "pip install" in str(first)
    assert all(other == first for other in others)
    path = f"{mine}:{own}"
    named = [log(how(key, path)) for how in (by_file, by_command, by_python)]
    thing = getattr(sys.modules[mine], own)
    itself = log(by_python(key, [thing] if key == "tracking.to" else thing))
    assert len(itself) > 4, itself
    assert all(other == itself for other in named)
    if key == "tracking.to":  # four runs have told it everything
        assert [each["event"].capitalize() for each in itself] * 4 == sys.modules[mine].TOLD
    else:
        assert itself != first  # it makes a difference


def test_the_command_line_writes_the_log_that_python_writes(mine: str) -> None:
    own = {key: name for key, (_, name) in THINGS.items() if not key.startswith("robust.")}
    own |= {"model.name": "net"}  # which suits the data
    plain = {f"{s}.{k}": v for s, values in SMALL.items() for k, v in values.items()}
    words = {**plain, **{key: f"{mine}:{name}" for key, name in own.items()}}
    settings = [f"--set={key}={value}" for key, value in words.items()]
    found = CliRunner().invoke(app, ["run", "--out", "by-command", *settings])
    assert found.exit_code == 0, found.exception
    things = {key: getattr(sys.modules[mine], name) for key, name in own.items()}
    things["tracking.to"] = [things["tracking.to"]]
    list(sdfeel.Run({**plain, **things}, out="by-python"))
    for file in ("events.jsonl", "metrics.csv", "experiment.toml"):
        one, other = (Path(name, file).read_text() for name in ("by-command", "by-python"))
        assert one == other


@pytest.mark.parametrize("section", Experiment.model_fields)
def test_what_a_file_can_say_python_can_say_with_the_same_keys(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = sdfeel.Experiment().text()
    Path("all.toml").write_text(text)
    whole = load(Path("all.toml"))
    values = getattr(whole, section)
    given = values.model_dump() if isinstance(values, BaseModel) else values
    assert sdfeel.Experiment.model_validate({section: given}) == sdfeel.Experiment()
    for key in (key for key in keys() if key.startswith(f"{section}.")):
        _, _, own = key.partition(".")
        assert sdfeel.Experiment.model_validate({section: {own: given[own]}}).text() == text


def test_schemes_of_installed_packages_are_listed_and_run(tmp_path: Path, mine: str) -> None:
    about = tmp_path / "theirs-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[sdfeel.schemes]\ntheirs = {mine}:Lazy\n")
    sys.path.insert(0, str(tmp_path))
    listed = CliRunner().invoke(app, ["schemes", "--json"])
    assert listed.exit_code == 0, listed.output
    card = next(each for each in json.loads(listed.stdout) if each["name"] == "theirs")
    assert card["about"].startswith("SD-FEEL under another name")
    assert "laziness" in [option["name"] for option in card["options"]]
    by_name = log(by_command("scheme.name", "theirs"))
    assert by_name[0]["scheme"] == "theirs"
    by_path = log(by_command("scheme.name", f"{mine}:Lazy"))
    assert by_name[1:] == by_path[1:]
