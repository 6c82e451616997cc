"""The names of a run's and a node's files, how some are written and read, and nan in JSON."""

import os
import secrets
import struct
import tokenize
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sdfeel.core.errors import DataError, InputError

# A run's directory; the log has the same name in a node's directory.
EXPERIMENT, EVENTS, METRICS = "experiment.toml", "events.jsonl", "metrics.csv"
CHECKPOINT, MODEL, LOCK = "checkpoint.safetensors", "model.safetensors", ".lock"
CHANGES = "checkpoint.changes"  # what has changed since the checkpoint
PROVENANCE = "provenance.json"  # what a run was made from
PERSONAL = "personal.safetensors"  # what stays with each client
PICTURE, PAGE = "picture.png", "report.html"
GROUP = "group.json"  # how several runs in one directory belong together
NOTES = "notes.json"  # what people have written about a run: tags and a text

# A deployment's directory, and those of its nodes.
NETWORK, EPOCHS, ALLOW, NODES, NODE, STATUS = (
    "network.json",
    "epochs",
    "allow.txt",
    "nodes",
    "node.toml",
    "status.json",
)
# Where a node's directory finds what all nodes share, unless its node.toml says otherwise.
NEAR_EXPERIMENT, NEAR_NETWORK = f"../../{EXPERIMENT}", f"../../{NETWORK}"
TRUST = "trust"  # a separate directory: containers see a replaced file only in mounted directories
NEAR_ALLOW = f"../../{TRUST}/{ALLOW}"
AUDIT, STATE, SECRET = "audit.jsonl", "state", "secret.key"
SECRET_BYTES = 32
# What NumPy says about a file that is damaged, cut short, or something else.
NOT_ARRAYS = (
    *(KeyError, ValueError, TypeError, EOFError, OverflowError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError),
)
STATEMENTS, KEPT_MODELS = "statements.jsonl", "models"  # what a node signed, and what it is about
VERIFICATION = "verification.json"  # what `sdfeel deploy verify` found


def write_atomic(path: Path, content: bytes, durable: bool = True, private: bool = False) -> None:
    """Replace a file so that a crash or a reader finds the old one or the new one, never a part."""
    with replacing(path, durable, private) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, durable: bool = True, private: bool = False) -> Iterator[IO[bytes]]:
    """Like `write_atomic`, for content that is written piece by piece.

    If not durable, the file may be lost in a power cut, but no reader ever finds a part of it.
    If private, nobody but its owner can read it, not even while it is being written.
    """
    # In the same directory, because a rename is atomic only within one file system.
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened_privately(draft) if private else draft.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # The error names the file that was asked for, not the draft.
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    if durable:
        _secure_names(path.parent)


def _opened_privately(draft: Path) -> IO[bytes]:
    # A killed process with the same number may have left a draft that others can read.
    draft.unlink(missing_ok=True)
    return os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextmanager
def client_arrays(path: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """A deployed client's x and y; DataError if they are not there, or of no use to the caller."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except NOT_ARRAYS as error:
        raise _no_arrays(path, error) from None
    try:
        yield x, y
    except (KeyError, ValueError, TypeError) as error:
        raise _no_arrays(path, error) from None


def _no_arrays(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not a client's data ({error}): save x and y with numpy.savez")


def append(path: Path, content: bytes, new: bool = False) -> None:
    """Append to a file, durably; `new`: what was in it before is discarded.

    A crash may leave a part of the content: its reader must be able to tell.
    """
    with path.open("wb" if new else "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _secure_names(path.parent)


def _secure_names(directory: Path) -> None:
    """Flush a directory's list of names to disk: a file's new name must survive a crash, too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_drafts(directory: Path) -> None:
    """Remove what a killed process left half-written."""
    for draft in directory.glob(".*.tmp"):
        draft.unlink(missing_ok=True)


def secret_of(directory: Path) -> int:
    """256 bits that only this node knows: drawn when they are first asked for, then kept."""
    path = directory / STATE / SECRET
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, secrets.token_bytes(SECRET_BYTES), private=True)
    found = path.read_bytes()
    if len(found) != SECRET_BYTES:  # a short one could be guessed, and all noise with it
        raise DataError(
            f"{path} is damaged: it has {len(found)} bytes, not {SECRET_BYTES}; bring the "
            f"directory {path.parent} back as it was"
        )
    return int.from_bytes(found, "big")


def finite(value: float | None, below: float | None = None) -> float | None:
    """The value, or None where JSON cannot express it or its size is not smaller than `below`.

    >>> finite(0.5), finite(float("nan")), finite(None), finite(-1e40, below=1e30)
    (0.5, None, None, None)
    """
    if value is None or not isfinite(value) or (below is not None and abs(value) >= below):
        return None
    return float(value)


def json_safe(document: Any) -> Any:
    """The same document, with null in place of numbers that JSON cannot express.

    >>> json_safe({"loss": [1.0, float("inf")], "clients": 3})
    {'loss': [1.0, None], 'clients': 3}
    """
    if isinstance(document, dict):
        return {key: json_safe(item) for key, item in document.items()}
    if isinstance(document, list | tuple):
        return [json_safe(item) for item in document]
    return finite(document) if isinstance(document, float) else document


DEEPEST = 100  # tables and lists within one another: ours have four


def of_toml(content: bytes) -> dict[str, Any]:
    r"""What is in a TOML file, whichever editor saved it; ValueError, with a sentence, if it cannot
    be read.

    >>> of_toml(b"\xef\xbb\xbfseed = 1\r\n")
    {'seed': 1}
    """
    try:
        found = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8 text: save the file as UTF-8") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python's limit on the digits of a number
        raise ValueError("it has a number of thousands of digits: write a shorter one") from error
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return found
    raise ValueError(_TOO_DEEP)


def read_toml(path: Path, what: str, missing: str | None = None) -> dict[str, Any]:
    """What is in a TOML file; InputError if it cannot be read, which calls the file `what`, or says
    `missing` if there is no such file."""
    try:
        return of_toml(path.read_bytes())
    except OSError as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            raise InputError(missing) from None
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None


_TOO_DEEP = "its tables or lists are nested too deeply: nothing here needs more than four levels"
