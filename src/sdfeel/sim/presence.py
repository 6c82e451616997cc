"""Servers that are away: what their rounds are, and what is told about them."""

from dataclasses import replace

import numpy as np

from sdfeel.core.arrays import Bools, floats
from sdfeel.core.changing import Moment
from sdfeel.core.cost import Bill
from sdfeel.core.mixing import Mixing
from sdfeel.core.part import nothing
from sdfeel.core.scheme import Lane, Memory, Mix, Work
from sdfeel.core.staleness import Clocks


def idle(like: Mixing, memory: Memory, seconds: float) -> tuple[Work, Mix, Bill]:
    """A round of nobody, which lasts as long as one of somebody would."""
    none, energy = floats([]), dict.fromkeys(("computing", "sending", "backhaul"), 0.0)
    bill = Bill(seconds, 0.0, 0.0, bytes=0, energy=energy, busy=none, sending=none)
    return Work(nothing(like), 0), Mix(nothing(like), memory=memory), bill


def after(clocks: Clocks, lane: Lane, there: Bools, mixed: tuple[int, ...]) -> Clocks:
    """The clocks when a lane has finished a round; who was away has done nothing."""
    up = np.array([d for d in lane if there[d]], dtype=np.int64)
    if not up.size:
        return replace(clocks, number=clocks.number + 1)
    return clocks.after(up, np.array(mixed, dtype=int))


def changes(before: Moment, now: Moment, number: int) -> list[str]:
    """What a person should know has changed, one sentence each."""
    if before is now:
        return []
    news = []
    for d in np.flatnonzero(before.there != now.there).tolist():
        back = "is back with the model it had" if now.there[d] else "went down"
        news.append(f"server {d} {back} after round {number}")
    if before.cloud != now.cloud:
        back = "is back" if now.cloud else "went down"
        news.append(f"the cloud {back} after round {number}")
    return news
