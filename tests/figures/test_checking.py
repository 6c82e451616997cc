"""A verdict that is not the kept one is noticed."""

from typing import Any

from sdfeel.figures.judging import flips


def record(**verdicts: tuple[str, float | str | None, float | None]) -> dict[str, Any]:
    claims = [
        {"id": name, "prices": "A", "verdict": verdict, "effect": effect, "error": error}
        for name, (verdict, effect, error) in verdicts.items()
    ]
    return {"figure": "4a", "scale": "quick", "claims": claims}


def test_what_is_the_same_is_not_mentioned() -> None:
    kept, now = record(a=("holds", 3.0, 1.0)), record(a=("holds", 2.0, 1.0))
    assert flips(kept, now) == []


def test_a_clear_verdict_must_not_flip() -> None:
    kept, now = record(a=("holds", 3.0, 1.0)), record(a=("not decided", 0.5, 1.0))
    (flip,) = flips(kept, now)
    assert flip.clear
    assert str(flip) == "4a, claim a at prices A: 'holds' became 'not decided'"


def test_a_close_one_may() -> None:
    kept, now = record(a=("holds", 1.5, 1.0)), record(a=("not decided", 0.9, 1.0))
    (flip,) = flips(kept, now)
    assert not flip.clear
    assert str(flip).endswith("(it was close)")


def test_never_and_calculations_are_clear_and_numbers_alone_are_not() -> None:
    kept = record(a=("holds", "never", 0.0), b=("holds", 0.1, 0.0), c=("report only", None, None))
    now = record(a=("not decided", 1.0, 2.0), b=("does not hold", -0.1, 0.0))
    assert [(flip.claim, flip.now, flip.clear) for flip in flips(kept, now)] == [
        ("a", "not decided", True),
        ("b", "does not hold", True),
        ("c", "gone", False),
    ]
