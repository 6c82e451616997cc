"""How soon a federation continues after a silent outage: packets are dropped, and nobody is told.

Real processes in a network namespace of their own, where nftables drops every packet of every
connection for a while. It needs Linux with `unshare`, `ip` and `nft`.

    python -m tests.tools.outage --cuts 5,30,60,120
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdfeel.core.run_files import EVENTS, NODES
from sdfeel.deploy.files import PolicySection, read_policy
from sdfeel.deploy.local import LocalDeployment, NodeTrial
from tests.live.stage import experiment
from tests.waiting import finished, joined

PATIENCE = 300.0  # seconds until a federation that does not continue is given up
PROMISED = 5.0  # seconds from the link's return until everybody continues
RULES = """
table inet outage {
  chain arriving { type filter hook input priority 0; policy %s; }
}
"""


@dataclass(frozen=True)
class Cut:
    """One outage, and how long after it every server had finished two more rounds."""

    seconds: float
    recovery: float

    @property
    def good(self) -> bool:
        return self.recovery <= PROMISED


def private() -> list[str]:
    """A network of its own; who is not root becomes so inside."""
    return ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]


def why_not() -> str | None:
    """Why packets cannot be dropped on this machine; None if they can."""
    try:
        found = finished([*private(), "nft", "-f", "-"], input=RULES % "drop")
    except FileNotFoundError:
        return "there is no `unshare` here"
    if found.returncode == 0:
        return None
    said = found.stderr.strip().splitlines() or ["no reason given"]
    return f"no private network whose packets can be dropped: {said[0]}"


def packets(fate: str) -> None:
    """From now on packets `accept` or `drop`."""
    text = "flush ruleset\n" + RULES % fate
    finished(["nft", "-f", "-"], input=text, check=True)


class Rounds:
    """Counts the rounds that each server has finished, by its log."""

    def __init__(self, directory: Path, servers: int) -> None:
        self._logs = [directory / NODES / f"edge-{d}" / EVENTS for d in range(servers)]

    def done(self) -> list[int]:
        logs = (log.read_bytes() if log.exists() else b"" for log in self._logs)
        return [text.count(b'"round"') for text in logs]

    def wait_for_more(self, count: int) -> float:
        """Seconds until every server has finished this many more."""
        before, began = self.done(), time.monotonic()
        while min(now - then for now, then in zip(self.done(), before, strict=True)) < count:
            if time.monotonic() - began > PATIENCE:
                return float("inf")
            time.sleep(0.02)
        return time.monotonic() - began


def cuts(
    directory: Path, lengths: Sequence[float], policy: PolicySection, settings: Sequence[str] = ()
) -> Iterator[Cut]:
    """The outages one after another, in one federation of 3 servers and 6 clients."""
    finished(["ip", "link", "set", "lo", "up"], check=True)
    packets("accept")
    deployment = LocalDeployment(experiment(100_000, *settings), directory, policy)
    deployment.processes.trial = NodeTrial(pause=0.05)
    follow = threading.Thread(target=lambda: [None for _ in deployment])
    follow.start()
    try:
        rounds = Rounds(directory, 3)
        for seconds in lengths:
            rounds.wait_for_more(5)
            packets("drop")
            time.sleep(seconds)
            packets("accept")
            yield Cut(seconds, rounds.wait_for_more(2))
    finally:
        packets("accept")
        deployment.stop()
        joined(follow)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--cuts", default="5,30,60,120", help="seconds, separated by commas")
    options.add_argument("--policy", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args(arguments)
    if not chosen.inside:
        reason = why_not()
        if reason is not None:
            print(reason)
            return 2
        given = sys.argv[1:] if arguments is None else list(arguments)
        again = [sys.executable, "-m", "tests.tools.outage", *given, "--inside"]
        return finished([*private(), *again], 3600, stdout=None, stderr=None).returncode
    lengths = [float(word) for word in chosen.cuts.split(",")]
    good = True
    with tempfile.TemporaryDirectory(prefix="outage-") as home:
        found = cuts(Path(home) / "run", lengths, read_policy(chosen.policy), chosen.settings)
        for cut in found:
            good = good and cut.good
            verdict = "as promised" if cut.good else "TOO LATE"
            print(
                f"cut {cut.seconds:5g} s   recovery {cut.recovery:6.2f} s   {verdict}", flush=True
            )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
