"""Shared by all tests."""

import gc
import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import examples

# Two workers share two cores: torch's other threads, which spin while they wait, would only be in
# the way. Tests about threads ask for their own number. This must come before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Models are compiled in a third of the time, to the same bits. Tests about what users get ask for
# that: `fully_optimised`.
os.environ.setdefault("SDFEEL_NATIVE_LEVEL", "g")

# What a shell starts in the background (`make test-slow &`) ignores Ctrl-C, as with `nohup`, and so
# would every process of a test that presses it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Other programs may have the machine: no example is wrong because it came late. A directory may
# serve all examples of a test.
settings.register_profile(
    "patient",
    deadline=None,
    max_examples=examples.USUAL,
    derandomize=examples.MANY == 1,  # the same every time, unless many are asked for
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("patient")

HERE = Path(__file__).parent
STARTED = time.monotonic()
SPENT: dict[str, float] = defaultdict(float)  # seconds of CPU by test


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "print the N costliest tests by CPU time, which a busy machine hardly changes"
    parser.addoption("--cpu", type=int, default=0, metavar="N", help=text)
    text = "run every test N times, each with another seed of tests/live/timeless.py"
    parser.addoption("--seeds", type=int, default=0, metavar="N", help=text)
    text = "run the tests in another order, drawn from this seed"
    parser.addoption("--shuffle", type=int, default=None, metavar="SEED", help=text)
    text = "begin no test later than so many seconds after the start; skip the rest, and say so"
    parser.addoption("--within", type=float, default=float("inf"), metavar="SECONDS", help=text)
    text = "begin with the Nth file, counted round and round: with --within, others get their turn"
    parser.addoption("--first", type=int, default=0, metavar="N", help=text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if seeds := metafunc.config.getoption("seeds"):
        metafunc.parametrize("_seed", range(seeds), indirect=True)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are drawn at random are the same every time, or those of another seed."""
    seed = getattr(request, "param", 0)
    monkeypatch.setenv("TIMELESS_SEED", str(seed))
    random.seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: Python need not look through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)
    if first := config.getoption("first"):
        files = list(dict.fromkeys(item.path for item in items))
        turn = {path: (number - first) % len(files) for number, path in enumerate(files)}
        items.sort(key=lambda item: turn[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() - STARTED > item.config.getoption("within"):
        pytest.skip("out of time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGAN] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.cpu = cpu_seconds() - item.stash[BEGAN]  # type: ignore[attr-defined]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SPENT[report.nodeid] += getattr(report, "cpu", 0.0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if late := sum("out of time" in str(each.longrepr) for each in skipped):
        terminalreporter.write_line(f"{late} tests were not begun: out of time")
    count = config.getoption("cpu")
    costliest = sorted(SPENT.items(), key=lambda spent: spent[1], reverse=True)[:count]
    if costliest:
        terminalreporter.write_line(f"{sum(SPENT.values()):.1f} s of CPU in all tests")
    for name, seconds in costliest:
        terminalreporter.write_line(f"{seconds:6.2f} s  {name}")


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


BEGAN = pytest.StashKey[float]()


@pytest.fixture(scope="session")
def vectors() -> Any:
    """The specification's test vectors."""
    return json.loads((HERE / "vectors.json").read_text())


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """One cache for all tests and workers: what was compiled once need not be compiled again.

    Compiled models are named by everything they depend on, as is matplotlib's list of fonts:
    they outlive the session, in `.pytest_cache`.
    """
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "cache"
    kept: pytest.Cache | None = getattr(pytestconfig, "cache", None)  # none if pytest is told so
    if kept is not None:
        for name in ("sdfeel/native", "matplotlib"):
            link = cache / name
            link.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # the other worker was first
                link.symlink_to(kept.mkdir(link.name))
    return cache


@pytest.fixture(autouse=True)
def _quiet_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the disk: a killed process loses nothing that the kernel has."""
    monkeypatch.setattr(os, "fsync", os.fstat)
    if (store := sys.modules.get("sdfeel.live.store")) is not None:
        monkeypatch.setattr(store, "DURABLE", "off")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A federation of processes in which nothing happens says who waits for whom, and fails."""
    local = sys.modules.get("sdfeel.deploy.local")
    if local is not None:
        monkeypatch.setattr(local, "PATIENCE", 120.0)


@pytest.fixture
def fully_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are compiled as users have them."""
    monkeypatch.delenv("SDFEEL_NATIVE_LEVEL")


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are empty, for tests that are about something else: a run's take two seconds."""
    empty = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    monkeypatch.setattr("sdfeel.report.drawing._rendered", lambda figure, kind: empty)


@pytest.fixture
def _drawn() -> None:
    """This test looks at pictures."""


DRAWN = ("report", "figures", "dashboard", "docs", "cli")  # folders of tests that may do so


@pytest.fixture(autouse=True)
def _mostly_undrawn(request: pytest.FixtureRequest) -> None:
    """Elsewhere, `_undrawn` is for all tests that do not ask for `_drawn`."""
    may = any(request.path.is_relative_to(HERE / folder) for folder in DRAWN)
    if not may and "_drawn" not in request.fixturenames and "sdfeel.report.drawing" in sys.modules:
        request.getfixturevalue("_undrawn")
