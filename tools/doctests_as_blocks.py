"""Shows the doctests of docstrings as code in the documentation: an extension of mkdocstrings."""

import re
from typing import Any

import griffe  # type: ignore[import-not-found]

DOCTEST = re.compile(r"(?:^>>> .*\n(?:(?!\s*$).*\n?)*\n?)+", re.MULTILINE)


class DoctestsAsBlocks(griffe.Extension):  # type: ignore[misc]
    """Puts fences around what begins with >>>."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for everything that has been read."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            text = obj.docstring.value + "\n"
            obj.docstring.value = DOCTEST.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n\n", text)
