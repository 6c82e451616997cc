"""Takes the pictures of the live page for the documents: real runs, in light and dark.

    make screenshots

Needs Chromium (Debian's package `chromium`) and playwright.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from playwright.sync_api import Browser, Page, sync_playwright

from sdfeel.experiment.loading import load
from sdfeel.run.session import start

MAIN = "from sdfeel.cli import main; main()"
SMALL = ["training.iterations=300", "devices.spread=8", "devices.gflops=0.0003"]
RUNS = {
    "race/sd-feel": ["scheme.name=sd-feel"],
    "race/async-sd-feel": ["scheme.name=async-sd-feel"],
    "race/hierfavg": ["scheme.name=hierfavg", "scheme.tau2=2"],
    "race/fedavg": ["scheme.name=fedavg"],
}
RACE = "&".join(f"run={name}" for name in RUNS)
PAGES = {
    "list": "/",
    "run": "/run?name=race/async-sd-feel",
    "compare": f"/compare?{RACE}",
}
WIDTHS = {"": 1280, "-phone": 390}


def main(directory: Path) -> None:
    """Run the experiments, open the page, and take every picture."""
    chromium = which("chromium")
    if chromium is None:
        sys.exit("Chromium is not installed: install the package `chromium`")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        runs = Path(place) / "runs"
        for name, settings in RUNS.items():
            for _ in start(load(None, [*SMALL, *settings]), runs / name):
                pass
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        with served(runs) as address:
            for kind, width in WIDTHS.items():
                for colours in ("light", "dark"):
                    take(browser, address, directory, kind, width, colours == "dark")
        browser.close()


def take(
    browser: Browser, address: str, directory: Path, kind: str, width: int, dark: bool
) -> None:
    """All pages at one width, in light or dark."""
    page = browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
    )
    for name, path in PAGES.items():
        page.goto(address + path)
        settle(page, name)
        file = directory / f"dash-{name}{kind}{'-dark' * dark}.png"
        page.screenshot(path=file, full_page=True)
        print(file)
    page.close()


def settle(page: Page, name: str) -> None:
    """Wait until everything is drawn; a run's graph is shown in the middle of the run."""
    page.wait_for_selector(".runs tbody tr" if name == "list" else ".plot canvas")
    if name == "run":
        page.wait_for_selector(".heat", timeout=60_000)
        page.get_by_label("Moment of the run").press("Home")
        for _ in range(8):
            page.get_by_label("Moment of the run").press("ArrowRight")
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the page for a directory."""
    command = [sys.executable, "-c", MAIN, "dash", str(directory), "--no-browser", "--allow-start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/")
        finally:
            process.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
