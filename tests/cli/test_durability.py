"""Whatever stops a run, `sdfeel resume` ends in the same bits: really killed, really damaged."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from textwrap import dedent

import pytest
import torch
from safetensors.torch import save

from sdfeel.run import many as many_runs
from tests.cli.command import Child, Outcome, call, settings
from tests.waiting import DEADLINE, finished, started, until

pytestmark = pytest.mark.usefixtures("_undrawn")

ROUNDS = 24
CHECKPOINT, EVENTS, EXPERIMENT = "checkpoint.safetensors", "events.jsonl", "experiment.toml"
EVERY_ROUND = "checkpoint.every_seconds=0"
# Settings, then the rounds at which the run and each of its resumes are killed.
JOBS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "a checkpoint after every round": ((EVERY_ROUND,), (1, 8, 16)),
    "hardly any checkpoint": (("checkpoint.every_seconds=1000",), (3, 15)),
    "a few random clients per round": (
        (
            "checkpoint.every_seconds=0.05",
            "scheme.name=fedavg",
            "scheme.participants=4",
            "training.optimizer=adam",
            "training.learning_rate=0.01",
        ),
        (1, 15),
    ),
}


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than these runs, and is tested elsewhere."""
    monkeypatch.setattr("sdfeel.report.drawing.save", lambda *given: None)


def options(*more: str) -> list[str]:
    """A run of ROUNDS quick rounds, each of them measured."""
    chosen: tuple[str, ...] = (f"training.iterations={5 * ROUNDS}", "model.name=logistic")
    chosen += ("evaluation.every=1", "training.engine=loop")  # quick to start
    return [*settings(), *(word for each in (*chosen, *more) for word in ("--set", each))]


def rounds(directory: Path) -> int:
    """The round that the log has reached."""
    log = directory / EVENTS
    lines = log.read_text().splitlines()[:-1] if log.is_file() else []
    return max((json.loads(each).get("number", 0) for each in lines), default=0)


def model(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome.err
    return str(json.loads(outcome.out)["model_sha256"])


def begun(directory: Path, until: int, *more: str) -> Path:
    """A run that was killed after this many rounds."""
    child = Child(directory.parent, "run", *options(*more), "--out", directory)
    child.until(lambda: rounds(directory) >= until)
    child.send(signal.SIGKILL)
    assert child.end().code == -signal.SIGKILL
    return directory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("whole") / "run"
    return directory, model(call("run", *options(EVERY_ROUND), "--out", directory, "--json"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed on its way; copy it before use."""
    return begun(tmp_path_factory.mktemp("killed") / "run", 10, EVERY_ROUND)


@pytest.fixture
def damaged(killed: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(killed, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_run_killed_many_times_ends_as_if_nothing_had_happened(job: str, tmp_path: Path) -> None:
    more, moments = JOBS[job]
    whole, run = tmp_path / "whole", tmp_path / "run"
    expected = model(call("run", *options(*more), "--out", whole, "--json"))
    begun(run, moments[0], *more)
    for moment in moments[1:]:
        child = Child(tmp_path, "resume", run)
        child.until(lambda moment=moment: rounds(run) >= moment)  # type: ignore[misc]
        child.send(signal.SIGKILL)
        assert child.end().code == -signal.SIGKILL
    assert model(call("resume", run, "--json")) == expected
    for name in ("metrics.csv", "model.safetensors", EXPERIMENT):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_killed_while_it_writes_a_checkpoint_continues_from_the_one_before(
    tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    run = begun(tmp_path / "run", 5, EVERY_ROUND)
    draft = run / f".{CHECKPOINT}.1.tmp"  # what a kill in that moment leaves behind
    draft.write_bytes(b"half a checkpoint")
    assert model(call("resume", run, "--json")) == uninterrupted[1]


def test_a_run_killed_before_its_experiment_was_written_can_be_started_again(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / f".{EXPERIMENT}.1.tmp").write_text("seed")
    assert call("run", *settings(), "--out", run).code == 0


def test_a_run_killed_before_its_first_checkpoint_begins_again(
    tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    run = tmp_path / "run"
    child = Child(tmp_path, "run", *options(EVERY_ROUND), "--out", run)
    child.until((run / EXPERIMENT).exists)
    child.send(signal.SIGKILL)
    assert child.end().code == -signal.SIGKILL
    (run / CHECKPOINT).unlink(missing_ok=True)
    assert model(call("resume", run, "--json")) == uninterrupted[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_after_the_round_and_says_how_to_continue(
    number: signal.Signals, tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    run = tmp_path / "run"
    child = Child(tmp_path, "run", *options(), "--out", run, "--json")
    child.until(lambda: rounds(run) >= 2)
    child.send(number)
    outcome = child.end()
    assert outcome.code in ((130,) if number is signal.SIGINT else (130, 143))
    said = json.loads(outcome.out)  # a document for scripts, also when there is nothing to report
    assert list(said) == ["error"]
    assert "interrupted" in said["error"]
    assert f"sdfeel resume {run}" in outcome.sentence
    assert "Traceback" not in outcome.err
    done = rounds(run)
    assert 2 <= done < ROUNDS
    resumed = call("resume", run, "--json")
    assert f"round {done + 1}/" in resumed.err  # nothing was done twice
    assert model(resumed) == uninterrupted[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(signal.SIGINT, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, signal.SIGTERM, marks=pytest.mark.slow),
        (signal.SIGTERM, signal.SIGINT),  # as the message after the first one says
    ],
)
def test_a_second_signal_stops_at_once(
    first: signal.Signals, second: signal.Signals, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    endless = ("training.iterations=9000000", "scheme.tau1=3000000")
    child = Child(tmp_path, "run", *options(*endless), "--out", run)
    child.until(lambda: '"evaluated"' in _text(run / EVENTS))
    child.send(first)
    child.until(lambda: child.says("stopping after this round"))
    child.send(second)
    outcome = child.end()  # the round would take hours
    assert outcome.code in (130, 143)
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_the_installed_command_stops_on_ctrl_c(tmp_path: Path) -> None:
    run = tmp_path / "run"
    program = str(Path(sys.executable).with_name("sdfeel"))
    command = [program, "run", *options(), "--out", str(run)]
    with started(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "round 0/" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 130
        assert f"sdfeel resume {run}" in err


PRESS = "os.kill(os.getpid(), signal.SIGINT); print('it was pressed', flush=True)"
# Moments at which Python or a package would lose Ctrl-C, or make something else of it. That it was
# pressed is said there and then: a moment later, it may already have been tried again.
BAD_MOMENTS = {
    "a package that swallows it loads": f"""
        try:
            {PRESS}
        except BaseException:
            pass
        """,
    "an object is deleted": f"""
        class Dying:
            def __del__(self):
                {PRESS}
        def moment():
            Dying()
        """,
    "a process is started": f"""
        from sdfeel.core.interrupts import uninterrupted
        def moment():
            with uninterrupted():
                {PRESS}
                for _ in range(1000):
                    pass
        """,
    "pydantic validates": f"""
        import pydantic
        class Careful(pydantic.BaseModel):
            value: int
            @pydantic.field_validator("value", mode="wrap")
            @classmethod
            def check(cls, value, handler):
                {PRESS}
                return handler(value)
        def moment():
            try:
                Careful(value=1)
            except BaseException:
                print("caught")
        """,
}


@pytest.mark.parametrize("moment", BAD_MOMENTS)
def test_ctrl_c_is_never_lost(tmp_path: Path, moment: str) -> None:
    (tmp_path / "moments.py").write_text("import os, signal\n" + dedent(BAD_MOMENTS[moment]))
    code = """
        import sys, types, sdfeel.__main__ as entry
        def run():
            import moments
            getattr(moments, "moment", print)()
            while True:
                pass
        sys.modules["sdfeel.cli"] = types.SimpleNamespace(main=run)
        entry.main()
        """
    outcome = finished([sys.executable, "-c", dedent(code)], cwd=tmp_path)
    assert (outcome.returncode, outcome.stderr) == (130, "")
    assert outcome.stdout.strip() == "it was pressed"


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = Child(tmp_path, "run", *options("training.iterations=9000000"), "--out", run)
    child.until(lambda: rounds(run) >= 1)
    resumed, started = call("resume", run), call("run", *options(), "--out", run)
    assert resumed.code != 0
    assert "in use by another process" in resumed.sentence
    assert started.code != 0
    shown = call("show", run, "--json")  # looking is allowed
    assert json.loads(shown.out)["state"] == "unfinished"
    child.send(signal.SIGINT)
    assert child.end().code == 130
    assert model_is_readable(run)


def model_is_readable(run: Path) -> bool:
    """Is every line of the log an event?"""
    return all("event" in json.loads(line) for line in (run / EVENTS).read_text().splitlines())


def test_a_full_disk_is_reported_and_the_run_can_be_resumed_later(
    tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    run = tmp_path / "run"
    child = Child(tmp_path, "run", *options(EVERY_ROUND), "--out", run, limit=12_000)
    outcome = child.end()
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert outcome.sentence.startswith("sdfeel: ")
    assert str(run) in outcome.sentence  # which disk?
    assert model(call("resume", run, "--json")) == uninterrupted[1]


def test_a_comparison_called_again_keeps_what_is_finished(tmp_path: Path) -> None:
    race = str(tmp_path / "race")
    command = ("compare", *options(), "--schemes", "fedavg,feel", "--jobs", "1", "--out", race)
    child = Child(tmp_path, *command, "--json")
    child.until(lambda: rounds(tmp_path / "race" / "feel") >= 1)
    child.send(signal.SIGINT)
    stopped = child.end()
    assert stopped.code == 130
    log = (tmp_path / "race" / "fedavg" / EVENTS).read_bytes()
    again = call(*command, "--json")
    assert again.code == 0, again.err
    assert (tmp_path / "race" / "fedavg" / EVENTS).read_bytes() == log
    assert [run["scheme"] for run in json.loads(again.out)["runs"]] == ["fedavg", "feel"]
    assert "sdfeel compare" in stopped.sentence  # resuming one of the runs is not the race


def test_a_finished_run_is_not_run_again(uninterrupted: tuple[Path, str]) -> None:
    run, _ = uninterrupted
    before = {path: path.read_bytes() for path in run.iterdir()}
    for outcome in (call("resume", run), call("run", *options(), "--out", run)):
        assert outcome.code != 0
        assert str(run) in outcome.sentence
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def visible(run: Path) -> dict[str, bytes]:
    """What the directory holds; drafts and the lock are hidden files."""
    return {p.name: p.read_bytes() for p in run.iterdir() if not p.name.startswith(".")}


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Damage: other words in a text."""

    def damage(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return damage


def written(name: str, content: bytes) -> Callable[[Path], object]:
    """Damage: another content."""
    return lambda run: (run / name).write_bytes(content)


def cut(name: str, size: int) -> Callable[[Path], object]:
    """Damage: only the first bytes are left."""
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:size])


def flipped(run: Path) -> None:
    """One bit of one weight."""
    content = bytearray((run / CHECKPOINT).read_bytes())
    content[-1000] ^= 64
    (run / CHECKPOINT).write_bytes(content)


def line_of_log(content: bytes) -> Callable[[Path], object]:
    """Damage: the second line of the log."""

    def damage(run: Path) -> None:
        lines = (run / EVENTS).read_bytes().splitlines(keepends=True)
        (run / EVENTS).write_bytes(b"".join([lines[0], content + b"\n", *lines[2:]]))

    return damage


CHANGED = "experiment|checkpoint"  # one does not belong to the other
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a checkpoint cut short": (cut(CHECKPOINT, 1000), CHECKPOINT),
    "an empty checkpoint": (cut(CHECKPOINT, 0), CHECKPOINT),
    "a checkpoint of noise": (written(CHECKPOINT, bytes(range(256)) * 20), CHECKPOINT),
    "a checkpoint with one wrong bit": (flipped, CHECKPOINT),
    "a foreign file as checkpoint": (
        written(CHECKPOINT, save({"a": torch.ones(3)})),
        CHECKPOINT,
    ),
    "a log without its beginning": (written(EVENTS, b""), EVENTS),
    "a log cut short": (cut(EVENTS, 300), EVENTS),
    "no log": (lambda run: (run / EVENTS).unlink(), EVENTS),
    "a garbled line in the log": (line_of_log(b"garbage"), "line 2"),
    "a binary line in the log": (line_of_log(b"\xff\xfe\x00"), "line 2"),
    "an experiment that is not TOML": (written(EXPERIMENT, b"[["), EXPERIMENT),
    "an experiment that is not text": (written(EXPERIMENT, b"\xff\x00"), EXPERIMENT),
    "an emptied experiment": (written(EXPERIMENT, b""), CHANGED),
    "half an experiment": (cut(EXPERIMENT, 200), CHANGED),
    "no experiment": (lambda run: (run / EXPERIMENT).unlink(), EXPERIMENT),
    "another seed": (replaced(EXPERIMENT, "seed = 0", "seed = 1"), CHANGED),
    "more clients": (replaced(EXPERIMENT, "clients = 10", "clients = 12"), CHANGED),
    "more servers": (replaced(EXPERIMENT, "servers = 3", "servers = 4"), CHANGED),
    "another model": (replaced(EXPERIMENT, '"logistic"', '"mlp"'), CHANGED),
    "another scheme": (replaced(EXPERIMENT, '"sd-feel"', '"hierfavg"'), CHANGED),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_refused_in_one_sentence_and_left_alone(
    damage: str, damaged: Path
) -> None:
    spoil, told = DAMAGES[damage]
    spoil(damaged)
    before = visible(damaged)
    outcome = call("resume", damaged)
    assert outcome.code != 0
    assert outcome.sentence.startswith("sdfeel: ")
    assert "Traceback" not in outcome.err
    assert re.search(told, outcome.sentence), outcome.sentence
    assert visible(damaged) == before


@pytest.mark.parametrize(
    "tail", [b'{"event": "rou', b"garbage\n", b"\x00" * 99, b"\xff\xff\n"], ids=repr
)
def test_what_the_log_has_after_the_last_checkpoint_is_done_again(
    tail: bytes, damaged: Path, uninterrupted: tuple[Path, str]
) -> None:
    """A crash of the machine may leave anything at the end of the log."""
    with (damaged / EVENTS).open("ab") as log:
        log.write(tail)
    assert model(call("resume", damaged, "--json")) == uninterrupted[1]


@pytest.mark.parametrize("damage", ["an experiment that is not text", "no experiment"])
def test_a_run_whose_experiment_is_lost_can_still_be_looked_at_or_is_refused_clearly(
    damage: str, damaged: Path
) -> None:
    DAMAGES[damage][0](damaged)
    outcome = call("show", damaged, "--json")
    assert "Traceback" not in outcome.err
    assert outcome.code == 0 or outcome.sentence.startswith("sdfeel: ")


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


# What has happened when Ctrl-C is pressed: nothing yet, a directory, or the first rounds.
def any_left(group: int) -> bool:
    """Is there a process of this group? The dead count until the system has seen them off."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["", "race", "race/fedavg/events.jsonl"])
def test_ctrl_c_ends_a_comparison_with_all_its_processes_also_while_it_starts(
    tmp_path: Path, sign: str
) -> None:
    program, race = str(Path(sys.executable).with_name("sdfeel")), tmp_path / "race"
    many = options("training.iterations=9000000")
    command = [program, "compare", *many, "--schemes", "fedavg,feel", "--out", str(race)]
    with started(command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:
        until(lambda: (tmp_path / sign).exists(), f"there was never a {sign}")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode != 0
        if sign:  # Python's own start, before ours, has words of its own
            assert "Traceback" not in err
        until(lambda: not any_left(process.pid), "its processes never ended")
    assert many_runs.PATIENCE + many_runs.LOOK < 2  # seconds: then it is ended by force
