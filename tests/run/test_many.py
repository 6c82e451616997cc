"""Runs side by side: the same bits as one after another, and nothing lost."""

import multiprocessing as mp
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sdfeel.core.errors import Diverged
from sdfeel.core.events import Finished
from sdfeel.run import many as many_runs
from sdfeel.run.many import Many, Planned, Progressed, QueuedRun, on_one_core
from sdfeel.run.session import finished
from tests.run.test_session import ending, run, small
from tests.waiting import joined


def test_side_by_side_gives_the_bits_of_one_after_another(tmp_path: Path) -> None:
    seeds = (1, 2, 3)
    alone = {s: ending(run(small(f"seed={s}"), tmp_path / f"alone{s}")) for s in seeds}
    jobs = {f"{s}": QueuedRun(on_one_core(small(f"seed={s}")), tmp_path / f"{s}") for s in seeds}
    many = Many(jobs, at_once=2)
    news = list(many)
    assert not many.unfinished
    assert {n.label: n.rounds for n in news if isinstance(n, Planned)} == {"1": 6, "2": 6, "3": 6}
    for seed in seeds:
        mine = [n.event for n in news if isinstance(n, Progressed) and n.label == f"{seed}"]
        assert isinstance(mine[-1], Finished)
        assert mine[-1] == alone[seed]
    again = list(Many(jobs, at_once=2))
    assert all(isinstance(n, Planned) for n in again)  # finished runs are not run again


def test_stopping_keeps_what_was_done_and_starts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdfeel.run.many.PATIENCE", 300.0)  # a busy machine takes its time
    long = [f"seed={s}" for s in range(3)]
    jobs = {
        s: QueuedRun(on_one_core(small(s, "training.iterations=50000")), tmp_path / s) for s in long
    }
    many = Many(jobs, at_once=2)
    for news in many:
        if isinstance(news, Progressed) and news.label == "seed=0":  # the other may come later
            many.stop()
    assert many.unfinished == set(long)
    assert not (tmp_path / "seed=2").exists()
    assert finished(tmp_path / "seed=0") is None
    assert (tmp_path / "seed=0" / "checkpoint.safetensors").exists()


def test_an_error_names_its_run_and_ends_the_others(tmp_path: Path) -> None:
    jobs = {
        "good": QueuedRun(on_one_core(small("training.iterations=100000")), tmp_path / "good"),
        "bad": QueuedRun(on_one_core(small("training.learning_rate=1e30")), tmp_path / "bad"),
    }
    with pytest.raises(Diverged, match="bad: training diverged at client"):
        list(Many(jobs, at_once=2))


@pytest.mark.parametrize(
    "moment",
    [
        *(0.0, 0.01, 0.1),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (0.001, 0.003, 0.03, 0.3)),
    ],
)
def test_a_stop_is_never_lost_however_early_it_comes(tmp_path: Path, moment: float) -> None:
    jobs = {
        f"run-{n}": QueuedRun(small("training.iterations=1000000"), tmp_path / str(n))
        for n in range(3)
    }
    many = Many(jobs, at_once=2)
    before = signal.signal(signal.SIGINT, lambda *_: many.stop())
    key = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
    try:
        key.start()
        for _ in many:
            pass
        joined(key)
    finally:
        signal.signal(signal.SIGINT, before)
    assert many.unfinished == set(jobs)
    assert not mp.active_children()


def test_a_process_that_does_not_end_after_its_last_message_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_runs, "GOODBYE", 0.2)
    monkeypatch.setattr(many_runs, "_carry_out", stays)
    many = Many({"run": QueuedRun(small(), tmp_path / "run")}, at_once=1)
    assert list(many) == []
    assert many.unfinished == set()
    assert not mp.active_children()


def stays(pipe: Connection, label: str, job: QueuedRun) -> None:
    pipe.send("finished")
    pipe.send(None)
    time.sleep(3600)
