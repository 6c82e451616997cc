"""Lets Lighthouse judge the accessibility of the live page: `make lighthouse`.

    python tools/lighthouse.py [a page's address ...]

Without an address it makes runs and a deployment of its own. Needs npm, whose package lighthouse is
installed in a temporary directory, and Chromium. It ends with 1 unless every page has 100 points.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which
from time import time

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.dashboard.browser import FLAGS, browser_path, served  # noqa: E402
from tests.dashboard.logs import events, write  # noqa: E402
from tests.dashboard.test_federation import node  # noqa: E402

PAGES = ("/", "/run?name=one", "/run?name=home", "/compare?run=one&run=two", "/new")


def main(addresses: list[str]) -> int:
    """Judge every page; returns how many of them have fewer than 100 points."""
    chromium = browser_path()
    if which("npm") is None or chromium is None:
        sys.exit("Lighthouse needs npm and Chromium: install both")
    with tempfile.TemporaryDirectory() as place:
        npm = ["npm", "install", "--prefix", place, "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*npm, "lighthouse"], check=True, timeout=600)
        if addresses:
            return sum(judged(Path(place), chromium, each) < 100 for each in addresses)
        runs = Path(place) / "runs"
        for name in ("one", "two"):
            write(runs / name, events())
            (runs / name / "experiment.toml").write_text("[network]\nclients = 6\nservers = 3\n")
        home = write(runs / "home", events()[:-1])
        node(home, "edge-0", role="edge", healthy=True, round=7, bytes=1500, updated=time())
        node(home, "edge-1", role="edge", healthy=False, last_error="no disk", updated=1.0)
        with served(runs, "--allow-start") as address:
            return sum(judged(Path(place), chromium, f"{address}{path}") < 100 for path in PAGES)


def judged(place: Path, chromium: str, address: str) -> int:
    """The points of a page, which are printed with what is wrong."""
    command = [str(place / "node_modules" / ".bin" / "lighthouse"), address, "--quiet"]
    command += ["--only-categories=accessibility", "--output=json"]
    command += [f"--chrome-flags=--headless=new {' '.join(FLAGS)}"]
    environment = {**os.environ, "CHROME_PATH": chromium}
    done = subprocess.run(command, check=True, timeout=600, capture_output=True, env=environment)
    found = json.loads(done.stdout)
    points: int = round(100 * found["categories"]["accessibility"]["score"])
    wrong = [each["id"] for each in found["audits"].values() if each["score"] not in (None, 1)]
    print(points, address, *wrong)
    return points


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
