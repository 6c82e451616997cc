"""Compiling once, keeping what was compiled, and giving reasons instead of errors."""

import ctypes
import os
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import nn

from sdfeel.core.errors import InputError
from sdfeel.core.forks import forked
from sdfeel.data.federated import Examples
from sdfeel.engine.base import Task, Training, Workload
from sdfeel.engine.native import available, build
from sdfeel.engine.native.cpp import source
from sdfeel.engine.native.engine import NativeEngine
from sdfeel.engine.native.lower import ModelPlan, lower
from tests.engine.native.helpers import PARTS, examples, needs_compiler
from tests.tools import native_fuzz as fuzz
from tests.waiting import joined, received

DATA = examples((1, 4, 4))


def create(data: Examples = DATA) -> NativeEngine | str:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    return NativeEngine.create(Workload(module, data, PARTS, data, Training(0.1, 10), 0))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sdfeel" / "native"


def built(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.glob("*.so"))}


@needs_compiler
def test_a_model_is_compiled_and_checked_once(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(create(), NativeEngine)
    before = built(own_cache)
    assert len(before) == 1
    monkeypatch.setattr(build, "_compile", None)
    monkeypatch.setattr(available, "mismatch", None)
    assert isinstance(create(), NativeEngine)
    assert built(own_cache) == before


@needs_compiler
def test_a_damaged_library_is_built_again(own_cache: Path) -> None:
    assert isinstance(create(), NativeEngine)
    (path,) = own_cache.glob("*.so")
    whole = path.read_bytes()
    path.unlink()  # a new file: the loaded one must not change under our feet
    path.write_bytes(whole[:1000])
    assert isinstance(create(), NativeEngine)
    assert path.read_bytes() == whole


def building(pipe: Connection) -> None:
    """Build a model as soon as both processes are there."""
    pipe.send("ready")
    received(pipe)
    pipe.send(isinstance(create(), NativeEngine))


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_two_processes_may_build_at_once(own_cache: Path) -> None:
    both = [forked(building) for _ in range(2)]
    for _, pipe in both:
        assert received(pipe) == "ready"
    for _, pipe in both:
        pipe.send("go")
    assert [received(pipe) for _, pipe in both] == [True, True]
    for process, _ in both:
        joined(process)
    assert len(built(own_cache)) == 1


def test_no_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    monkeypatch.setenv("CXX", "/nonexistent")
    assert create() == "there is no C++ compiler at CXX=/nonexistent"
    monkeypatch.delenv("CXX")
    assert create() == (
        "there is no C++ compiler (c++, g++ or clang++) on the PATH: install one, or "
        "`pip install sdfeel[compiler]`"
    )


@pytest.mark.skipif(find_spec("ziglang") is None, reason="sdfeel[compiler] is not installed")
def test_the_compiler_from_pip_serves_where_there_is_no_other(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.find_compiler() == build.ZIG
    assert isinstance(create(), NativeEngine)
    assert len(built(own_cache)) == 1


@pytest.mark.usefixtures("fully_optimised")
def test_only_old_gcc_gets_the_flags_against_its_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for macros, flags in (
        ("#define __GNUC__ 12\n", (*build.FLAGS, *build.GCC_12)),
        ("#define __GNUC__ 13\n", build.FLAGS),
        ("#define __GNUC__ 4\n#define __clang__ 1\n", build.FLAGS),
    ):
        monkeypatch.setattr(build, "_macros", lambda compiler, macros=macros: macros)
        assert build.flags_for(("c++",)) == flags


def test_a_compiler_that_fails_is_a_reason(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken"
    script.write_text(
        '#!/bin/sh\nif [ "$1" = -dM ]; then exit 0; fi\n'
        "echo 'model.cpp:1: error: no such thing' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert create() == f"the compiler {script} failed: model.cpp:1: error: no such thing"
    assert not list(own_cache.iterdir())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_a_reason(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.parent.parent.chmod(0o500)
    assert "cannot be kept" in str(create())


@needs_compiler
def test_a_wrong_library_is_caught_and_remembered(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: gradients of the wrong sign."""

    def wrong(plan: ModelPlan, batch: int) -> str:
        return RIGHT + source(plan, batch) + WRONG

    monkeypatch.setattr(available, "source", wrong)
    reason = create()
    assert str(reason).startswith("self-check failed: training differs from float64 by")
    monkeypatch.setattr(available, "mismatch", None)
    assert create() == reason


RIGHT = """
#define sdfeel_begin sdfeel_right_begin
#define sdfeel_describe sdfeel_right_describe
"""
WRONG = """
#undef sdfeel_begin
#undef sdfeel_describe
static float *rates;
extern "C" void *sdfeel_begin(const SdfeelTasks *tasks, int threads) {
    rates = const_cast<float *>(tasks->rates);
    return sdfeel_right_begin(tasks, threads);
}
extern "C" void sdfeel_describe(void *stream, int64_t count) {
    rates[count - 1] = -rates[count - 1];
    sdfeel_right_describe(stream, count);
}
"""


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (torch.zeros(64, 1, 4, 4, dtype=torch.float64), None, "its inputs are torch.float64"),
        (None, torch.zeros(64), "its targets are not class numbers"),
        (None, torch.full((64,), -100), "its targets are not all between 0 and 9"),
        (None, torch.full((64,), 10), "its targets are not all between 0 and 9"),
    ],
)
def test_data_that_does_not_fit_is_a_reason(
    x: torch.Tensor | None, y: torch.Tensor | None, reason: str
) -> None:
    data = Examples(DATA.x if x is None else x, DATA.y if y is None else y)
    assert reason in str(create(data))


@pytest.mark.usefixtures("fully_optimised")
@needs_compiler
def test_the_headers_compile_without_a_warning() -> None:
    own = fuzz.chain(3)
    plan = lower(own.module, own.training, own.shape)
    assert isinstance(plan, ModelPlan)
    build.library(source(plan, 7), (*build.NATIVE, "-Wall", "-Wextra", "-Werror"))


@needs_compiler
def test_every_instruction_set_has_a_library_of_its_own_and_the_same_bits(own_cache: Path) -> None:
    models, libraries = [], []
    for name in (build.ALL, *build.available_sets()):
        with build.compiled_for(name):
            engine = create()
        assert isinstance(engine, NativeEngine), engine
        start = torch.linspace(-1, 1, len(engine.initial()))
        (model,) = engine.train([Task(0, start, 3, 0)])
        models.append(model.clone())
        libraries.append(engine._native.path)
    assert len(set(libraries)) == len(built(own_cache)) == len(models)
    assert all(torch.equal(model, models[0]) for model in models)


@needs_compiler
@pytest.mark.skipif("avx512" not in build.available_sets(), reason="this CPU has no AVX-512")
def test_code_for_avx2_has_vectors_of_eight() -> None:
    code = '#include "vectors.hpp"\nextern "C" int lanes() { return sdfeel::LANES; }\n'
    found = {}
    for name in build.SETS:
        with build.compiled_for(name):
            found[name] = ctypes.CDLL(str(build.library(code))).lanes()
    assert found == {"avx2": 8, "avx512": 16}


def test_tiles_are_chosen_by_what_the_system_says_of_the_cpu() -> None:
    def described(vendor: str, family: int, flags: str) -> list[str]:
        return [f"vendor_id\t: {vendor}", f"cpu family\t: {family}", f"flags\t\t: fpu {flags}", ""]

    wide, whole = "avx2 avx512f avx512bw", "-DSDFEEL_WHOLE"
    large = "-DSDFEEL_FIRST_CACHE=49152"
    assert build.tuning_for(described("AuthenticAMD", 26, wide), "48K") == (whole, large)
    assert build.tuning_for(described("GenuineIntel", 6, wide), "48K") == (whole, large)
    assert build.tuning_for(described("AuthenticAMD", 25, wide), "") == ()
    assert build.tuning_for(described("AuthenticAMD", 25, "avx2"), "48K") == (large,)
    assert build.tuning_for([], "unknown") == ()


@needs_compiler
def test_the_headers_get_the_flags_by_which_tiles_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        '#include "vectors.hpp"\nextern "C" int whole() { return sdfeel::WHOLE; }\n'
        'extern "C" int cache() { return sdfeel::FIRST_CACHE; }\n'
    )
    monkeypatch.setattr(build, "tuning", lambda: ("-DSDFEEL_WHOLE", "-DSDFEEL_FIRST_CACHE=65536"))
    told = ctypes.CDLL(str(build.library(code)))
    assert told.cache() == 65536
    assert told.whole() == (build.code_instructions() == "avx512")
    plain = ctypes.CDLL(str(build.library(code, build.NATIVE)))
    assert (plain.whole(), plain.cache()) == (0, 32768)


def test_instructions_are_chosen_only_inside_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "cpu", lambda: " ".join(sorted(build.AVX2)))
    compiler, zig = ("g++",), build.ZIG
    assert (build.available_sets(), build.code_instructions()) == (["avx2"], "avx2")
    with build.compiled_for("avx2"):
        assert build.asked_target(compiler) == ("-march=x86-64-v3", "-mtune=native")
        assert build.asked_target(zig) == ("-mcpu=x86_64_v3",)
        with build.compiled_for(build.ALL):
            assert build.asked_target(compiler) == build.NATIVE
        assert build.asked_instructions() == "avx2"
    assert build.asked_target(compiler) == build.NATIVE


def test_an_engine_for_instructions_that_the_cpu_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "cpu", lambda: "x86_64 sse2 avx2 bmi1 bmi2 f16c movbe")
    told = "this CPU cannot run code for avx2, because it lacks fma: choose native"
    with pytest.raises(InputError, match=told), build.compiled_for("avx2"):
        pass
    monkeypatch.setenv(build.INSTRUCTIONS, "avx2")
    with pytest.raises(build.BuildFault, match=told):
        build.asked_target(("g++",))
    monkeypatch.setenv(build.INSTRUCTIONS, "mmx")
    with pytest.raises(build.BuildFault, match="unknown instruction set 'mmx'"):
        build.asked_target(("g++",))
