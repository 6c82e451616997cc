"""docs/performance.md anew: python -m tests.tools.performance_page

Measures step by step on this machine, keeps what each step gives in benchmarks/measured.json as
soon as it is done, and writes the page's tables from there. A step that was measured with the same
code is not measured again, so a run that was stopped continues where it was; --only STEP measures
it in any case. Let nothing else run meanwhile: what other programs take is measured, too, and told.

python -m tests.tools.performance_page --list             the steps, and how long they take
python -m tests.tools.performance_page --only async       one step (or several, with commas)
python -m tests.tools.performance_page --write            only write the page from what is kept

Nothing else writes between the page's markers (<!-- measured: NAME --> and <!-- end -->). Runs on
MNIST find it where SDFEEL_DATA says. The peers are measured only if asked for by --only.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sdfeel.engine.base import cores
from sdfeel.engine.native import build
from sdfeel.run.provenance import machine
from tests.tools.performance_tables import Measured, block

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "measured.json"
PAGE = ROOT / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- measured: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PATIENCE = 7200.0  # seconds of one command
LOOK = 2.0  # seconds for which other programs are watched, before and after a step
QUIET = 0.05  # of the cores: what any system takes


@dataclass(frozen=True)
class Step:
    """Commands that print JSON, one after the other; their rows together are one table."""

    commands: tuple[str, ...]
    minutes: float  # on two quiet cores, about
    code: str = ""  # instructions that native is compiled for, if not all
    needs: str = ""  # a package
    usual: bool = True  # measured unless asked for


def _point(**point: Any) -> str:
    return f"python -m sdfeel.bench.scale {shlex.quote(json.dumps(point))}"


MILLION = 1_000_000
STEPS = {
    "engines": Step(("sdfeel bench --repeats 5 --json",), 3),
    "engines-avx2": Step(
        ("sdfeel bench --repeats 5 --instructions avx2 --ways naive,loop,parallel,native --json",),
        2.5,
        code="avx2",
    ),
    "async": Step(("python -m tests.tools.async_speed --turns 5 --seconds 1 --json",), 1),
    "events": Step(
        (
            _point(clients=50, servers=1, rounds=2000, scheme="fedasync"),
            _point(clients=50, servers=10, rounds=2000, scheme="async-sd-feel"),
        )
        * 2,
        0.5,
    ),
    "growth": Step(("sdfeel bench scale --clients 1000,10000,100000,1000000 --json",), 2),
    "crowds": Step(
        (
            _point(clients=MILLION, servers=1000, rounds=3),
            _point(clients=MILLION, servers=1000, rounds=20, share=0.01),
            *(
                _point(clients=n, servers=1, rounds=200, scheme=scheme)
                for scheme in ("fedavg", "scaffold", "feddyn")
                for n in (10_000, MILLION)
            ),
            *(
                _point(clients=20_000, servers=10_000, rounds=3, graph=graph)
                for graph in ("ring", "grid", "erdos-renyi")
            ),
        ),
        3,
    ),
    "checkpoints": Step(("python -m tests.tools.checkpoint_cost --json",), 1.5),
    "ray": Step(
        (
            "python -m tests.tools.ray_speed --json",
            "python -m tests.tools.ray_speed --nodes --json",
        ),
        2,
        needs="ray",
    ),
    "memory": Step(("python -m tests.tools.run_cost memory --json",), 2),
    "profile": Step(("python -m tests.tools.run_cost profile --json",), 1),
    "peers": Step(("python benchmarks/peers/run.py --repeats 2 --json - pfl jax",), 5, usual=False),
    "peers-all": Step(("python benchmarks/peers/run.py --repeats 3 --json -",), 15, usual=False),
}


def kept() -> dict[str, Measured]:
    """All measurements, by step."""
    found: dict[str, Measured] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def keep(name: str, measured: Measured) -> None:
    """Replace one measurement; whoever stops the command has those before."""
    everything = {**kept(), name: measured}
    ordered = {each: everything[each] for each in STEPS if each in everything}
    draft = KEPT.with_suffix(".draft")
    draft.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    draft.replace(KEPT)


def written(page: str, measurements: Mapping[str, Measured]) -> str:
    """The page with its tables made anew; all other text stays."""

    def anew(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        return f"{begin}\n{block(name, measurements)}\n\n{end}"

    return BLOCK.sub(anew, page)


def write() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept()), encoding="utf-8")


def measure(step: Step, cpu: str) -> Measured:
    """The rows of a step's commands, and on what machine and under what load they were found."""
    rows: list[Any] = []
    before = taken()
    for command in step.commands:
        found = _document(command)
        rows += found if isinstance(found, list) else found.get("rows", [found])
    others = max(before, taken())
    having = build.available_sets()
    return {
        "commands": [_without_json(command) for command in step.commands],
        "date": f"{date.today()}",
        "cpu": cpu,
        "cores": cores(),
        "has": having[-1] if having else build.code_instructions(),
        "code": step.code or build.code_instructions(),
        "load": "quiet" if others < QUIET else f"other programs took {others:.0%} of the cores",
        "source": source(),
        "rows": rows,
    }


def _document(command: str) -> Any:
    """What a command prints. Programs are those of this Python."""
    program, *words = shlex.split(command)
    start = [sys.executable, "-m", "sdfeel"] if program == "sdfeel" else [sys.executable]
    done = subprocess.run(
        [*start, *words], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"`{command}` ended with {done.returncode}")
    return json.loads(done.stdout)


def _without_json(command: str) -> str:
    """As a reader would call it."""
    return re.sub(r" --json( -)?(?= |$)", "", command)


def taken(seconds: float = LOOK) -> float:
    """The share of the cores that other programs take (other machines on this one included)."""

    def ticks() -> tuple[int, int]:
        first = Path("/proc/stat").read_text().splitlines()[0]
        each = list(map(int, first.split()[1:9]))  # user ... idle, iowait, interrupts, stolen
        return sum(each), each[3] + each[4]

    whole, idle = ticks()
    time.sleep(seconds)
    end, rest = ticks()
    return 1 - (rest - idle) / max(1, end - whole)


def source() -> str:
    """A name for the code that is measured; one that was changed since its commit has none."""
    told = [
        subprocess.run(
            ["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60
        ).stdout.strip()
        for words in (["rev-parse", "HEAD:src"], ["status", "--porcelain", "src"])
    ]
    return "" if told[1] else told[0][:12]


def skipped(name: str, step: Step, asked: bool) -> str | None:
    """Why a step is not measured now."""
    if step.needs and find_spec(step.needs) is None:
        return f"{step.needs} is not installed"
    if step.code and step.code not in build.available_sets()[:-1]:
        return f"this CPU has no more than {step.code}"
    if asked:
        return None
    if not step.usual:
        return f"it takes long: --only {name}"
    if source() and kept().get(name, {}).get("source") == source():
        return "it was measured with this code"
    return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="STEP,...", help="measure these, whatever is kept")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--list", action="store_true", help="list the steps")
    parser.add_argument("--cpu", default=machine()["CPU"], help="its name, if the system's is poor")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.list:
        for name, step in STEPS.items():
            print(f"{name:13} {step.minutes:4g} min  {'; '.join(dict.fromkeys(step.commands))}")
        return 0
    asked = [name.strip() for name in (options.only or "").split(",") if name.strip()]
    for name in asked:
        if name not in STEPS:
            print(f"unknown step '{name}' (known: {', '.join(STEPS)})", file=sys.stderr)
            return 2
    failed = 0
    for name in () if options.write else asked or STEPS:
        step = STEPS[name]
        if reason := skipped(name, step, name in asked):
            print(f"{name}: left out, {reason}")
            continue
        print(f"{name}: about {step.minutes:g} minutes", flush=True)
        begin = time.perf_counter()
        try:
            keep(name, measure(step, options.cpu))
        except (RuntimeError, ValueError, OSError, subprocess.TimeoutExpired) as error:
            print(f"{name}: FAILED, {error}", flush=True)
            failed += 1
            continue
        print(f"{name}: kept after {(time.perf_counter() - begin) / 60:.1f} minutes", flush=True)
    write()
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
