"""Durable runs: whatever happens, the same bits in the end."""

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sdfeel.core.errors import AnotherRun, Diverged, RunError
from sdfeel.core.events import Evaluated, Event, Finished, Round, Started, Warned
from sdfeel.engine.combine import mean
from sdfeel.experiment.build import prepare
from sdfeel.experiment.loading import load
from sdfeel.experiment.schema import Experiment
from sdfeel.models.zoo import build
from sdfeel.run import checkpoint, store
from sdfeel.run.drive import fingerprint
from sdfeel.run.session import finished, resume, start, start_or_resume
from sdfeel.schemes import SCHEMES
from sdfeel.sim.state import ModelRows
from tests.engine.native.helpers import needs_compiler

SMALL = (
    "network.clients=12",
    "network.servers=3",
    "training.iterations=30",
    "data.classes_per_client=3",
    "checkpoint.every_seconds=0",
    "evaluation.every=2",
)


def small(*more: str) -> Experiment:
    return load(None, [*SMALL, *more])


def run(experiment: Experiment, directory: Path) -> list[Event]:
    return list(start(experiment, directory))


def ending(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_a_run_leaves_its_story_behind(tmp_path: Path) -> None:
    events = run(small(), tmp_path / "r")
    assert isinstance(events[0], Started)
    assert [e.number for e in events if isinstance(e, Round)] == [1, 2, 3, 4, 5, 6]
    assert [e.number for e in events if isinstance(e, Evaluated)] == [0, 2, 4, 6]
    assert ending(events).reason == "all iterations done"
    assert list(store.read_events(tmp_path / "r")) == events
    rows = (tmp_path / "r" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 4
    assert rows[0].startswith("number,iterations,seconds,bytes")
    assert load(tmp_path / "r" / "experiment.toml").training.engine in (
        "loop",
        "parallel",
        "native",
    )


def test_the_model_on_disk_is_the_one_measured(tmp_path: Path) -> None:
    events = run(small("scheme.alpha=2"), tmp_path / "r")
    module = build("mlp", (1, 8, 8), 10, seed=0)
    module.load_state_dict(load_file(tmp_path / "r" / "model.safetensors"))
    row = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert fingerprint(row) == ending(events).model_sha256


def test_the_profile_accounts_for_the_run_and_nothing_after_it(tmp_path: Path) -> None:
    session = start(small(), tmp_path / "r")
    events = list(session)
    first = session.profile()
    assert ending(events)
    assert session.profile() == first
    assert min(first.values()) >= 0
    assert first["training"] > 0


def test_same_seed_same_bits(tmp_path: Path) -> None:
    a = ending(run(small("seed=8"), tmp_path / "a"))
    b = ending(run(small("seed=8"), tmp_path / "b"))
    c = ending(run(small("seed=9"), tmp_path / "c"))
    assert a == b
    assert a.model_sha256 != c.model_sha256


# tests/pairs stops every scheme once: here are those whose state is of its own kind.
STATEFUL = ("sd-feel", "async-sd-feel", "fedasync", "safa", "scaffold", "free-tracking", "adaptive")


@pytest.mark.parametrize(
    "name",
    [name if name in STATEFUL else pytest.param(name, marks=pytest.mark.slow) for name in SCHEMES],
)
def test_stopped_twice_and_resumed_equals_uninterrupted(tmp_path: Path, name: str) -> None:
    periods = ("scheme.tau1=2", "scheme.tau2=2", "scheme.theta_min=2", "training.iterations=16")
    chosen = small(f"scheme.name={name}", *periods, "training.momentum=0.5")
    whole = run(chosen, tmp_path / "whole")
    for stop_after in (1, 4):
        parts = tmp_path / "parts"
        part = resume(parts) if parts.exists() else start(chosen, parts)
        for event in part:
            if isinstance(event, Round) and event.number == stop_after:
                part.stop()
        assert not part.finished
    rest = list(resume(tmp_path / "parts"))
    assert ending(rest) == ending(whole)
    told = [e for e in store.read_events(tmp_path / "parts") if not isinstance(e, Started)]
    assert told == [e for e in whole if not isinstance(e, Started)]
    tables = [(tmp_path / d / "metrics.csv").read_text() for d in ("whole", "parts")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_run_abandoned_in_the_middle_of_a_line_can_be_resumed(
    tmp_path: Path, rounds: int
) -> None:
    """As a kill would leave it: the log is ahead of the checkpoint and ends in half a line."""
    chosen = small("checkpoint.every_seconds=1000")
    whole = ending(run(chosen, tmp_path / "whole"))
    abandoned = iter(start(chosen, tmp_path / "r"))
    for event in abandoned:
        if isinstance(event, Round) and event.number > rounds:
            break
    abandoned.close()  # type: ignore[attr-defined]
    with (tmp_path / "r" / "events.jsonl").open("a") as log:
        log.write('{"event": "round", "num')
    if rounds == 0:
        (tmp_path / "r" / "checkpoint.safetensors").unlink(missing_ok=True)
    assert ending(list(resume(tmp_path / "r"))) == whole


def test_killed_between_the_last_checkpoint_and_the_last_line(tmp_path: Path) -> None:
    whole = ending(run(small(), tmp_path / "r"))
    log = tmp_path / "r" / "events.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:-1]))
    assert finished(tmp_path / "r") is None
    rest = list(resume(tmp_path / "r"))
    assert [type(e).__name__ for e in rest] == ["Started", "Finished"]
    assert ending(rest) == whole


@needs_compiler
@pytest.mark.parametrize("began", [None, "native 1", "torch"])
def test_a_run_with_another_order_of_sums_is_not_resumed(
    began: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1 did not say in which order it added up; natively, it was another one."""
    session = start(small("training.engine=native"), tmp_path / "r")
    for event in session:
        if isinstance(event, Round):
            session.stop()
    known = checkpoint.load_checkpoint(tmp_path / "r")
    assert known is not None
    state, extra = known
    assert extra.pop("bits").startswith("native 2")
    if began:
        extra["bits"] = began
    monkeypatch.setattr("sdfeel.run.session.load_checkpoint", lambda directory: (state, extra))
    with pytest.raises(AnotherRun, match=f"began with the engine's bits '{began or 'native 1'}'"):
        list(resume(tmp_path / "r"))


def test_a_run_of_torch_that_does_not_name_its_bits_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(small("training.engine=loop"), tmp_path / "r")
    for event in session:
        if isinstance(event, Round):
            session.stop()
    known = checkpoint.load_checkpoint(tmp_path / "r")
    assert known is not None
    state, extra = known
    del extra["bits"]
    monkeypatch.setattr("sdfeel.run.session.load_checkpoint", lambda directory: (state, extra))
    assert ending(list(resume(tmp_path / "r")))


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    session = start(small(), tmp_path / "r")
    for event in session:
        if isinstance(event, Round):
            session.stop()
    path = tmp_path / "r" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"checkpoint .* is damaged .*: start the experiment again"):
        list(resume(tmp_path / "r"))


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    run(small(), tmp_path / "r")
    with pytest.raises(RunError, match=r"holds a finished run: see .* show .*`, or choose another"):
        run(small("seed=2"), tmp_path / "r")
    with pytest.raises(RunError, match="is finished: see it with `sdfeel show"):
        resume(tmp_path / "r")
    with pytest.raises(RunError, match=r"another experiment \(its seed is 0, not 2\)"):
        start_or_resume(small("seed=2"), tmp_path / "r")
    assert start_or_resume(small(), tmp_path / "r").finished
    (tmp_path / "r" / "model.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"holds another run: see .*, continue it with .* resume"):
        run(small("seed=2"), tmp_path / "r")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="is not empty"):
        run(small(), tmp_path / "full")
    with pytest.raises(RunError, match=r"is not a run: it has no experiment\.toml"):
        resume(tmp_path / "full")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"):
        run(small(), tmp_path / "file" / "r")


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    first = iter(start(small(), tmp_path / "r"))
    next(first)
    with pytest.raises(RunError, match="in use by another process"):
        next(iter(resume(tmp_path / "r")))


def test_a_damaged_line_in_the_log_is_named(tmp_path: Path) -> None:
    run(small(), tmp_path / "r")
    log = tmp_path / "r" / "events.jsonl"
    lines = log.read_text().splitlines()
    lines[2] = "garbage"
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"line 3 of .* is not an event"):
        list(store.read_events(tmp_path / "r"))


def test_divergence_names_the_round_and_keeps_the_log(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"client \d+.*learning rate 1e\+20.*\(round 1\)"):
        run(small("training.learning_rate=1e20"), tmp_path / "r")
    assert any(isinstance(e, Evaluated) for e in store.read_events(tmp_path / "r"))


def test_a_run_can_stop_at_a_target_or_a_time(tmp_path: Path) -> None:
    reached = run(small("training.target_accuracy=0.2", "evaluation.every=1"), tmp_path / "a")
    assert ending(reached).reason == "target accuracy reached"
    timed = run(small("training.max_seconds=0.05"), tmp_path / "b")
    assert ending(timed).reason == "virtual time is up"
    assert 0.05 <= ending(timed).seconds < 0.15


def test_keys_of_other_schemes_are_noted_and_unknown_ones_refused(tmp_path: Path) -> None:
    events = run(small("scheme.name=fedavg", "scheme.alpha=3"), tmp_path / "a")
    assert Warned("fedavg does not use scheme.alpha") in events
    with pytest.raises(ValueError, match=r"unknown key 'scheme.alhpa'"):
        start(small("scheme.alhpa=3"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"scheme.tau1 must be at least 1, got 0"):
        start(small("scheme.tau1=0"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"scheme.tau1 must be a whole number, got 'often'"):
        start(small("scheme.tau1=often"), tmp_path / "b")


def test_the_consensus_phase_can_be_charged(tmp_path: Path) -> None:
    free = ending(run(small(), tmp_path / "a"))
    paid = ending(run(small("latency.consensus=true", "network.servers=4"), tmp_path / "b"))
    last = [e for e in store.read_events(tmp_path / "b") if isinstance(e, Round)][-1]
    first = [e for e in store.read_events(tmp_path / "a") if isinstance(e, Round)][-1]
    assert free.seconds == first.seconds
    assert paid.seconds > last.seconds
    assert paid.bytes > last.bytes


def test_the_checkpoint_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    run(small(), tmp_path / "r")
    tensors = load_file(tmp_path / "r" / "checkpoint.safetensors")
    assert tensors["models"].shape == (3, 4810)
    assert json.loads((tmp_path / "r" / "events.jsonl").read_text().splitlines()[0])["event"]


ADAPTIVE = ("scheme.name=adaptive", "scheme.budget=0.6", "training.iterations=100000")


def test_a_scheme_can_end_its_run_even_after_a_resume(tmp_path: Path) -> None:
    chosen = small(*ADAPTIVE, "checkpoint.every_seconds=0")
    last = ending(run(chosen, tmp_path / "whole"))
    assert last.reason == "the budget of 0.6 s is spent"
    assert last.seconds == pytest.approx(0.6, rel=0.1)
    part = start(chosen, tmp_path / "parts")
    for before_the_end in (3, 2, 1):
        for event in part:
            if isinstance(event, Round) and event.number == last.number - before_the_end:
                part.stop()
        part = resume(tmp_path / "parts")
    assert ending(list(part)) == last


def test_a_run_that_its_scheme_has_ended_is_only_finished_by_a_resume(tmp_path: Path) -> None:
    whole = ending(run(small(*ADAPTIVE), tmp_path / "r"))
    log = tmp_path / "r" / "events.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:-1]))
    rest = list(resume(tmp_path / "r"))
    assert [type(e).__name__ for e in rest] == ["Started", "Finished"]
    assert ending(rest) == whole


def test_what_a_scheme_returns_is_measured_written_and_finished_with(tmp_path: Path) -> None:
    """The model of lowest loss, not the last one."""
    session = start(small(*ADAPTIVE, "training.learning_rate=0.9"), tmp_path / "r")
    events = list(session)
    measured = [event for event in events if isinstance(event, Evaluated)][-1]
    written = torch.cat(
        [t.reshape(-1) for t in load_file(tmp_path / "r/model.safetensors").values()]
    )
    model, last = _returned(tmp_path / "r")
    assert sorted(written.tolist()) == sorted(model.tolist())
    assert fingerprint(model) == ending(events).model_sha256 != fingerprint(last)
    assert session.prepared.engine.evaluate(model).loss == measured.loss


def _returned(directory: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """What a finished run of adaptive control returns, and the mean of its servers' models."""
    saved = checkpoint.load_checkpoint(directory)
    assert saved is not None
    ready = prepare(load(directory / "experiment.toml"))
    simulation = ready.simulation(state=saved[0])
    return simulation.model(), mean(simulation.net.mass.tolist(), simulation.state.servers)


def test_figures_of_a_scheme_are_in_the_log_and_in_the_table(tmp_path: Path) -> None:
    events = run(small("scheme.name=safa", "scheme.crash_chance=0.2"), tmp_path / "r")
    rounds = {e.number: e.figures for e in events if isinstance(e, Round)}
    assert all(figures.keys() == {"EUR", "SR", "VV"} for figures in rounds.values())
    with (tmp_path / "r" / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["EUR"] for row in rows] == ["", *(str(rounds[n]["EUR"]) for n in (2, 4, 6))]


def test_notes_from_before_the_first_checkpoint_are_repeated(tmp_path: Path) -> None:
    """Keys of other schemes are known to the command that began the run, and to its log."""
    chosen = small("scheme.name=fednova", "scheme.tau1=3", "evaluation.per_client_every=2")
    whole = run(chosen, tmp_path / "whole")
    assert sum(isinstance(event, Warned) for event in whole) > 1
    killed = iter(start(chosen, tmp_path / "r"))
    for event in killed:
        if isinstance(event, Evaluated):
            break
    killed.close()  # type: ignore[attr-defined]
    assert list(resume(tmp_path / "r")) == whole


def test_a_state_whose_scheme_keeps_other_rows_by_now_is_refused(tmp_path: Path) -> None:
    """Such as adaptive control of version 0.1, which did not keep the best model."""
    first = start(small(*ADAPTIVE), tmp_path / "r")
    for event in first:
        if isinstance(event, Round):
            first.stop()
    saved = checkpoint.load_checkpoint(tmp_path / "r")
    assert saved is not None
    state, extra = saved
    state.rows = ModelRows(state.servers, state.rows.first)
    checkpoint.save_checkpoint(tmp_path / "r", state, extra)
    with pytest.raises(
        AnotherRun, match="keeps 0 models apart from the servers', but this one keeps 6"
    ):
        list(resume(tmp_path / "r"))
