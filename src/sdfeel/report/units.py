"""Numbers and names as people read them. Decimal prefixes: 1 kB is 1,000 bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, isnan, log10

from sdfeel.core.errors import printable

MISSING = "-"
NOT_MEASURED = "unknown"  # a cost that nobody measured is not zero


@dataclass(frozen=True)
class Unit:
    """`size` base units under one `name`, worth using from `since` base units on."""

    name: str
    size: float
    since: float


def _ladder(names: Sequence[str], smallest: float = 1.0) -> tuple[Unit, ...]:
    sizes = [smallest * 1000**step for step in range(len(names))]
    return tuple(Unit(name, size, size) for name, size in zip(names, sizes, strict=True))


BYTES = _ladder(("B", "kB", "MB", "GB", "TB", "PB"))
JOULES = _ladder(("mJ", "J", "kJ", "MJ", "GJ"), smallest=1e-3)
# From two on: an axis from 0 to 90 reads better in seconds than one from 0 to 1.5 in minutes.
TIMES = (
    Unit("ms", 1e-3, 0),
    Unit("s", 1, 0.5),
    Unit("min", 60, 120),
    Unit("h", 3600, 7200),
    Unit("days", 86400, 172800),
)
COUNTS = (Unit("", 1, 0), Unit("thousands", 1e3, 2e4), Unit("millions", 1e6, 2e7))


def unit_for(largest: float, ladder: Sequence[Unit]) -> Unit:
    """The unit for an axis or a number that goes up to `largest`.

    >>> unit_for(90, TIMES).name, unit_for(600, TIMES).name, unit_for(3e6, BYTES).name
    ('s', 'min', 'MB')
    """
    fitting = [unit for unit in ladder if largest >= unit.since]
    return fitting[-1] if fitting else ladder[0]


def duration(seconds: float | None) -> str:
    """Seconds, in the unit that suits them.

    >>> duration(0.0123), duration(45.25), duration(125), duration(7500), duration(270_000)
    ('12.3 ms', '45.2 s', '2:05 min', '2:05 h', '3.12 days')
    >>> duration(0), duration(119.99), duration(None), duration(float("inf"))
    ('0 s', '2:00 min', '-', 'infinite')
    """
    if seconds is None or not isfinite(seconds):
        return _not_finite(seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 99.95:
        small = seconds < 0.09995
        return f"{significant(seconds * 1e3)} ms" if small else f"{significant(seconds)} s"
    if seconds < 3599.5:
        return f"{_clock(round(seconds))} min"
    if seconds < 48 * 3600 - 30:
        return f"{_clock(round(seconds / 60))} h"
    return f"{significant(seconds / 86400)} days"


def amount(count: float | None) -> str:
    """Bytes, in the unit that suits them.

    >>> amount(0), amount(999), amount(1500), amount(999_999), amount(123_456_789), amount(None)
    ('0 B', '999 B', '1.50 kB', '1.00 MB', '123 MB', '-')
    """
    if count is not None and isfinite(count) and count < 1000:
        return f"{count:.0f} B"
    return _scaled(count, BYTES)


def modelled(energy: float | None) -> str:
    """Joules, with a reminder that they are computed from devices' watts and not measured.

    >>> modelled(3.5)
    '3.50 J (modelled)'
    """
    return f"{joules(energy)} (modelled)"


def joules(energy: float | None) -> str:
    """Joules, in the unit that suits them.

    >>> joules(0), joules(0.25), joules(3.5), joules(72_000), joules(None)
    ('0 J', '250 mJ', '3.50 J', '72.0 kJ', '-')
    """
    return "0 J" if energy == 0 else _scaled(energy, JOULES)


def percent(share: float | None) -> str:
    """A share in percent.

    >>> percent(0.9123), percent(1), percent(None)
    ('91.2 %', '100.0 %', '-')
    """
    if share is None or not isfinite(share):
        return _not_finite(share)
    return f"{100 * share:.1f} %"


def goal(target: float) -> str:
    """A target in percent, without needless zeros.

    >>> goal(0.85), goal(0.925)
    ('85 %', '92.5 %')
    """
    return f"{100 * target:.4g} %"


def number(value: float | None) -> str:
    """A number with three digits that mean something.

    >>> number(0.31239), number(12.5), number(1234567.0), number(3.2e-7), number(0.0), number(None)
    ('0.312', '12.5', '1.23e+06', '3.2e-07', '0', '-')
    """
    if value is None or not isfinite(value):
        return _not_finite(value)
    return significant(value) if 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"


def count(value: float | None) -> str:
    """A whole number, with commas between thousands.

    >>> count(12000), count(None)
    ('12,000', '-')
    """
    return MISSING if value is None else f"{value:,.0f}"


def significant(value: float) -> str:
    """Three digits that mean something, never in powers of ten.

    >>> [significant(value) for value in (0.01234, 1, 9.996, 45.25, 123.4, 1234.5)]
    ['0.0123', '1.00', '10.0', '45.2', '123', '1234']
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{value:.{max(0, 2 - floor(log10(abs(rounded))))}f}"


def short(text: str, limit: int = 44) -> str:
    """One printable line of at most `limit` characters; the middle goes first.

    >>> short("sweep/sd-feel/tau1=5/seed=3", 20)
    'sweep/sd-fee…/seed=3'
    """
    line = printable(text)
    if len(line) <= limit:
        return line
    tail = (limit - 1) * 2 // 5
    return f"{line[: limit - 1 - tail]}…{line[-tail:]}"


def _scaled(value: float | None, ladder: Sequence[Unit]) -> str:
    if value is None or not isfinite(value):
        return _not_finite(value)
    # Rounded first, so that 999,999 bytes become 1.00 MB and not 1000 kB.
    unit = unit_for(float(f"{value:.3g}"), ladder)
    return f"{significant(value / unit.size)} {unit.name}"


def _clock(parts: int) -> str:
    whole, rest = divmod(parts, 60)
    return f"{whole}:{rest:02d}"


def _not_finite(value: float | None) -> str:
    if value is None:
        return MISSING
    return "not a number" if isnan(value) else "infinite"
