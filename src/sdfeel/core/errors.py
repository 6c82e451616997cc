"""Errors that a person can fix. The command line prints them as one sentence.

SdfeelError
+-- InputError     a value breaks a rule (also a ValueError)
|   +-- UnknownName    there is no thing of this name
+-- DataError      a data file is missing or damaged
+-- RunError       a run directory cannot be used as requested
+-- Diverged       training produced numbers that are not finite
"""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any


class SdfeelError(Exception):
    """Its text names the value, the rule and the way out."""


class InputError(SdfeelError, ValueError):
    """A value breaks a rule."""


class UnknownName(InputError):
    """Nothing has this name. `unknown` makes this error."""

    kind: str = ""
    value: str = ""
    known: tuple[str, ...] = ()


class DataError(SdfeelError):
    """A data file is missing or damaged."""


class RunError(SdfeelError):
    """A run directory cannot be used as requested."""


class AnotherRun(RunError):
    """A run directory belongs to another experiment, or to one of an earlier version."""


class Diverged(SdfeelError):
    """Training produced numbers that are not finite."""


def printable(text: str) -> str:
    """What somebody else wrote, as one line that cannot steer a terminal or forge another line.

    >>> printable("no\\n12:00 edge-0: all is well\\x1b[2J")
    'no 12:00 edge-0: all is well [2J'
    """
    return "".join(letter if letter.isprintable() else " " for letter in text)


OURS = {"sdfeel", "torch", "numpy"}  # code in which users need not look for their own mistakes


def told(error: BaseException) -> str:
    """An error from somebody else's code in one line, with the line of user code it came from.

    >>> try:
    ...     [1, 2][5]
    ... except IndexError as error:
    ...     print(told(error).split(" (")[0])
    IndexError: list index out of range
    >>> try:
    ...     compile("def net(:", "/mine/net.py", "exec")
    ... except SyntaxError as error:
    ...     print(told(error))
    SyntaxError: invalid syntax (/mine/net.py, line 1)
    """
    place, step = "", error.__traceback__
    while step is not None:
        code, module = step.tb_frame.f_code, str(step.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in OURS and not code.co_filename.startswith("<frozen"):
            place = f" ({code.co_filename}, line {step.tb_lineno})"
        step = step.tb_next
    if isinstance(error, SyntaxError) and error.filename:  # in a file that never ran
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}{place}"


def unknown(kind: str, value: str, known: Iterable[str]) -> UnknownName:
    """An error with a guess at what was meant.

    >>> print(unknown("scheme", "sdfeel", ["fedavg", "sd-feel"]))
    unknown scheme 'sdfeel': did you mean 'sd-feel'? (known: fedavg, sd-feel)
    >>> print(unknown("key", "server", ["server_up", "servers"]))
    unknown key 'server': did you mean 'servers'? (known: server_up, servers)
    """
    names = sorted(known)
    begun = [name for name in names if value and name.startswith(value.lower())]
    close = sorted(begun, key=len)[:1] or get_close_matches(value.lower(), names, n=1, cutoff=0.5)
    guess = f": did you mean '{close[0]}'?" if close else ""
    error = UnknownName(f"unknown {kind} '{value}'{guess} (known: {', '.join(names)})")
    error.kind, error.value, error.known = kind, value, tuple(names)
    return error


def said(value: Any) -> str:
    """A value in one line, or what kind of thing it is.

    >>> said(2.5), said(list(range(50)))
    ('2.5', 'a list')
    """
    whole = repr(value)
    return whole if len(whole) <= 60 and "\n" not in whole else f"a {type(value).__name__}"


def at_least(name: str, value: float, least: float) -> None:
    """
    >>> at_least("tau1", 0, 1)
    Traceback (most recent call last):
    sdfeel.core.errors.InputError: tau1 must be at least 1, got 0
    """
    if not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value}")


MOST = 10**9


def repeated(name: str, value: int, what: str) -> None:
    """Check how often something is done, one by one, within a single round: not for ever.

    >>> repeated("tau1", 10**12, "local iterations")
    Traceback (most recent call last):
    sdfeel.core.errors.InputError: tau1 must be at most 1,000,000,000, got 1,000,000,000,000: a \
single round with that many local iterations would hardly ever end
    """
    at_least(name, value, 1)
    if value > MOST:
        raise InputError(
            f"{name} must be at most {MOST:,}, got {value:,}: a single round with that many "
            f"{what} would hardly ever end"
        )


def whole_number(name: str, value: Any, least: int) -> None:
    """
    >>> whole_number("seeds", 2.5, 1)
    Traceback (most recent call last):
    sdfeel.core.errors.InputError: seeds must be a whole number, got 2.5
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {said(value)}")
    at_least(name, int(value), least)


def of_kind(name: str, value: Any, kinds: type | tuple[type, ...], words: str) -> None:
    """
    >>> of_kind("schemes", 3, (list, tuple), "a list of schemes")
    Traceback (most recent call last):
    sdfeel.core.errors.InputError: schemes must be a list of schemes, got 3
    """
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputError(f"{name} must be {words}, got {said(value)}")
