"""Compiles a model's C++ once, and keeps the library under a hash of its content.

A library in the cache is named by everything it depends on: the source, the headers, the flags, the
compiler and the CPU. Its own hash is kept next to it, so that a damaged file is noticed and built
again. Files get their names only when complete, so several processes may build at the same time.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sdfeel.core.errors import InputError, unknown

INCLUDE = Path(__file__).parent / "include"
# Every compiler must give the same numbers. So there is no -ffast-math, which reorders sums, drops
# NaN and changes the mode of the caller's own arithmetic; and no contraction, which each compiler
# does in its own way: the headers say where a product and a sum are one operation. Turning off
# errno and traps changes no number. Nothing from C++'s own library is used, so it need not be
# installed.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-pthread",
)
# The headers themselves say what is a vector, and two passes of GCC 12 make wrong code from them.
# Its vectoriser does so in chain 2048 of the fuzz test (`d[s][e] = x[s][e] <= 0 ? 0 : g[s][e]` for
# rows of 12), its ivopts in chain 2081 (the five nested loops of Conv::pack: a program of 25 lines
# shows it). Neither is our bug: the address and undefined-behaviour sanitizers find nothing in
# these chains, and without optimisation they come out right.
GCC_12 = ("-fno-tree-vectorize", "-fno-ivopts")
LEVEL = "SDFEEL_NATIVE_LEVEL"  # another level than 3: the same numbers, for tests in less time
INSTRUCTIONS = "SDFEEL_NATIVE_INSTRUCTIONS"  # fewer than the CPU has: the same numbers, to time it
SHARED = ("-fPIC", "-shared")
NATIVE = ("-march=native",)
ZIG = (sys.executable, "-m", "ziglang", "cc")  # from pip: it need not build a C++ library first
# What compiles for a kind of device, best first: zig's libraries run with an old glibc. Its
# code for 32-bit ARM gives other bits, so there only GCC will do.
V3, V4 = "-march=x86-64-v3", "-march=x86-64-v4"
DEVICES: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "aarch64": (
        (ZIG, ("-target", "aarch64-linux-gnu.2.17")),
        (("aarch64-linux-gnu-g++",), ("-Wl,--as-needed",)),
        (("clang++", "--target=aarch64-linux-gnu"), ("-fuse-ld=lld", "-nostdlib++")),
    ),
    "x86_64": (
        (ZIG, ("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v3")),
        (("x86_64-linux-gnu-g++",), (V3, "-Wl,--as-needed")),
        (("clang++", "--target=x86_64-linux-gnu"), (V3, "-nostdlib++")),
    ),
    "armv7": ((("arm-linux-gnueabihf-g++",), ("-march=armv7-a+neon-vfpv4", "-Wl,--as-needed")),),
}
ALL = "native"
FIRST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index0/size")  # of data, with Linux


@dataclass(frozen=True)
class InstructionSet:
    """Instructions that code may be compiled for, and how a compiler and the system call them."""

    level: str  # in GCC's and clang's words
    zig: str  # the same in zig's words
    needs: frozenset[str]  # in the words of /proc/cpuinfo


# Least first. Each is a level of x86-64, which has more than what it is named by here.
AVX2 = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
SETS = {
    "avx2": InstructionSet(V3, "-mcpu=x86_64_v3", AVX2),
    "avx512": InstructionSet(V4, "-mcpu=x86_64_v4", AVX512),
}
PATIENCE = 900.0  # seconds: a busy machine may need minutes for what usually takes seconds


class BuildFault(Exception):
    """Why there is no library, in one line."""


def library(source: str, target: tuple[str, ...] | None = None) -> Path:
    """The compiled library of `source`, from the cache or new; BuildFault if there is none.

    Unless `target` says otherwise, it is compiled for the instructions that are asked for.
    """
    compiler = find_compiler()
    if target is None:
        target = (*asked_target(compiler), *tuning())
    return _kept(source, compiler, target, cpu())


def asked_target(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """Flags for all instructions of this CPU, or for what $SDFEEL_NATIVE_INSTRUCTIONS names."""
    name = asked_instructions()
    if name == ALL:
        return NATIVE
    if fault := lacks(name):
        raise BuildFault(fault)
    own = SETS[name]
    return (own.zig,) if compiler == ZIG else (own.level, "-mtune=native")


def asked_instructions() -> str:
    """The name of an instruction set, or "native" for all that the CPU has."""
    return os.environ.get(INSTRUCTIONS, "") or ALL


@contextmanager
def compiled_for(name: str) -> Iterator[None]:
    """Whatever this process and its children compile meanwhile is for these instructions.

    InputError if the CPU lacks them. Libraries that are loaded already stay as they are.
    """
    if name != ALL and (fault := lacks(name)):
        raise InputError(fault)
    before = os.environ.get(INSTRUCTIONS)
    os.environ[INSTRUCTIONS] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[INSTRUCTIONS]
        else:
            os.environ[INSTRUCTIONS] = before


def lacks(name: str) -> str | None:
    """Why code for this instruction set cannot run here, in one sentence."""
    if name not in SETS:
        return str(unknown("instruction set", name, [ALL, *SETS]))
    missing = sorted(SETS[name].needs - set(cpu().split()))
    if not missing:
        return None
    return (
        f"this CPU cannot run code for {name}, because it lacks {', '.join(missing)}: choose "
        f"{' or '.join([*available_sets(), ALL])}"
    )


def code_instructions() -> str:
    """The instruction set to compile for: as asked, or the largest that has a name here."""
    asked = asked_instructions()
    return asked if asked != ALL else next(reversed(available_sets()), platform.machine())


def available_sets() -> list[str]:
    """The instruction sets, least first, that this CPU has."""
    return [name for name, own in SETS.items() if own.needs <= set(cpu().split())]


def device_library(source: str, device: str) -> Path:
    """The library of `source` for a kind of device, by the first compiler for it that is here."""
    if device not in DEVICES:
        raise unknown("device", device, list(DEVICES))
    for compiler, target in DEVICES[device]:
        if _is_here(compiler):
            return _kept(source, compiler, target)
    names = [compiler[0] for compiler, _ in DEVICES[device] if compiler != ZIG]
    pip = ", or `pip install sdfeel[compiler]`" if len(names) < len(DEVICES[device]) else ""
    raise BuildFault(f"there is no compiler for {device}: install {' or '.join(names)}{pip}")


def _is_here(compiler: tuple[str, ...]) -> bool:
    if compiler == ZIG:
        return find_spec("ziglang") is not None
    return shutil.which(compiler[0]) is not None


def _kept(source: str, compiler: tuple[str, ...], target: tuple[str, ...], cpu: str = "") -> Path:
    flags = (*flags_for(compiler), *SHARED, *target)
    parts = [source, *_headers(), *flags, *compiler, _macros(compiler), cpu]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{key}.so"
        if not _whole(path):
            _compile(compiler, flags, source, path)
    except OSError as error:
        raise BuildFault(f"the library cannot be kept ({error})") from None
    return path


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sdfeel" / "native"


def find_compiler() -> tuple[str, ...]:
    """$CXX with its arguments, the first C++ compiler on the PATH, or the one from pip."""
    own = shlex.split(os.environ.get("CXX", ""))
    for words in [own] if own else [["c++"], ["g++"], ["clang++"]]:
        found = shutil.which(words[0])
        if found:
            return (found, *words[1:])
    if own:
        raise BuildFault(f"there is no C++ compiler at CXX={own[0]}")
    if find_spec("ziglang") is not None:
        return ZIG
    raise BuildFault(
        "there is no C++ compiler (c++, g++ or clang++) on the PATH: install one, or "
        "`pip install sdfeel[compiler]`"
    )


def flags_for(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """Flags with which any compiler gives the same numbers, and this one correct code."""
    macros = dict(line.split(" ", 2)[1:] for line in _macros(compiler).splitlines() if " " in line)
    old_gcc = "__clang__" not in macros and int(macros.get("__GNUC__", 0)) <= 12
    level = os.environ.get(LEVEL, "")
    return (*FLAGS, *(GCC_12 if old_gcc else ()), *((f"-O{level}",) if level else ()))


@cache
def cpu() -> str:
    """What the CPU can do, as far as the system says."""
    can = next((line for line in _cpuinfo() if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {can}"


def tuning() -> tuple[str, ...]:
    """Flags by which tiles are chosen to suit this CPU: the same numbers, in less time."""
    return tuning_for(_cpuinfo(), _read(FIRST_CACHE))


def tuning_for(cpuinfo: list[str], first_cache: str) -> tuple[str, ...]:
    """The same for a CPU with this description and first cache, as Linux gives them.

    AMD's family 25 (Zen 4) takes vectors of 512 bits in halves; all others take them whole.
    """
    facts = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in cpuinfo)}
    halves = (facts.get("vendor_id"), facts.get("cpu family")) == ("AuthenticAMD", "25")
    whole = "avx512f" in facts.get("flags", "").split() and not halves
    size = re.fullmatch(r"(\d+)K", first_cache)
    return (
        *(("-DSDFEEL_WHOLE",) if whole else ()),
        *((f"-DSDFEEL_FIRST_CACHE={int(size[1]) << 10}",) if size else ()),
    )


@cache
def _cpuinfo() -> list[str]:
    return _read(Path("/proc/cpuinfo")).splitlines()


def _read(path: Path) -> str:
    """The text of a file in which Linux describes the machine; empty on other systems."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], source: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        text, made = Path(scratch, "model.cpp"), Path(scratch, "model.so")
        text.write_text(source)
        command = [*compiler, *flags, f"-I{INCLUDE}", "-x", "c++", str(text), "-o", str(made)]
        _run(command)
        mark = Path(scratch, "hash")
        mark.write_text(_hash(made))
        for verdict in path.parent.glob(f"{path.stem}.*.check"):
            verdict.unlink(missing_ok=True)
        os.replace(made, path)
        os.replace(mark, path.with_suffix(".sha256"))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFault(f"the compiler {command[0]} does not work ({error})") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise BuildFault(f"the compiler {command[0]} failed: {lines[0]}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Zig keeps what it builds for itself next to our libraries, unless told otherwise."""
    return {"ZIG_GLOBAL_CACHE_DIR": str(cache_folder().parent / "zig"), **os.environ}


def _whole(path: Path) -> bool:
    """Whether a library exists and is exactly what was compiled."""
    try:
        return path.with_suffix(".sha256").read_text() == _hash(path)
    except OSError:
        return False


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _headers() -> list[str]:
    return [path.read_text() for path in sorted(INCLUDE.glob("*.hpp"))]


@cache
def _macros(compiler: tuple[str, ...]) -> str:
    """What the compiler predefines: its name and version."""
    return _run([*compiler, "-dM", "-E", "-x", "c++", os.devnull])
