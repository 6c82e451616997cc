"""A verdict or a number that is not the kept one is noticed."""

from typing import Any

from sdfeel.figures.judging import flips, shifts

Kept = tuple[str, float | str | None, float | str | None]  # verdict, low, high


def record(accuracy: float = 0.9, loss: float = 0.5, **verdicts: Kept) -> dict[str, Any]:
    claims = [
        {"id": name, "reading": "A", "verdict": verdict, "low": low, "high": high, "margin": 0.0}
        for name, (verdict, low, high) in verdicts.items()
    ]
    lines = {"A": {"SD-FEEL": {"accuracy": [accuracy] * 3, "loss": [loss] * 3}}}
    return {"figure": "4a", "scale": "quick", "claims": claims, "lines": lines}


def test_what_is_the_same_is_not_mentioned() -> None:
    kept, now = record(a=("holds", 3.0, 5.0)), record(a=("holds", 2.0, 6.0))
    assert flips(kept, now) == []
    assert shifts(kept, now) == []


def test_a_clear_verdict_must_not_flip() -> None:
    kept, now = record(a=("holds", 3.0, 5.0)), record(a=("not decided", -0.5, 1.0))
    (flip,) = flips(kept, now)
    assert flip.clear
    assert str(flip) == "4a, claim a under reading A: 'holds' became 'not decided'"


def test_a_close_verdict_may_flip() -> None:
    kept, now = record(a=("holds", 0.1, 3.0)), record(a=("not decided", -0.1, 3.0))
    (flip,) = flips(kept, now)
    assert not flip.clear
    assert str(flip).endswith("(it was close)")


def test_signs_and_calculations_are_clear_and_numbers_alone_are_not() -> None:
    kept = record(a=("holds", None, None), b=("holds", 0.1, 0.1), c=("report only", None, None))
    now = record(a=("not decided", -1.0, 2.0), b=("does not hold", -0.1, -0.1))
    assert [(flip.claim, flip.now, flip.clear) for flip in flips(kept, now)] == [
        ("a", "not decided", True),
        ("b", "does not hold", True),
        ("c", "gone", False),
    ]


def test_numbers_may_differ_by_what_hardware_explains_and_no_more() -> None:
    assert shifts(record(), record(accuracy=0.905, loss=0.52)) == []
    (told,) = shifts(record(), record(accuracy=0.88))
    assert told == (
        "4a, SD-FEEL under reading A: the final accuracy was 0.9 and is 0.88, off by more than 0.01"
    )
    (told,) = shifts(record(), record(loss=0.6))
    assert "the final loss was 0.5 and is 0.6" in told
    (told,) = shifts(record(), record() | {"lines": {}})
    assert told == "4a: the line SD-FEEL is gone under reading A"
