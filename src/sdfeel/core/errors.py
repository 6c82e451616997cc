"""Errors that a person can fix. The command line prints them as one sentence.

SdfeelError
+-- InputError     a value breaks a rule (also a ValueError)
+-- DataError      a data file is missing or damaged
+-- RunError       a run directory cannot be used as requested
+-- Diverged       training left the finite numbers
"""

from collections.abc import Iterable
from difflib import get_close_matches


class SdfeelError(Exception):
    """Its text names the value, the rule and the way out."""


class InputError(SdfeelError, ValueError):
    """A value breaks a rule."""


class DataError(SdfeelError):
    """A data file is missing or damaged."""


class RunError(SdfeelError):
    """A run directory cannot be used as requested."""


class AnotherRun(RunError):
    """A run directory belongs to another experiment, or to one of an earlier version."""


class Diverged(SdfeelError):
    """Training left the finite numbers."""


OURS = {"sdfeel", "torch", "numpy"}  # code in which users need not look for a mistake of their own


def told(error: BaseException) -> str:
    """An error from somebody else's code in one line, with the line of user code it came from.

    >>> try:
    ...     [1, 2][5]
    ... except IndexError as error:
    ...     print(told(error).split(" (")[0])
    IndexError: list index out of range
    """
    place, step = "", error.__traceback__
    while step is not None:
        code, module = step.tb_frame.f_code, str(step.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in OURS and not code.co_filename.startswith("<frozen"):
            place = f" ({code.co_filename}, line {step.tb_lineno})"
        step = step.tb_next
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}{place}"


def unknown(kind: str, value: str, known: Iterable[str]) -> InputError:
    """An error with a guess at what was meant.

    >>> print(unknown("scheme", "sdfeel", ["fedavg", "sd-feel"]))
    unknown scheme 'sdfeel': did you mean 'sd-feel'? (known: fedavg, sd-feel)
    """
    names = sorted(known)
    close = get_close_matches(value.lower(), names, n=1, cutoff=0.5)
    guess = f": did you mean '{close[0]}'?" if close else ""
    return InputError(f"unknown {kind} '{value}'{guess} (known: {', '.join(names)})")


def at_least(name: str, value: float, least: float) -> None:
    """
    >>> at_least("tau1", 0, 1)
    Traceback (most recent call last):
    sdfeel.core.errors.InputError: tau1 must be at least 1, got 0
    """
    if not value >= least:
        raise InputError(f"{name} must be at least {least}, got {value}")
