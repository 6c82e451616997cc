"""Measures the page's promises on this machine: `python -m tests.dashboard.measure`.

Many runs, one huge log and a log that grows, through the real server and a real browser. Figures
depend on the machine and on what else it does, so they are printed and not asserted.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

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
            print(f"{RUNS + 2} runs listed:           {_listed(page, address):.2f} s, first time")
            print(f"                              {_listed(page, address):.2f} s, again")
            size = (root / "huge" / EVENTS).stat().st_size
            print(
                f"{HUGE:,} events ({size / 1e6:.0f} MB): {_opened(page, address):.2f} s, first time"
            )
            print(f"                              {_opened(page, address):.2f} s, again")
            delays = sorted(_live(page, address, grows))
            print(
                f"a change is on the page after {median(delays):.2f} s, at most {delays[-1]:.2f} s"
            )
            sent, busy = _minute(page, address, root)
            print(f"a live run of 10 servers:     {sent / 1e6:.2f} MB and {busy:.1%} of a core in")
            print(f"                              the browser, per minute ({SECONDS} s watched)")
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


def _listed(page: Page, address: str) -> float:
    begin = perf_counter()
    page.goto(address)
    page.get_by_role("button", name=f"Show all {RUNS + 2:,}").wait_for()
    return perf_counter() - begin


def _opened(page: Page, address: str) -> float:
    begin = perf_counter()
    page.goto(f"{address}/run?name=huge")
    page.wait_for_selector(".plot canvas", state="attached")
    return perf_counter() - begin


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


def _minute(page: Page, address: str, root: Path) -> tuple[float, float]:
    """Bytes received, and the share of a core that the page itself uses, while a run is watched."""
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
            talk = page.context.new_cdp_session(page)
            talk.send("Network.enable")
            assert page.context.browser is not None
            whole = page.context.browser.new_browser_cdp_session()
            received: list[float] = []
            talk.on("Network.dataReceived", lambda e: received.append(e["encodedDataLength"]))
            before = _cpu_seconds(whole.send("SystemInfo.getProcessInfo"))
            page.wait_for_timeout(1000 * SECONDS)
            spent = _cpu_seconds(whole.send("SystemInfo.getProcessInfo")) - before
            return sum(received) * 60 / SECONDS, spent / SECONDS
        finally:
            run.terminate()
            run.wait(60)


def _cpu_seconds(told: dict[str, Any]) -> float:
    """What the browser's processes that show pages have computed so far."""
    spent = (each["cpuTime"] for each in told["processInfo"] if each["type"] == "renderer")
    return float(sum(spent))


def _peak(pid: int) -> float:
    """The most megabytes that a process ever used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(each for each in lines if each.startswith("VmHWM")).split()[1]) / 1e3


if __name__ == "__main__":
    main()
