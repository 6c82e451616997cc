"""A run knows what it was made from, and is never silently continued with anything else."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sdfeel
from sdfeel.core.events import Finished, Round, Warned
from sdfeel.engine.arithmetic import arithmetic
from sdfeel.run import provenance
from sdfeel.run.provenance import Provenance
from tests.cli.command import call
from tests.waiting import finished

CODE = """
import torch
from helper_of_mine import WIDTH

def net():
    return torch.nn.Linear(3, 2)

def data():
    x = torch.arange(120.0).reshape(40, 3) / 120
    return (x, torch.arange(40) % 2), (x[:8], torch.arange(8) % 2)
"""
TEXT = """
[network]
clients = 4
servers = 2
graph = "links.txt"
[data]
name = "code_of_mine:data"
partition = "iid"
[model]
name = "code_of_mine:net"
[training]
iterations = 20
engine = "loop"
[checkpoint]
every_seconds = 0.0
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of somebody's own code, stopped after two rounds; started next to the experiment."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "code_of_mine.py").write_text(CODE)
    (home / "helper_of_mine.py").write_text("WIDTH = 2\n")
    (home / "links.txt").write_text("0 1\n")
    (home / "my.toml").write_text(TEXT)
    before = list(sys.path)
    run = sdfeel.Run(sdfeel.load(home / "my.toml"), out=tmp_path / "run")
    for event in run:
        if isinstance(event, Round) and event.number == 2:
            break
    run.close()
    # From here on as another program in another directory would find it.
    monkeypatch.chdir(tmp_path)
    sys.path[:] = before
    forget()
    yield tmp_path
    sys.path[:] = before
    forget()


def forget() -> None:
    for name in ("code_of_mine", "helper_of_mine"):
        sys.modules.pop(name, None)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a module": (
        lambda at: (at / "code_of_mine.py").write_text(f"{CODE}# another version"),
        "code_of_mine.py has",
    ),
    "a module that it imports": (
        lambda at: (at / "helper_of_mine.py").write_text("WIDTH = 3\n"),
        "helper_of_mine.py has",
    ),
    "a file": (lambda at: (at / "links.txt").write_text("1 0\n"), "links.txt has"),
    "its data": (
        lambda at: (at / "code_of_mine.py").write_text(CODE.replace("/ 120", "/ 60")),
        "its data and .*code_of_mine.py have",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_named_and_refused_or_accepted_and_noted(what: str, begun: Path) -> None:
    change, told = CHANGES[what]
    change(begun / "home")
    with pytest.raises(sdfeel.RunError, match=f"{told} changed since the run in"):
        list(sdfeel.resume(begun / "run").session)
    if what == "a module":
        assert "code_of_mine.py has changed since this was run" in call("show", begun / "run").err
    forget()
    rest = list(sdfeel.resume(begun / "run", accept_changes=True).session)
    assert isinstance(rest[-1], Finished)
    notes = [e.message for e in sdfeel.open(begun / "run").events if isinstance(e, Warned)]
    assert any(note.startswith("continued although ") for note in notes)
    record = sdfeel.open(begun / "run").provenance
    assert record is not None
    assert len(record.accepted) == 1


def test_a_run_is_continued_from_elsewhere_and_started_anew_to_the_same_bits(begun: Path) -> None:
    (begun / "code_of_mine.py").write_text("raise AssertionError  # not the one beside my.toml\n")
    end = list(sdfeel.resume(begun / "run").session)[-1]
    told = call("rerun", begun / "run", "--out", begun / "again")
    assert "the same, bit for bit" in told.err
    again = list(sdfeel.open(begun / "again").events)
    assert isinstance(end, Finished)
    assert isinstance(again[-1], Finished)
    assert again[-1].model_sha256 == end.model_sha256
    assert any(isinstance(e, Warned) and "again" in e.message for e in again)


def test_the_record_names_versions_machine_engine_data_code_and_command(begun: Path) -> None:
    record = json.loads((begun / "run" / "provenance.json").read_text())
    assert set(record["versions"]) == {"sdfeel", "torch", "numpy", "Python"}
    assert set(record["machine"]) == {"system", "CPU", "instruction set", "arithmetic"}
    assert record["machine"]["arithmetic"] == arithmetic()
    assert set(record["sources"]) == {"code_of_mine", "helper_of_mine", "network.graph"}
    assert record["roots"] == [str(begun / "home")]
    assert record["command"][1:] == sys.argv[1:]
    assert record["engine"] == "loop"
    assert len(record["data"]) == 64


def test_runs_of_earlier_versions_and_on_other_machines_are_continued(begun: Path) -> None:
    shutil.copytree(begun / "run", begun / "old")
    shutil.copytree(begun / "run", begun / "moved")
    (begun / "old" / "provenance.json").unlink()
    sys.path.insert(0, str(begun / "home"))
    assert isinstance(list(sdfeel.resume(begun / "old").session)[-1], Finished)
    kept = Provenance.kept(begun / "moved")
    assert kept is not None
    Provenance.keep(replace(kept, versions={**kept.versions, "torch": "1.0"}), begun / "moved")
    told = [e.message for e in sdfeel.resume(begun / "moved").session if isinstance(e, Warned)]
    assert any("torch was 1.0 and is" in each for each in told)


def test_a_run_continues_where_torch_rounds_differently_and_says_so(begun: Path) -> None:
    """Records of earlier versions have only the CPU's name and instruction set for that."""
    kept = Provenance.kept(begun / "run")
    assert kept is not None
    here = kept.machine

    def told(machine: dict[str, str], torch: str = kept.versions["torch"]) -> list[str]:
        versions = {**kept.versions, "torch": torch}
        return provenance.drift(replace(kept, machine=machine, versions=versions), kept)

    assert told(dict(here)) == told({**here, "CPU": "another with the same sums"}) == []
    (line,) = told({**here, "arithmetic": "a" * 64, "CPU": "a Zen", "instruction set": "AVX2"})
    assert line == (
        "torch rounded as on a Zen (AVX2) and now rounds as on "
        f"{here['CPU']} ({here['instruction set']})"
    )
    earlier = {key: value for key, value in here.items() if key != "arithmetic"}
    assert told(earlier) == []
    assert len(told({**earlier, "CPU": "a Zen"})) == 1
    (line,) = told({**here, "arithmetic": "a" * 64}, torch="1.0")
    assert line.startswith("torch was 1.0")


@pytest.mark.parametrize("damaged", ["", "{", "[]", "{}", "\x00"])
def test_a_record_that_cannot_be_read_is_reported_and_written_again(
    damaged: str, begun: Path
) -> None:
    """Otherwise data could change behind it, and nobody would say so."""
    (begun / "run" / "provenance.json").write_text(damaged)
    sys.path.insert(0, str(begun / "home"))
    events = list(sdfeel.resume(begun / "run").session)
    told = [event.message for event in events if isinstance(event, Warned)]
    assert "provenance.json cannot be read: data or code may have changed" in told
    kept = Provenance.kept(begun / "run")
    assert kept is not None
    assert kept.accepted == tuple(each for each in told if "cannot be read" in each)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_only_files_that_could_change_a_run_count_as_changes_of_the_project(tmp_path: Path) -> None:
    package, results = tmp_path / "package", tmp_path / "results"
    for directory in (package, results):
        directory.mkdir()
        (directory / "file").write_text("first")
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        finished(["git", "-C", tmp_path, *words], check=True)

    def changed(part: str) -> str:
        provenance.repository.cache_clear()
        found = provenance.repository(str(package), part)
        assert found is not None
        return found["changed"]

    assert (changed("."), changed(":/")) == ("no", "no")
    (results / "file").write_text("second")
    assert (changed("."), changed(":/")) == ("no", "yes")
    (package / "file").write_text("second")
    assert (changed("."), changed(":/")) == ("yes", "yes")


def test_the_commit_of_the_users_repository_is_recorded(begun: Path) -> None:
    assert provenance.repository(str(begun)) is None
    here = provenance.repository(str(Path(__file__).parent))
    if here is not None:  # the tests may run outside of one
        assert len(here["commit"]) == 40
        assert here["changed"] in ("yes", "no")
    kept = Provenance.kept(begun / "run")
    assert kept is not None
    assert kept.repository is None
    own = provenance.project()
    assert kept.project == own  # None if it was installed
    assert own is None or (here is not None and own["directory"] == here["directory"])
