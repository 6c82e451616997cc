"""A mean that one place computes, as messages to and from the server that stands for that place.

Where there is no cloud of its own, one of the servers plays it: the others send it their models,
and it sends back the mean. The outcome has the same bits; what differs is who sends what to whom.
"""

from dataclasses import replace

import numpy as np

from sdfeel.core.mixing import Mixing, Relay, of_rows, selected
from sdfeel.core.network import Network


def in_steps(stage: Mixing, net: Network, cloud: int | None, hubs: bool) -> tuple[Mixing, ...]:
    """The stage as it is, or, if one place computes it for all, up to that place and down again.

    The way up is charged for both, as it is where the cloud stands apart.
    """
    place = _place(stage, net, cloud, hubs)
    if place is None or stage.relay is None:
        return (stage,)
    others = [d for d in stage.rows.tolist() if d != place]
    up = len(others) if stage.via == "server-cloud" else stage.relay.crossings // 2
    there = replace(stage.relay, crossings=up)
    back = Relay(legs=0, crossings=up, busy=0.0)
    down = of_rows({d: {place: 1.0} for d in others}, stage.via)
    return (
        replace(selected(stage, stage.rows == place), relay=there),
        replace(down, relay=back),
    )


def _place(stage: Mixing, net: Network, cloud: int | None, hubs: bool) -> int | None:
    """The server that computes a mean for all; None if this is not such a mean."""
    if stage.relay is None or stage.rule is not None or stage.hops != 1 or len(stage.rows) < 2:
        return None
    if (cloud is None) if stage.via == "server-cloud" else not hubs:
        return None
    alike = len(set(np.diff(stage.starts).tolist())) == 1
    rows = [(s.tolist(), w.tolist()) for _, s, w in stage] if alike else []
    if not alike or any(row != rows[0] for row in rows):
        return None
    if stage.via == "server-cloud":
        known = cloud if cloud in net.present else int(net.present.min())
        there_and_back = stage.relay.crossings == 2 * len(stage.rows)
        return known if known in stage.rows and there_and_back else None
    return stage.relay.at
