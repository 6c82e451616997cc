"""What was closed before a command started does not become something else."""

import sys
from pathlib import Path
from subprocess import DEVNULL

import pytest

from tests.waiting import finished

LOOK = """
import os, sys
from sdfeel.__main__ import main
place, sys.argv[1] = sys.argv[1], "--version"
try:
    main()
except SystemExit:
    pass
names = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
print("said", file=sys.stderr)
with open(place, "w") as file:
    print(*names, sys.stdout is not None, sys.stderr is not None, file=file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("closed", [(), (0,), (2,), (0, 2), (0, 1, 2)])
def test_streams_that_were_closed_are_the_null_device(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    """Otherwise a socket is number 2, and gets what a library writes to standard error."""
    place, other = tmp_path / "seen", tmp_path / "other"
    ends = " ".join(f"{number}>&-" for number in closed)
    line = f'exec "$0" -c "$1" "$2" >"{other}" 2>"{other}" {ends}'
    words = ["bash", "-c", line, sys.executable, LOOK, str(place)]
    finished(words, check=True, stdin=DEVNULL)
    *names, out, err = place.read_text().split()
    assert names == ["/dev/null" if n in (0, *closed) else str(other) for n in range(3)]
    assert (out, err) == ("True", "True")
