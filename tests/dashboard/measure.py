"""Measures the page's promises on this machine: `python -m tests.dashboard.measure`.

Many runs, one huge log and a log that grows, through the real server and a real browser. Figures
depend on the machine and on what else it does, so they are printed and not asserted.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

from playwright.sync_api import Page, sync_playwright

from sdfeel.core.events import Event
from sdfeel.core.run_files import EVENTS
from tests import waiting
from tests.dashboard.browser import FLAGS, MAIN, browser_path, served_by
from tests.dashboard.logs import events, line, measured, played, started, write

RUNS, HUGE, CHANGES = 1000, 1_000_000, 11
SECONDS = 30  # for which a live run is watched
LIVE = ["--set", "training.iterations=100000", "--set", "training.engine=loop"]


def main() -> None:
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        root = Path(place)
        for number in range(RUNS):
            write(root / f"sweep{number // 50}" / f"run{number}", events(100, seed=number))
        _write_huge(root / "huge")
        grows = write(root / "grows", [started(), measured(0), played(1)])
        chromium = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        page = chromium.new_page()
        with served_by(root) as (address, process):
            page.goto(f"{address}/static/icon.svg")  # the browser itself is awake
            size = (root / "huge" / EVENTS).stat().st_size
            for time in ("first time", "again"):
                took = _timed(page, process.pid, lambda: _list(page, address))
                print(f"{RUNS + 2} runs listed:           {took}, {time}")
            for time in ("first time", "again"):
                took = _timed(page, process.pid, lambda: _open(page, address))
                print(f"{HUGE:,} events ({size / 1e6:.0f} MB): {took}, {time}")
            delays = sorted(_live(page, address, grows))
            print(
                f"a change is on the page after {median(delays):.2f} s, at most {delays[-1]:.2f} s"
            )
            for where, sent, busy in _watched(page, address, root):
                cost = f"{sent / 1e6:.2f} MB and {busy:.1%} of a core in the browser"
                print(f"a live run, {where + ':':18}{cost}, per minute ({SECONDS} s watched)")
            print(f"memory of the server:         {_peak(process.pid):.0f} MB at most")
        chromium.close()


def _write_huge(directory: Path) -> None:
    directory.mkdir()
    # Lines are made from a few, for a million of them would take longer than all the rest.
    first: list[Event] = [started(), *(played(number) for number in range(1, 5))]
    few = {lane: line(played(5 + lane)).decode() for lane in range(4)}
    with (directory / EVENTS).open("w") as file:
        file.writelines(line(event).decode() for event in first)
        for number in range(5, HUGE):
            if number % 1000 == 0:
                file.write(line(replace(measured(number), accuracy=number / HUGE)).decode())
                continue
            lane, turn = (number - 1) % 4, (number - 1) // 4
            text = few[lane].replace(f'"number": {5 + lane},', f'"number": {number},')
            file.write(text.replace('"seconds": 2.5', f'"seconds": {1.25 * (turn + 1)}'))


def _timed(page: Page, server: int, work: Callable[[], None]) -> str:
    """Seconds that passed, and CPU seconds of server and page, which other work disturbs less."""
    begin, ours, pages = perf_counter(), _server_seconds(server), _page_seconds(page)
    work()
    passed = perf_counter() - begin
    ours, pages = _server_seconds(server) - ours, _page_seconds(page) - pages
    return f"{passed:.2f} s (CPU: server {ours:.2f}, page {pages:.2f} s)"


def _list(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("button", name=f"Show all {RUNS + 2:,}").wait_for()


def _open(page: Page, address: str) -> None:
    page.goto(f"{address}/run?name=huge")
    page.wait_for_selector(".plot canvas", state="attached")


def _live(page: Page, address: str, run: Path) -> Iterator[float]:
    """Seconds from a line's writing until the page shows it."""
    page.goto(f"{address}/run?name=grows")
    page.wait_for_selector(".plot canvas", state="attached")
    for number in range(1, CHANGES + 1):
        event = replace(measured(4 * number), accuracy=number / 100)
        begin = perf_counter()
        with (run / EVENTS).open("ab") as file:
            file.write(line(event))
        page.locator(".figures dd", has_text=f"{number}.0 %").wait_for()
        yield perf_counter() - begin


def _watched(page: Page, address: str, root: Path) -> Iterator[tuple[str, float, float]]:
    """What watching a run of ten servers costs, at the page's top and with its graph in view."""
    command = [sys.executable, "-c", MAIN, "run", *LIVE, "--out", str(root / "alive")]
    with waiting.started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            log = root / "alive" / EVENTS
            end = monotonic() + 120
            while not log.exists() and monotonic() < end:
                sleep(0.1)
            page.goto(f"{address}/run?name=alive")
            page.wait_for_selector(".plot canvas", state="attached")
            page.wait_for_selector(".heat", state="attached")
            yield "its top", *_minute(page)
            page.locator(".network").scroll_into_view_if_needed()
            yield "its servers", *_minute(page)
        finally:
            run.terminate()
            run.wait(60)


def _minute(page: Page) -> tuple[float, float]:
    """Bytes received in a minute, and the share of a core that the page itself uses."""
    talk = page.context.new_cdp_session(page)
    talk.send("Network.enable")
    received: list[float] = []
    # The browser counts a stream's bytes after unpacking them: on the wire, they were fewer.
    talk.on(
        "Network.dataReceived",
        lambda e: received.append(e["encodedDataLength"] or e["dataLength"]),
    )
    before = _page_seconds(page)
    page.wait_for_timeout(1000 * SECONDS)
    return sum(received) * 60 / SECONDS, (_page_seconds(page) - before) / SECONDS


def _page_seconds(page: Page) -> float:
    """What the browser's processes that show pages have computed so far."""
    assert page.context.browser is not None
    talk = page.context.browser.new_browser_cdp_session()
    told = talk.send("SystemInfo.getProcessInfo")
    talk.detach()
    spent = (each["cpuTime"] for each in told["processInfo"] if each["type"] == "renderer")
    return float(sum(spent))


def _server_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    """The most megabytes that a process ever used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(each for each in lines if each.startswith("VmHWM")).split()[1]) / 1e3


if __name__ == "__main__":
    main()
