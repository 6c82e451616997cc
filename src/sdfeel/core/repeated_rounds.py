"""When two decisions are the same, so that nothing has to be worked out again.

Asynchronous lanes decide a round at every event, and most of their rounds are like the last one.
"""

from sdfeel.core.arrays import Floats, Ints
from sdfeel.core.mixing import Mixing
from sdfeel.core.scheme import Mix, Work


def same_start(asked: Work, before: Work) -> bool:
    """Is this the same work, of the plainest kind?"""
    if asked is before.asked:
        return True
    return (
        asked.plain
        and before.plain
        and asked.broadcasts is None
        and (asked.steps, asked.deadline, asked.lasts, asked.pull, asked.measure)
        == (before.steps, before.deadline, before.lasts, before.pull, before.measure)
        and _same_places(asked.down, before.down)
        and same_numbers(asked.down.weights, before.down.weights)
        and asked.down.rule == before.down.rule
    )


def same_end(asked: Mix, before: Mix) -> bool:
    """Is this the very same answer, and does nothing in it change from round to round?"""
    return (
        asked.up is before.up
        and asked.across is before.across
        and asked.payload == before.payload
        and asked.over is before.over is None
        and not (asked.memory or before.memory or asked.figures or before.figures)
    )


def sent_as(mix: Mix, like: Mix) -> Mix | None:
    """`mix` with the messages of `like`, and with its mixings where they are equal; None if other
    models travel, however much each of them counts."""
    up, these, those = _sent_as(mix.up, like.up), mix.stages, like.stages
    if up is None or len(these) != len(those):
        return None
    stages = list[Mixing]()
    for one, other in zip(these, those, strict=True):
        stage = _sent_as(one, other)
        if stage is None:
            return None
        stages.append(stage)
    return mix.sending(up, tuple(stages))


def _sent_as(one: Mixing, like: Mixing) -> Mixing | None:
    """`one` with the messages of `like` if they join the same places, and `like` itself if they are
    equal; None otherwise."""
    if not _same_places(one, like):
        return None
    same = one.rule == like.rule and one.votes is like.votes
    same = same and same_numbers(one.weights, like.weights)
    return like if same else one.sending(like.sent)


def _same_places(one: Mixing, other: Mixing) -> bool:
    return one is other or (
        one.via == other.via
        and one.hops == other.hops
        and one.relay == other.relay
        and same_numbers(one.rows, other.rows)
        and same_numbers(one.starts, other.starts)
        and same_numbers(one.sources, other.sources)
    )


def same_numbers(one: Ints | Floats, other: Ints | Floats) -> bool:
    """np.array_equal, but fast for a few numbers, which every asynchronous round compares."""
    return one is other or (len(one) == len(other) and one.tobytes() == other.tobytes())
