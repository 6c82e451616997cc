"""What is known to be wrong and not fixed yet: this table must shrink until it is empty.

An entry excuses its kind of violation in every combination that holds its options. As soon as
the options alone show it no longer, the suite fails until the entry is taken out.
"""

from typing import NamedTuple


class Known(NamedTuple):
    """One kind of violation, the fewest options that show it, and why it is there."""

    kind: str
    choice: str
    reason: str


KNOWN: tuple[Known, ...] = ()
