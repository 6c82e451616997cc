"""A few random chains on several instruction sets; many: python -m tests.tools.native_fuzz."""

import sys

import pytest

from tests.engine.native.helpers import needs_compiler
from tests.tools import native_fuzz as fuzz

pytestmark = pytest.mark.usefixtures("fully_optimised")


@needs_compiler
@pytest.mark.parametrize(
    "seed",
    [
        *(2048, 2081),  # see build.GCC_12
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 2, 3, 2072)),
    ],
)
def test_random_chains_agree_with_float64(seed: int) -> None:
    name = list(fuzz.TARGETS)[seed % len(fuzz.TARGETS)]
    own = fuzz.chain(seed)
    assert fuzz.fault(own, seed, fuzz.TARGETS[name]) is None, f"{name}: {own}"


@needs_compiler
@pytest.mark.parametrize("seed", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_smooth_chains_agree_with_float64(seed: int) -> None:
    name = list(fuzz.TARGETS)[seed % len(fuzz.TARGETS)]
    own = fuzz.smooth_chain(seed)
    assert fuzz.fault(own, seed, fuzz.TARGETS[name]) is None, f"{name}: {own}"


def test_the_command_prints_what_it_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chains themselves are tried above."""
    found = iter([None, "it is off by 1"])
    monkeypatch.setattr(fuzz, "fault", lambda own, seed, target: next(found))
    monkeypatch.setattr(sys, "argv", ["fuzz", "--count", "2", "--target", "native"])
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "chain 1 (native): it is off by 1"
    assert last == "2 chains on native: 1 bad"
