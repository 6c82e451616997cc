"""Rows in C++ have the bits of the plain code, which is the definition."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sdfeel.core import rules
from sdfeel.core.arrays import Floats, Singles
from sdfeel.core.portable import total
from sdfeel.core.seeds import generator, hidden_bits
from sdfeel.engine import by_rule, guards
from sdfeel.engine.native import rows

RULES: list[rules.Rule] = [
    rules.Median(),
    *(rules.Trimmed(share) for share in (0.0, 0.2, 0.49)),
    rules.Geometric(),
    rules.MultiKrum(0.3),
    rules.Clipped(0.5),
    rules.Clipped(None, steps=2),
    rules.Nearest(rules.Trimmed(0.2), 0.2),
    rules.Nearest(rules.Geometric(), 0.4),
]
KINDS = ("usual", "alike", "wild")


@pytest.fixture(scope="module")
def fast() -> rows.NativeRows:
    found = rows.loaded()
    if found is None:
        pytest.skip("there is no compiler, or another NumPy")
    return found


def drawn(seed: int, kind: str) -> tuple[NDArray[Any], Floats, Floats]:
    """Messages, votes and the row that they replace."""
    draws = np.random.default_rng([seed, KINDS.index(kind)])
    shape = int(draws.choice([1, 2, 3, 7, 16, 33, 50, 64, 65])), int(draws.integers(1, 300))
    x = draws.standard_normal(shape)
    if kind == "alike":  # ties, and zeros of both signs
        x = np.round(x) * draws.choice([-1.0, 1.0], shape)
    if kind == "wild":  # from the smallest numbers to the largest, and some rows far off
        x *= 10.0 ** draws.uniform(-44, 32, shape)
        x[draws.random(shape[0]) < 0.2] *= 1e4
    votes = np.ones(shape[0]) if seed % 2 else draws.uniform(0.1, 3, shape[0])
    return x.astype(np.float32), votes / votes.sum(), draws.standard_normal(shape[1])


@pytest.fixture
def both(fast: rows.NativeRows, monkeypatch: pytest.MonkeyPatch) -> list[rows.NativeRows | None]:
    """Whatever is in this list decides how rules compute."""
    how: list[rows.NativeRows | None] = [None]
    monkeypatch.setattr(by_rule, "rows_for", lambda x: how[0] if x.dtype == np.float32 else None)
    return how


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules(
    rule: rules.Rule, kind: str, fast: rows.NativeRows, both: list[rows.NativeRows | None]
) -> None:
    for seed in range(12):
        x, votes, own = drawn(seed, kind)
        found = []
        for how in (None, fast):
            both[0] = how
            with np.errstate(all="ignore"):
                found.append(by_rule.by_rule(rule, x.copy(), votes, own))
        assert found[0].tobytes() == found[1].tobytes(), (seed, x.shape)


def test_a_sum_has_its_order_whatever_its_length(fast: rows.NativeRows) -> None:
    draws = np.random.default_rng(0)
    for count in (*range(1, 40), *range(120, 140), 255, 256, 257, 1000, 4099, 21_840):
        x = draws.standard_normal((2, count)).astype(np.float32)
        centre = draws.standard_normal(count)
        plain = [total((row - centre) * (row - centre)) for row in x]
        assert fast.squares(x, centre).tolist() == plain, count


def test_guarded_updates(fast: rows.NativeRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped or not, noisy or not, of any length: what NumPy draws, its rare numbers included."""
    draws = np.random.default_rng(0)
    lengths = (0, 1, 7, 8, 255, 256, 257, 5000, 21_840, 150_000)
    for n, count in enumerate(lengths):
        start, trained = draws.standard_normal((2, count)).astype(np.float32)
        guard = guards.UpdateGuard(float(10.0 ** (n % 4)), 0.7 * (n % 5 != 0))
        given = start, trained, 2**200 + n, 3, n
        found = []
        for how in (None, fast):
            monkeypatch.setattr(guards, "rows_for", lambda _, how=how: how)
            found.append(guard.between(*given))
        assert found[0].tobytes() == found[1].tobytes(), count


def test_many_generators(fast: rows.NativeRows) -> None:
    """Among them some whose bits begin with zeros, which NumPy leaves out of its seed."""
    zeros = np.zeros(700, np.float32)
    some = [hidden_bits(7, "any", n) for n in range(300)]
    some += [bytes(n) + each[n:] for each in some[:3] for n in range(1, 33)]
    for bits in some:
        plain = (3.0 * generator(bits).standard_normal(700)).astype(np.float32)
        assert fast.guarded(zeros, zeros, 1.0, 3.0, bits).tobytes() == plain.tobytes(), bits.hex()


def test_numpy_draws_where_the_compiled_functions_draw_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A NumPy whose stream is another one, or a wrong library, is never used."""

    class Wrong:
        def __init__(self, path: Path) -> None: ...

        def guarded(self, *given: object) -> Singles:
            return np.zeros(rows.TRIED, np.float32)

    rows.loaded.cache_clear()
    monkeypatch.setattr(rows, "library", lambda source: Path())
    monkeypatch.setattr(rows, "NativeRows", Wrong)
    assert rows.loaded() is None
    rows.loaded.cache_clear()
