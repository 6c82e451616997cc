"""Reads a schedule of changes: one line says when, what, and whether it goes up or down."""

from sdfeel.core.changing import Change, Unit
from sdfeel.core.errors import InputError
from sdfeel.core.network import Network

NUMBERS = {"link": 2, "server": 1, "cloud": 0}
UNITS: dict[str, Unit] = {"round": "round", "second": "second"}
EXAMPLE = "'round 50 server 3 down' or 'second 12.5 link 0 1 up'"


def schedule(text: str, name: str) -> tuple[Change, ...]:
    """The changes of a file called `name`, in the order of time.

    >>> schedule("round 5 link 0 1 down  # a storm", "storm.txt")
    (Change(when=5.0, unit='round', who=(0, 1), up=False),)
    """
    changes = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if words:
            try:
                changes.append(_change(words))
            except (ValueError, KeyError, IndexError):
                raise InputError(
                    f"line {number} of {name} is '{line.strip()}', which is no change: write "
                    f"lines like {EXAMPLE}"
                ) from None
    if len({change.unit for change in changes}) > 1:
        raise InputError(f"{name} counts in rounds and in seconds: use one of them in all lines")
    return tuple(sorted(changes, key=lambda change: change.when))


def _change(words: list[str]) -> Change:
    unit, when, what, *who, state = words
    if len(who) != NUMBERS[what] or not float(when) >= 0:
        raise ValueError
    numbers = tuple(int(server) for server in who)
    return Change(float(when), UNITS[unit], numbers, {"up": True, "down": False}[state])


def check(changes: tuple[Change, ...], net: Network, name: str) -> None:
    """Refuse servers and links that the network does not have, and an end without servers."""
    count = len(net.servers)
    for change in changes:
        strange = [d for d in change.who if not 0 <= d < count]
        if strange:
            raise InputError(
                f"{name} changes server {strange[0]}, but servers are numbered 0 to {count - 1}"
            )
        if len(change.who) == 2 and not net.links[change.who]:
            a, b = change.who
            raise InputError(
                f"{name} changes the link between servers {a} and {b}, but network.graph has none: "
                f"take the line out, or add the link to the graph"
            )
    last = {change.who: change.up for change in changes if len(change.who) == 1}
    if len(last) == count and not any(last.values()):
        raise InputError(f"{name} leaves no server up at its end: nobody would train any more")
