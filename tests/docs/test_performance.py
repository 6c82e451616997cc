"""docs/performance.md says what was measured: its tables, and no other numbers."""

import re

import pytest

from tests.tools import performance_page as page
from tests.tools.performance_tables import TABLES

TEXT = page.PAGE.read_text(encoding="utf-8")
NUMBER = r"\d[\d,.]*\d|\d"
UNIT = (
    "%|times|ms|s|MB|GB|GFLOP|seconds?|microseconds?|nanoseconds?|(samples|examples)(/s| a second)"
)
MEASURED = re.compile(rf"(?:{NUMBER}) ?(?:{UNIT})(?![\w/])")
TABLE_ROW = re.compile(r"^\|.*\d.*\|$", re.MULTILINE)


def prose(text: str) -> str:
    """What is written by hand, without code."""
    return re.sub(r"```.*?```|`[^`]*`", "", page.BLOCK.sub("", text), flags=re.DOTALL)


def test_the_tables_are_those_of_the_kept_measurements() -> None:
    wanted = page.written(TEXT, page.kept())
    assert wanted == TEXT, "run `python -m tests.tools.performance_page --write`"


def test_every_step_has_a_table_and_every_table_a_step() -> None:
    names = [found[2] for found in page.BLOCK.finditer(TEXT)]
    assert sorted(names) == sorted([*page.STEPS, "goals"])
    assert set(page.STEPS) == set(TABLES) >= set(page.kept())
    assert TEXT.count("<!-- measured:") == TEXT.count("<!-- end -->") == len(names)


def test_prose_has_no_numbers_that_were_measured() -> None:
    assert MEASURED.findall(prose(TEXT)) == []
    assert all("`" in row or "bits" in row for row in TABLE_ROW.findall(prose(TEXT)))


@pytest.mark.parametrize("text", ["it takes 12.5 ms,", "1.9 times as fast", "97 % of the peak."])
def test_such_a_number_would_be_found(text: str) -> None:
    assert MEASURED.search(prose(text))


def test_every_measurement_says_where_it_was_made() -> None:
    for name, own in page.kept().items():
        assert own["commands"], name
        assert re.match(r"\d{4}-\d\d-\d\d", own["date"])
        assert own["load"]
        assert own["rows"]
