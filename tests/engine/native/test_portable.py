"""The same bits on every CPU, by every compiler. All of them: python -m tests.tools.portable."""

import ctypes
import json
import math
import os
import platform
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sdfeel.engine.base import Training
from sdfeel.engine.native import build
from sdfeel.engine.native.library import Library
from sdfeel.models import zoo
from tests.engine.native.helpers import examples, native, needs_compiler
from tests.tools import portable, portable_parts
from tests.tools.portable import Target
from tests.waiting import finished

NARROW = ("-DSDFEEL_LANES=4", "-DSDFEEL_REGISTERS=32")  # as aarch64 has them
WIDE = ("-DSDFEEL_LANES=16", "-DSDFEEL_REGISTERS=32")  # as AVX-512 has them
AVX2 = ("-march=x86-64-v3",)
on_x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or " avx2" not in build.cpu(),
    reason="this CPU has no AVX2",
)
MODELS = portable.models([*range(4), 39])
# Each is compiled for seconds as users have it, and for less in other ways, to the same bits.
OFTEN = ("chain 0", "smooth 0")
as_users_have_it = pytest.mark.usefixtures("fully_optimised")


@cache
def case(name: str) -> portable.Case:
    return MODELS[name]()


def bits(name: str, *flags: str) -> str:
    keep = build.cache_folder() / "portable"
    keep.mkdir(parents=True, exist_ok=True)
    try:
        return portable.bits(case(name), Target("here", build.find_compiler(), flags), keep)
    except portable.OwnBits as reason:
        pytest.skip(str(reason))


@as_users_have_it
@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        name if name == "mnist-cnn" else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
        if name != "cifar-cnn"
    ],
)
def test_this_machine_has_the_bits_on_record(name: str) -> None:
    assert bits(name, *build.NATIVE) == portable.golden()[name]


@needs_compiler
def test_inputs_gradients_have_one_order_however_they_are_summed() -> None:
    """Every output of a convolution in chain 39 has one; its tiles are newer than the record."""
    assert bits("chain 39", *build.NATIVE) == portable.golden()["chain 39"]


@needs_compiler
@pytest.mark.parametrize("name", OFTEN)
def test_compiled_in_less_time_a_model_has_the_bits_on_record_too(name: str) -> None:
    assert bits(name, *build.NATIVE) == portable.golden()[name]


WIDTHS = [  # `tests.tools.portable` tries all
    ("mnist-cnn", NARROW),
    ("chain 2", WIDE),
    ("mnist-cnn", (*WIDE, *portable.WHOLE)),
]


@needs_compiler
@pytest.mark.parametrize(("name", "flags"), WIDTHS, ids=["narrow", "wide", "whole"])
def test_the_width_of_vectors_changes_no_bit(name: str, flags: tuple[str, ...]) -> None:
    assert bits(name, *build.NATIVE, *flags) == portable.golden()[name]


@pytest.mark.slow
@as_users_have_it
@needs_compiler
@pytest.mark.parametrize(("name", "flags"), WIDTHS, ids=["narrow", "wide", "whole"])
def test_the_width_of_vectors_changes_no_bit_for_users(name: str, flags: tuple[str, ...]) -> None:
    assert bits(name, *build.NATIVE, *flags) == portable.golden()[name]


@on_x86
@needs_compiler
def test_avx2_has_the_bits_on_record() -> None:
    assert bits("mnist-cnn", *AVX2) == portable.golden()["mnist-cnn"]


@pytest.mark.slow
@as_users_have_it
@on_x86
@needs_compiler
@pytest.mark.parametrize("name", ["mnist-cnn", "logistic"])
def test_avx2_has_the_bits_on_record_for_users(name: str) -> None:
    assert bits(name, *AVX2) == portable.golden()[name]


@on_x86
@needs_compiler
def test_sums_as_wide_as_the_cpu_have_other_bits() -> None:
    """Or the tests above would see nothing."""
    assert bits("logistic", *AVX2, portable.OWN_WIDTH) != portable.golden()["logistic"]


FUNCTIONS = """
#include "exponential.hpp"
template <int TERMS> double last_of_four(double x) {
    double powers[] = {0, -1e9, -1, x};
    sdfeel::exponentials<TERMS>(powers, powers);
    return powers[3];
}
extern "C" float exp_float(float x) { return float(last_of_four<sdfeel::FOR_FLOATS>(x)); }
extern "C" double exp_double(double x) { return last_of_four<sdfeel::FOR_DOUBLES>(x); }
extern "C" double log_double(double x) { return sdfeel::log_double(x); }
"""


@needs_compiler
def test_the_exponential_and_the_logarithm_are_right() -> None:
    own = ctypes.CDLL(str(build.library(FUNCTIONS)))
    for name, kind in (("exp_float", ctypes.c_float), ("exp_double", ctypes.c_double)):
        getattr(own, name).restype, getattr(own, name).argtypes = kind, [kind]
    own.log_double.restype, own.log_double.argtypes = ctypes.c_double, [ctypes.c_double]
    draws = np.random.default_rng(0)
    for x in [0.0, -1e-30, -0.34657, -80.0, *(-(10 ** draws.uniform(-6, 1.9, 2000))).tolist()]:
        single = float(np.float32(x))
        assert own.exp_float(single) == pytest.approx(math.exp(single), rel=2**-24)
        assert own.exp_double(x) == pytest.approx(math.exp(x), rel=2**-51)
    for x in [1.0, 2.0, 10.0, 1 + 1e-12, *(10 ** draws.uniform(0, 4, 2000)).tolist()]:
        assert own.log_double(x) == pytest.approx(math.log(x), rel=2**-51, abs=1e-300)
    assert own.exp_float(-math.inf) == own.exp_double(-1e9) == 0
    assert math.isnan(own.exp_float(math.nan))
    assert math.isnan(own.log_double(math.nan))


# What NumPy calls a CPU with AVX-512: each of its versions knows some of these names.
AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torch_has", "blas_for", "numpy_lacks"),
    [
        ("default", "Prescott", f"AVX2 FMA3 X86_V3 {AVX512}"),
        ("avx2", "Haswell", AVX512),
    ],
)
def test_what_surrounds_the_engine_has_the_same_bits_elsewhere(
    torch_has: str, blas_for: str, numpy_lacks: str, tmp_path: Path
) -> None:
    """With fewer of this CPU's instructions: libraries must know that before they are loaded."""
    given = {"ATEN_CPU_CAPABILITY": torch_has, "OPENBLAS_CORETYPE": blas_for}
    # numpy warns of features that it was built with or that the CPU has not: no matter here.
    given |= {"NPY_DISABLE_CPU_FEATURES": numpy_lacks, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.tools.portable_parts", str(tmp_path)]
    done = finished(command, env=os.environ | given)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    uses = found.pop("features")
    assert not set(uses) & set(numpy_lacks.split())  # or the rest would show nothing
    assert found == portable_parts.parts(tmp_path / "here")


def test_what_surrounds_the_engine_has_the_bits_on_record(tmp_path: Path) -> None:
    """Starts, data, mixing weights, servers' sums, and a run with all of them."""
    found = portable_parts.parts(tmp_path)
    del found["decisions"]  # every new scheme adds to them
    assert found == {name: portable.golden()[name] for name in found}


@needs_compiler
def test_an_engine_without_fma_says_that_its_bits_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = (1, 9, 9)
    own = native(zoo.build("logistic", shape, 10, 0), examples(shape), Training(0.1, 10))
    monkeypatch.setattr(own._native.library, "fuses", True)
    assert (own.bits, own.reserve) == ("native 2", "")
    monkeypatch.setattr(own._native.library, "fuses", False)
    assert own.bits == "native 2, without FMA"
    assert own.reserve == ", with bits of its own: this CPU has no fused multiply-add"


@on_x86
@needs_compiler
def test_code_for_any_x86_does_not_fuse() -> None:
    code = case("logistic").code
    assert not Library(build.library(code, ("-march=x86-64",))).fuses
    assert Library(build.library(code, AVX2)).fuses
