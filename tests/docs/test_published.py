"""docs/schemes.md says for every scheme what is as published, and what is not."""

import re
from pathlib import Path

import pytest

from sdfeel.schemes import SCHEMES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "schemes.md").read_text(encoding="utf-8")
SAID = re.compile(r"^\*\*(As published|Differs)\*\*", re.MULTILINE)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_says_whether_it_is_as_published(name: str) -> None:
    (section,) = re.findall(rf"^## {name}\n(.*?)^## ", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert len(SAID.findall(section)) == 1


def test_the_table_in_the_readme_has_every_scheme() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert set(SCHEMES) <= set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE))
