"""The fenced blocks of a document, and what runs them.

A block is skipped if the line before it says `<!-- not run: REASON -->`. A block whose first line
is a comment with a file name (`# my.toml`, `# mine.py`) is saved under that name. Other Python
blocks are executed, all blocks of a document in one namespace; of shell blocks, the lines that
begin with `$ sdfeel`, `$ cat` or `$ ls`. Everything else is there to be read.
"""

import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.waiting import finished

FENCE = re.compile(r"^(`{3,})\s*(\w*)")
SKIP = re.compile(r"^<!-- not run:(.*)-->$")
FILE = re.compile(r"^# ([\w-]+\.\w+)$")
SHELLS = ("console", "sh", "bash", "shell")
KEPT = ("PYTHONPATH", "XDG_CACHE_HOME")  # of the environment
EXECUTED, READ_ONLY = ("sdfeel", "cat", "ls"), ("make", "git", "pip")


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is where its text begins in the document."""

    language: str
    text: str
    line: int
    skipped: str | None = None  # why it is not run; empty if it should be but nobody said why


def blocks(document: str) -> Iterator[Block]:
    """
    >>> [b.language for b in blocks("```python\\n1\\n```\\n```\\nplain\\n```\\n")]
    ['python', '']
    """
    lines = document.splitlines()
    before, n = "", 0
    while n < len(lines):
        if fence := FENCE.match(lines[n]):
            end = lines.index(fence[1], n + 1)
            skip = SKIP.match(before)
            reason = skip[1].strip() if skip else None
            yield Block(fence[2], "\n".join(lines[n + 1 : end]) + "\n", n + 2, reason)
            n, before = end, ""
        elif lines[n].strip():
            before = lines[n].strip()
        n += 1


def commands(text: str) -> list[tuple[int, str]]:
    """(line number, command) of the `$` lines; a backslash at the end continues on the next line.

    >>> commands("$ sdfeel run\\nsome output\\n$ ls \\\\\\n  runs\\n")
    [(0, 'sdfeel run'), (2, 'ls runs')]
    """
    found, lines = [], text.splitlines()
    for n, line in enumerate(lines):
        if line.startswith("$ "):
            command, last = line[2:], n
            while command.endswith("\\"):
                last += 1
                command = command[:-1].rstrip() + " " + lines[last].strip()
            found.append((n, command.strip()))
    return found


class Runner:
    """Runs a document's blocks in the current directory."""

    def __init__(self, document: Path) -> None:
        self.document = document
        self._names: dict[str, Any] = {"__name__": "snippet"}

    def run(self, block: Block) -> None:
        name = FILE.match(block.text.split("\n", 1)[0])
        if name is not None:
            Path(name[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # The empty lines make a traceback point at the line of the document.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(self.document), "exec"), self._names)
        elif block.language in SHELLS:
            for offset, command in commands(block.text):
                self._shell(command, f"{self.document.name}, line {block.line + offset}")

    def _shell(self, command: str, where: str) -> None:
        program = command.split()[0]
        if program in READ_ONLY:
            return
        assert program in EXECUTED, f"{where}: the tests know no command '{program}'"
        status, output = execute(command)
        assert status == 0, f"{where}: '{command}' ended with {status}:\n{output}"


def execute(command: str) -> tuple[int, str]:
    """Exit status and output of one line.

    A plain `sdfeel` line goes to the installed entry point without a new process: importing
    torch again and again would be most of the time. The rest is left to a shell.
    """
    words = shlex.split(command, comments=True)
    if words[0] == "sdfeel" and not set(command) & set("|<>;&$*`("):
        return in_process(words)
    env = {name: os.environ[name] for name in os.environ if name in KEPT}
    env |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "MPLBACKEND": "Agg"}
    done = finished(["bash", "-o", "pipefail", "-c", command], env=env)
    return done.returncode, done.stdout + done.stderr


def in_process(words: list[str]) -> tuple[int, str]:
    """What `words` would do at a prompt."""
    (script,) = entry_points(group="console_scripts", name=words[0])
    output = io.StringIO()
    with patch.object(sys, "argv", words), redirect_stdout(output), redirect_stderr(output):
        try:
            script.load()()
        except SystemExit as end:
            if isinstance(end.code, str):  # Python prints it and exits with 1
                return 1, output.getvalue() + end.code
            return end.code or 0, output.getvalue()
    return 0, output.getvalue()
