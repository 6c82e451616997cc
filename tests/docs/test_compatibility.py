"""docs/schemes.md says which options go with which scheme; that part is generated.

python -m tests.docs.test_compatibility     rewrites it
"""

from pathlib import Path

from sdfeel.schemes.compatibility import markdown

DOCUMENT = Path(__file__).parents[2] / "docs" / "schemes.md"
BEGIN = "<!-- Generated: `python -m tests.docs.test_compatibility` rewrites it. -->\n\n"
END = "\n## With any scheme"


def parts() -> tuple[str, str, str]:
    """Before, the generated part, and after."""
    before, begin, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    generated, end, after = rest.partition(END)
    assert begin
    assert end
    return before + begin, generated, end + after


def test_the_table_of_schemes_and_options_is_up_to_date() -> None:
    assert parts()[1] == markdown(), "run `python -m tests.docs.test_compatibility`"


if __name__ == "__main__":
    before, _, after = parts()
    DOCUMENT.write_text(before + markdown() + after, encoding="utf-8")
    print(f"wrote {DOCUMENT}")
