"""Our engines and other simulators, on the same work, one after another.

    python benchmarks/peers/run.py --repeats 5 --json peers.json

Every peer gets its own environment under --home, installed once. Runs are interleaved: each repeat
runs everybody once, so that other load on the machine affects all alike. Trust the ratios. A peer
that cannot be installed or run stays in the table, with the reason.

pip must find a CPU build of torch (TORCH below) on its own: where the default wheel needs CUDA, set
PIP_INDEX_URL or PIP_FIND_LINKS first.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
TORCH = "torch==2.13.0"

# No peer calls home, and nothing is written to the user's home directory.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: Ray on the loopback address
    "GLOO_SOCKET_IFNAME": "lo",
    "WANDB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True)
class Environment:
    """What pip is asked for."""

    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()  # without their dependencies


ENVIRONMENTS = {
    "flower": Environment((TORCH, "flwr[simulation]==1.41.0")),
    "pfl": Environment((TORCH, "pfl==0.6.0")),
    "fluke": Environment(
        # All that fluke needs for this work. It also asks for torchvision, whose wheels need CUDA.
        (
            TORCH,
            *("cerberus", "diskcache", "hydra-core", "matplotlib", "numpy", "omegaconf", "pandas"),
            *("psutil", "pyyaml", "requests", "rich", "scikit-learn", "seaborn", "tensorboard"),
            *("torchmetrics", "typer"),
        ),
        alone=("fluke-fl==0.8.1",),
    ),
    "fedjax": Environment(
        # The newest that fedjax still works with: it uses jax.tree_map.
        (
            *("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12"),
            *("numpy<2", "optax<0.2.3", "scipy<1.13"),
        )
    ),
    # Twice as fast here as 0.10.2, whose loops have another runtime.
    "jax": Environment(("jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13")),
}


@dataclass(frozen=True)
class Peer:
    """One way to run a peer: as its users do, and with all cores if it can."""

    environment: str
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)


PEERS = {
    "flower": Peer("flower", ("peer_flower.py",)),
    "pfl": Peer("pfl", ("peer_pfl.py",)),
    f"pfl-{CORES}-processes": Peer(
        "pfl",
        ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={CORES}", "peer_pfl.py"),
    ),
    "fluke": Peer("fluke", ("peer_fluke.py",)),
    "fedjax": Peer("fedjax", ("peer_fedjax.py",)),
    f"fedjax-{CORES}-devices": Peer(
        "fedjax",
        ("peer_fedjax.py",),
        {"XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}"},
    ),
    "jax": Peer("jax", ("peer_jax.py",)),
    f"jax-{CORES}-devices": Peer(
        "jax",
        ("peer_jax.py",),
        {"XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}"},
    ),
}
OURS = ("loop", "parallel", "native")  # of which those that `sdfeel bench` knows are timed


class Failed(Exception):
    """A peer could not be installed or run."""


def main() -> int:
    options = arguments()
    if CORES == 1:
        for name in [name for name in PEERS if "-1-" in name]:
            del PEERS[name]
    chosen = {n: p for n, p in PEERS.items() if not options.peers or p.environment in options.peers}
    reasons: dict[str, str] = {}
    pythons: dict[str, Path] = {}
    for name in dict.fromkeys(peer.environment for peer in chosen.values()):
        say(f"installing {name}")
        try:
            pythons[name] = install(options.home / name, ENVIRONMENTS[name])
        except Failed as error:
            reasons |= {n: str(error) for n, p in chosen.items() if p.environment == name}
    speeds: dict[str, list[float]] = {}
    versions: dict[str, str] = {}
    turns: list[dict[str, float]] = []
    for turn in range(options.repeats):
        turns.append({})
        say(f"repeat {turn + 1} of {options.repeats}: sdfeel")
        for way, speed in ours(options.python).items():
            turns[-1][f"sdfeel {way}"] = speed
        for name, peer in chosen.items():
            if name in reasons:
                continue
            say(f"repeat {turn + 1} of {options.repeats}: {name}")
            try:
                found = run_peer(pythons[peer.environment], peer, options.timeout)
            except Failed as error:
                reasons[name] = str(error)
                continue
            turns[-1][name], versions[name] = found["samples_per_second"], found["version"]
    for each in turns:
        for name, speed in each.items():
            speeds.setdefault(name, []).append(speed)
    rows = table(turns, speeds, versions, reasons)
    if str(options.json) != "-":
        show(rows)
    if options.json:
        result = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cores": CORES,
            "cpu": cpu(),
            "python": platform.python_version(),
            "repeats": options.repeats,
            "rows": rows,
            "turns": turns,
        }
        text = json.dumps(result, indent=1) + "\n"
        print(text, end="") if str(options.json) == "-" else options.json.write_text(text)
    return 0


def arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--home", type=Path, default=cache / "sdfeel" / "peers")
    parser.add_argument("--json", type=Path, help="where to write the results (-: print them)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run of a peer")
    parser.add_argument("--python", default=sys.executable, help="a Python that has sdfeel")
    parser.add_argument(
        "peers", nargs="*", choices=[*ENVIRONMENTS, []], help="only these (default: all)"
    )
    return parser.parse_args()


def install(place: Path, wanted: Environment) -> Path:
    """The Python of an environment, which is made if it is not there yet or asks for others."""
    python, mark = place.absolute() / "bin" / "python", place / "installed"
    key = hashlib.sha256(repr((sys.version, wanted)).encode()).hexdigest()
    if mark.exists() and mark.read_text() == key:
        return python
    place.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [*pip, *wanted.requirements],
        *([[*pip, "--no-deps", *wanted.alone]] if wanted.alone else []),
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(TORCH + "\n")  # whatever a dependency would rather have
        constraints.flush()
        for step in steps:
            done = subprocess.run(
                step,
                capture_output=True,
                text=True,
                env={**os.environ, "PIP_CONSTRAINT": constraints.name},
            )
            if done.returncode:
                raise Failed(f"not installed: {last_line(done.stderr)}")
    mark.write_text(key)
    return python


def run_peer(python: Path, peer: Peer, timeout: float) -> dict:
    """What the peer reports, in a home of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [str(HERE / word) if word.endswith(".py") else word for word in peer.command]
        out, err, code = finished(
            [str(python), *command],
            timeout,
            # A place of its own also for Ray, which would join any cluster it finds in the usual.
            env={**os.environ, **QUIET, "HOME": home, "RAY_TMPDIR": home, **peer.variables},
            cwd=home,
        )
    for line in reversed(out.splitlines()):
        if line.startswith('{"peer"'):
            return json.loads(line)
    raise Failed(f"did not run (exit code {code}): {last_line(err) or last_line(out)}")


def finished(command: list[str], timeout: float, **options) -> tuple[str, str, int]:
    """A program's output; when it takes too long, it ends with all that it has started."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Failed(f"did not finish in {timeout:g} s") from None
        return out, err, process.returncode


def ours(python: str) -> dict[str, float]:
    """Samples per second of our engines, in one run of `sdfeel bench`."""
    known = "from sdfeel.bench.engines import WAYS; print(*WAYS)"
    ways = subprocess.run([python, "-c", known], capture_output=True, text=True, check=True)
    chosen = ",".join(way for way in OURS if way in ways.stdout.split())
    bench = ["bench", "--work", "mnist-cnn", "--ways", chosen, "--repeats", "5", "--json"]
    program = [python, "-c", "from sdfeel.cli import main; main()", *bench]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found = {speed["way"]: speed["samples_per_second"] for speed in json.loads(done.stdout)}
    return {way: found[way] for way in OURS if way in found}


def table(
    turns: list[dict[str, float]],
    speeds: dict[str, list[float]],
    versions: dict[str, str],
    reasons: dict[str, str],
) -> list[dict]:
    """Medians of ratios within a repeat: our fastest engine over this one, and this over loop."""
    best = next(f"sdfeel {way}" for way in reversed(OURS) if f"sdfeel {way}" in speeds)
    rows = []
    for name, found in speeds.items():
        own = [each for each in turns if name in each]
        rows.append(
            {
                "name": name,
                "version": versions.get(name, ""),
                "samples_per_second": median(found),
                "of_loop": median(each[name] / each["sdfeel loop"] for each in own),
                "our_best_is_faster": median(each[best] / each[name] for each in own),
                "reason": reasons.get(name, ""),
            }
        )
    rows += [{"name": name, "reason": why} for name, why in reasons.items() if name not in speeds]
    return rows


def show(rows: list[dict]) -> None:
    print(f"{'':<24}{'version':<10}{'samples/s':>10}{'x loop':>8}{'our best is faster':>20}")
    for row in rows:
        line = f"{row['name']:<24}"
        if "of_loop" in row:
            speed, faster = f"{row['samples_per_second']:,.0f}", f"{row['our_best_is_faster']:.1f}x"
            line += f"{row['version']:<10}{speed:>10}{row['of_loop']:>8.2f}{faster:>20}"
        print(f"{line}  {row['reason']}".rstrip())


def cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "rror" in line] or lines
    return told[-1][:300] if told else ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
