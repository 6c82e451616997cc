"""Print the lowest versions that pyproject.toml allows, as requirements for pip.

    python tools/lowest_versions.py dash deploy > lowest.txt     (with the named extras)

`make test-lowest` builds an environment from them, so that "numpy>=1.26" stays a promise.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Old wheels of torch are large, and builds for the CPU alone are not available everywhere. It keeps
# the version in constraints.txt, so its lower bound is the only one that is declared but not tried.
UNTRIED = {"torch"}
# Their versions follow from others': pydantic needs one particular version of its core.
DECIDED = {"pydantic_core"}
# Development tools keep their versions: users never install them.
_ATLEAST = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<version>[0-9][0-9.]*)")


def lowest(declared: Sequence[str], kept: Sequence[str]) -> Iterator[str]:
    """Yield `name==version` for each `name>=version`; of `UNTRIED`, the version that is kept."""
    newest = dict(line.split("==") for line in kept if "==" in line)
    for requirement in declared:
        if requirement in DECIDED:
            yield requirement
            continue
        found = _ATLEAST.fullmatch(requirement)
        if not found:
            raise ValueError(f"{requirement!r} declares no lowest version: write name>=version")
        name = found["name"]
        yield f"{name}=={newest[name] if name in UNTRIED else found['version']}"


def main(extras: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"]]
    for extra in extras:
        declared += project["optional-dependencies"][extra]
    for line in lowest(declared, (ROOT / "constraints.txt").read_text().split()):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
