"""The bits of trained models, by compiler and CPU: python -m tests.tools.portable --chains 50

Every model is compiled with a small program (portable.cpp) for each target that can be built and
run here, and a hash is taken of all that comes out: trained models, losses, outputs. One hash per
model is the promise. Targets in other instruction sets run under qemu-user; whatever is not
installed is left out, and the output says so. The last column is a control: sums in the width of
the CPU, not in the fixed one, which must give other bits.

    apt-get install clang g++-aarch64-linux-gnu g++-arm-linux-gnueabihf qemu-user
    pip install ziglang
"""

import argparse
import hashlib
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sdfeel.core.seeds import number, rng
from sdfeel.engine.base import Training
from sdfeel.engine.batches import DROPOUT, batches
from sdfeel.engine.native import build
from sdfeel.engine.native.cpp import source
from sdfeel.engine.native.lower import ModelPlan, lower
from sdfeel.models import zoo
from tests.tools.native_fuzz import Chain, chain, smooth_chain
from tests.waiting import finished

Singles = NDArray[np.float32]
PROGRAM = Path(__file__).with_suffix(".cpp")
GOLDEN = Path(__file__).with_suffix(".json")
SEED, STEPS = 5, 3
SMOOTH = 2  # chains of activations, averages and norms
LARGE = 50e6  # multiplications of an example
NO_FMA = 4  # the program's exit code where a CPU does not multiply and add in one step
WHOLE = ("-DSDFEEL_WHOLE", "-DSDFEEL_FIRST_CACHE=49152")  # tiles as Zen 5 has them
OWN_WIDTH = "-DSDFEEL_ORDER=8"  # as wide as AVX2: what bits would be without a fixed order


@dataclass(frozen=True)
class Target:
    """A compiler, what it compiles for, and how its programs are started here."""

    name: str
    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    runner: tuple[str, ...] = ()
    control: bool = False  # expected to differ

    @property
    def missing(self) -> str | None:
        """The program that this target needs and the machine lacks."""
        needed = [self.compiler[0], *self.runner[:1]]
        if self.compiler == build.ZIG and find_spec("ziglang") is None:
            return "ziglang"
        return next((name for name in needed if shutil.which(name) is None), None)


def targets() -> list[Target]:
    """Every target that this kind of machine can have."""
    arm = ("qemu-aarch64",)
    found = [
        Target("g++ aarch64", ("aarch64-linux-gnu-g++",), ("-static",), arm),
        Target(
            "clang++ aarch64",
            ("clang++", "--target=aarch64-linux-gnu", "-fuse-ld=lld"),
            ("-static", "-nostdlib++"),
            arm,
        ),
        Target("zig aarch64", build.ZIG, ("-target", "aarch64-linux-musl"), arm),
        Target(
            "g++ armv7",
            ("arm-linux-gnueabihf-g++",),
            ("-static", "-march=armv7-a+neon-vfpv4"),
            ("qemu-arm",),
        ),
    ]
    if platform.machine() not in ("x86_64", "AMD64"):
        return [Target("native", build.find_compiler(), build.NATIVE), *found]
    v3, v4 = ("-march=x86-64-v3",), ("-march=x86-64-v4",)
    own = [Target(f"{name} avx2", (name,), v3) for name in ("g++", "clang++")]
    own.append(Target("zig avx2", build.ZIG, ("-mcpu=x86_64_v3",)))
    if " avx512vl" in build.cpu():
        own += [Target(f"{name} avx512", (name,), v4) for name in ("g++", "clang++")]
        own.append(Target("zig avx512", build.ZIG, ("-mcpu=x86_64_v4",)))
        own.append(Target("g++ avx512 whole", ("g++",), (*v4, *WHOLE)))
    control = Target("own width", ("g++",), (*v3, OWN_WIDTH), control=True)
    return [*own, *found, control]


@dataclass(frozen=True)
class Case:
    """A model, how it is trained, and the numbers that the program reads."""

    name: str
    code: str
    numbers: bytes


def models(chains: Iterable[int]) -> dict[str, Callable[[], Case]]:
    """The zoo and random chains, by name."""
    image, colour = (1, 28, 28), (3, 32, 32)
    named: list[tuple[str, tuple[int, ...], int]] = [
        ("logistic", image, 10),
        ("mlp", image, 10),
        ("mnist-cnn", image, 10),
        ("cifar-cnn", colour, 1),
    ]
    found: dict[str, Callable[[], Case]] = {}
    for name, shape, size in named:
        module = zoo.build(name, shape, 10, seed=0)
        assert isinstance(module, nn.Sequential)
        own = Chain(module, shape, 10, Training(0.05, size))
        found[name] = partial(case, name, own)
    for seed in chains:
        found[f"chain {seed}"] = partial(_chain, seed)
    for seed in range(SMOOTH):
        found[f"smooth {seed}"] = partial(_smooth, seed)
    return found


def _chain(seed: int) -> Case:
    return case(f"chain {seed}", chain(seed))


def _smooth(seed: int) -> Case:
    return case(f"smooth {seed}", smooth_chain(seed))


def case(name: str, own: Chain) -> Case:
    """All that the program needs; the numbers come from integers, so they are the same anywhere."""
    plan = lower(own.module, own.training, own.shape)
    assert isinstance(plan, ModelPlan), plan
    size = own.training.batch_size
    counts = [2 * size + 1, max(1, size - 1), 3 * size]  # examples of the clients
    if plan.products > LARGE:  # minutes under an emulator
        counts = counts[:1]
    ends = np.cumsum(counts)
    parts = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    draws = rng(SEED, "portable")
    x = draws.random((int(ends[-1]), int(np.prod(own.shape))), dtype=np.float32) * 2 - 1
    y = draws.integers(plan.classes, size=len(x))
    start = np.concatenate([_numbers(draws, key, t.shape) for key, t in _floats(own.module)])
    firsts = range(len(parts))
    steps = 1 if plan.products > LARGE else STEPS
    picked = [batches(p, size, SEED, c, c, steps) for c, p in enumerate(parts)]
    options = own.training.options
    rule = [own.training.learning_rate, options.get("momentum", 0), options.get("weight_decay", 0)]
    sizes = [len(parts), len(start), len(x), x.shape[1], plan.classes, number(SEED, DROPOUT)]
    tasks = [firsts, firsts, [steps] * len(parts), [rows.shape[1] for rows in picked]]
    arrays = [np.array(sizes, "<i8"), np.array(rule, "<f4"), x, y, start]
    arrays += [np.array(numbers, "<i8") for numbers in (*tasks, *picked)]
    return Case(name, source(plan, size), b"".join(array.tobytes() for array in arrays))


def _floats(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The tensors of a row, in its order, with their names."""
    buffers = [pair for pair in module.named_buffers() if pair[1].is_floating_point()]
    return [*module.named_parameters(), *buffers]  # type: ignore[list-item]


def _numbers(draws: np.random.Generator, key: str, shape: tuple[int, ...]) -> Singles:
    flat = draws.random(int(np.prod(shape)), dtype=np.float32)
    if "running" in key or len(shape) == 1:
        return flat + np.float32(0.5)
    fan_in = np.float32(np.prod(shape[1:]))
    return np.asarray((flat * 2 - 1) / np.sqrt(fan_in), np.float32)


def bits(own: Case, target: Target, keep: Path | None = None) -> str:
    """The hash of everything the program writes for this model on this target.

    The compiled program is looked for in `keep`, and kept there.
    """
    with tempfile.TemporaryDirectory(dir=keep) as folder:
        text, made, given, out = (Path(folder, name) for name in ("a.cpp", "a", "in", "out"))
        text.write_text(own.code + PROGRAM.read_text())
        given.write_bytes(own.numbers)
        flags = [*build.flags_for(target.compiler), *target.flags]
        program = made if keep is None else keep / _key(text.read_text(), target, flags)
        if not program.exists():
            command = [*target.compiler, *flags, f"-I{build.INCLUDE}", "-x", "c++", str(text)]
            _run([*command, "-o", str(made)])
            made.rename(program)
        _run([*target.runner, str(program), str(given), str(out)])
        return hashlib.sha256(out.read_bytes()).hexdigest()[:16]


def _key(text: str, target: Target, flags: list[str]) -> str:
    """The name of a compiled program: all that it depends on."""
    headers = [path.read_text() for path in sorted(build.INCLUDE.glob("*.hpp"))]
    version = finished([*target.compiler, "--version"]).stdout
    parts = [text, *headers, *target.compiler, version, *flags, build.cpu()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class OwnBits(Exception):
    """This CPU is outside of the promise."""


def _run(command: list[str]) -> None:
    done = finished(command, 3600)
    if done.returncode == NO_FMA:
        raise OwnBits("this CPU does not multiply and add in one step: its bits are its own")
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")


@cache
def golden() -> dict[str, str]:
    """The recorded hashes, by model."""
    recorded: dict[str, str] = json.loads(GOLDEN.read_text())
    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(description="the bits of models, by compiler and CPU")
    parser.add_argument("--chains", type=int, default=50, help="random chains beside the zoo")
    parser.add_argument("--only", help="targets whose names have this in them")
    parser.add_argument("--record", action="store_true", help="write down what the first gives")
    options = parser.parse_args()
    asked = [t for t in targets() if not options.only or options.only in t.name or t.control]
    present = [target for target in asked if target.missing is None]
    for target in asked:
        if target.missing:
            print(f"left out: {target.name} (there is no {target.missing})")
    known = dict(golden())
    bad, moved, cases = 0, 0, models(range(options.chains))
    for name, make in cases.items():
        own = make()
        found = {target.name: bits(own, target) for target in present}
        plain = [found[target.name] for target in present if not target.control]
        if options.record:
            known[name] = plain[0]
        expected = known.get(name, plain[0])
        wrong = [t.name for t in present if not t.control and found[t.name] != expected]
        differs = any(found[t.name] != expected for t in present if t.control)
        bad, moved = bad + bool(wrong), moved + differs
        print(
            f"{name:12} {expected} {'differs: ' + ', '.join(wrong) if wrong else 'all equal'}; "
            f"own width {'differs' if differs else 'equal'}",
            flush=True,
        )
    if options.record:
        GOLDEN.write_text(json.dumps(known, indent=0) + "\n")
    plain_names = ", ".join(target.name for target in present if not target.control)
    print(f"{len(cases)} models on {plain_names}: {bad} bad; own width differs for {moved}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
