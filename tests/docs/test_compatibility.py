"""Two documents say which options go with which scheme; these parts are generated.

python -m tests.docs.test_compatibility     rewrites them
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from sdfeel.schemes.compatibility import in_words, markdown

DOCUMENTS = Path(__file__).parents[2] / "docs"
BEGIN = "<!-- Generated: `python -m tests.docs.test_compatibility` rewrites it. -->\n\n"
GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "schemes.md": ("\n## With any scheme", markdown),
    "methods.md": ("\n## Why not", in_words),
}


def parts(name: str) -> tuple[str, str, str]:
    """Before, the generated part, and after."""
    before, begin, rest = (DOCUMENTS / name).read_text(encoding="utf-8").partition(BEGIN)
    generated, end, after = rest.partition(GENERATED[name][0])
    assert begin
    assert end
    return before + begin, generated, end + after


@pytest.mark.parametrize("name", GENERATED)
def test_the_table_of_schemes_and_options_is_up_to_date(name: str) -> None:
    assert parts(name)[1] == GENERATED[name][1](), "run `python -m tests.docs.test_compatibility`"


if __name__ == "__main__":
    for name, (_, generate) in GENERATED.items():
        before, _, after = parts(name)
        (DOCUMENTS / name).write_text(before + generate() + after, encoding="utf-8")
        print(f"wrote docs/{name}")
