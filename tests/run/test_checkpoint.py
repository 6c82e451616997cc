"""Checkpoints that hold only what has changed: whatever happens, they give a state of the run."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from torch import Tensor

from sdfeel.core.decide import Decisions
from sdfeel.core.run_files import CHANGES, CHECKPOINT
from sdfeel.engine.messages import Compress, Packing, TopK
from sdfeel.run.checkpoint import Checkpoints, load_checkpoint
from sdfeel.schemes import AsyncSDFeel, FedAsync, FedBuff, Scaffold, SDFeel
from sdfeel.sim.simulate import Simulation
from sdfeel.sim.state import LaneState, ModelRows, State
from tests.sim.test_ahead import Wanders, decisions

LOSSY = Packing((4, 3), 3, (Compress(TopK(share=0.3)),), TopK(share=0.5))
Make = Callable[..., Simulation]


def made(chosen: Decisions, **how: Any) -> Make:
    return lambda state=None: Simulation(chosen, Wanders(1), state, **how)


RUNS: dict[str, Make] = {
    "fedasync": made(decisions(FedAsync(tau1=3)), average=0.9),
    "async-sd-feel": made(decisions(AsyncSDFeel(theta_min=2))),
    "by hearsay": made(decisions(AsyncSDFeel(theta_min=2, staleness="hearsay"))),
    "fedbuff": made(decisions(FedBuff(tau1=2))),
    "lossy": made(decisions(AsyncSDFeel(theta_min=2)), packing=LOSSY),
    "some clients' rows": made(decisions(Scaffold(tau1=1, participants=2))),
    "synchronous": made(decisions(SDFeel(tau1=1))),
}
SAVES, FEW = 14, 7


def content(thing: Any) -> Any:
    """Everything that a state consists of, to be compared; what it has only cached is left out."""
    if isinstance(thing, Tensor):
        return str(thing.dtype), tuple(thing.shape), thing.numpy().tobytes()
    if isinstance(thing, np.ndarray):
        return str(thing.dtype), thing.tolist()
    if isinstance(thing, State):
        return {k: content(v) for k, v in vars(thing).items() if k != "_iterations"}
    if isinstance(thing, LaneState):
        kept = vars(thing).keys() - {"begun", "billed", "tasks"}  # the rest is worked out again
        return {k: content(v) for k, v in vars(thing).items() if k in kept}
    if isinstance(thing, ModelRows):
        return content((thing.servers, thing.first, thing.shelves, thing.written))
    if isinstance(thing, Mapping):
        return {key: content(value) for key, value in sorted(thing.items())}
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return [content(each) for each in thing]
    return content(vars(thing)) if hasattr(thing, "__dict__") else thing


def loaded(directory: Path) -> Any:
    """What is on disk: a state's content, and what was saved with it."""
    saved = load_checkpoint(directory)
    return None if saved is None else (content(saved[0]), saved[1])


def saves(run: Simulation, count: int = SAVES, saved: int = 0) -> Iterator[int]:
    """Stops at a few rounds, the same ones after a resume, and gives the number of each."""
    draws = np.random.default_rng(0)
    stops = np.unique(draws.integers(1, 2 * count, count))
    for stop in stops[stops > saved]:
        for _ in islice(run, int(stop) - run.state.number):
            pass
        yield int(stop)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_on_disk_is_the_state_and_takes_up_no_more_than_it_needs(
    name: str, tmp_path: Path
) -> None:
    run, writer, appended = RUNS[name](), Checkpoints(tmp_path, small=0), 0
    for stop in saves(run):
        writer.save(run.state, {"stop": stop})
        state, extra = loaded(tmp_path)
        assert state == content(run.state)
        assert extra == {"stop": stop}
        sizes = [p.stat().st_size for p in tmp_path.iterdir()]
        appended += len(sizes) - 1
        Checkpoints(tmp_path / "whole").save(run.state, {"stop": stop})
        whole = (tmp_path / "whole" / CHECKPOINT).stat().st_size
        (tmp_path / "whole" / CHECKPOINT).unlink()
        (tmp_path / "whole").rmdir()
        assert sum(sizes) < 2.2 * whole
    assert (appended > 0) == (name != "synchronous")
    writer.save(run.state, {}, whole=True)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    assert loaded(tmp_path) == (content(run.state), {})


def test_lanes_that_begin_from_one_model_share_it_on_disk_and_in_memory(tmp_path: Path) -> None:
    run = RUNS["fedasync"]()
    next(run)
    bases = [each.base for each in run.state.lanes]
    assert len({id(base) for base in bases}) == 2
    Checkpoints(tmp_path).save(run.state, {})
    state, _ = load_checkpoint(tmp_path) or (None, None)
    assert state is not None
    assert len({id(each.base) for each in state.lanes}) == 2


def test_small_states_are_one_file(tmp_path: Path) -> None:
    run, writer = RUNS["fedasync"](), Checkpoints(tmp_path)
    for _ in saves(run):
        writer.save(run.state, {})
        assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


class Killed(BaseException):
    """A kill -9: nothing that comes later happens."""


class Mortal:
    """The operations on files of a process that dies in the middle of one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int) -> None:
        self.left = last
        acts: dict[str, Callable[..., Any]]
        acts = {"replace": os.replace, "unlink": os.unlink, "fsync": lambda file: None}
        for name, act in acts.items():
            patch.setattr(os, name, self._mortal(act))
        opened = Path.open
        patch.setattr(
            Path, "open", lambda path, *how, **more: self._file(opened, path, *how, **more)
        )

    def _dies(self) -> bool:
        self.left -= 1
        return self.left <= 0

    def _mortal(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def acts(*given: Any, **named: Any) -> Any:
            if self._dies():
                raise Killed
            return act(*given, **named)

        return acts

    def _file(self, opened: Callable[..., IO[bytes]], *how: Any, **more: Any) -> IO[bytes]:
        if "r" in how[1]:
            return opened(*how, **more)
        if self._dies():
            raise Killed
        file = opened(*how, **more)
        write = file.write

        def half(content: bytes) -> int:
            if self._dies():
                if self.left == 0:  # the moment itself
                    write(content[: len(content) // 2])
                    file.flush()
                raise Killed
            return write(content)

        return Writing(file, half)  # type: ignore[return-value]


class Writing:
    """A file with another way to write."""

    def __init__(self, file: IO[bytes], write: Callable[[bytes], int]) -> None:
        self._file, self.write = file, write

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, *why: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("name", ["fedasync", "lossy"])
def test_killed_in_the_middle_of_any_write_it_continues_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = RUNS[name]
    whole = make()
    were = {stop: (content(whole.state), {"stop": stop}) for stop in saves(whole, FEW)}
    stops, last, moments = [*were], content(whole.state), 0
    for kill in range(1, 1000):
        directory = tmp_path / str(kill)
        directory.mkdir()
        run, writer, done = make(), Checkpoints(directory, small=0), list[int]()
        with monkeypatch.context() as patch:
            mortal = Mortal(patch, kill)
            try:
                for stop in saves(run, FEW):
                    writer.save(run.state, {"stop": stop})
                    done.append(stop)
            except Killed:
                pass
        if mortal.left > 0:
            break
        moments += 1
        found = loaded(directory)  # the newest that was whole, or the one in progress
        newest = [None, *were.values()][len(done) : len(done) + 2]
        assert found in newest
        again, extra = load_checkpoint(directory) or (None, {"stop": 0})
        run = make(again)
        for _ in saves(run, FEW, extra["stop"]):
            pass
        assert content(run.state) == last
        Checkpoints(directory).save(run.state, {})
        assert loaded(directory) == (last, {})
    assert moments > 4 * len(stops)


def test_what_follows_damaged_changes_is_done_again(tmp_path: Path) -> None:
    """Cut anywhere, or with a wrong bit, changes count up to there: a state that there was."""
    run, writer = RUNS["fedasync"](), Checkpoints(tmp_path, small=0)
    path, draws, were = tmp_path / CHANGES, np.random.default_rng(4), dict[int, Any]()
    for stop in saves(run):
        writer.save(run.state, {"stop": stop})
        if not path.exists():
            were.clear()
        were[path.stat().st_size if path.exists() else 0] = content(run.state), {"stop": stop}
        if len(were) == 5:
            break
    whole = path.read_bytes()
    for at in draws.integers(0, len(whole), 40).tolist():
        wrong = bytes([whole[at] ^ (1 << int(draws.integers(8)))])
        for damaged in (whole[:at], whole[:at] + wrong + whole[at + 1 :]):
            path.write_bytes(damaged)
            assert loaded(tmp_path) == were[max(end for end in were if end <= at)]
