"""Your own scheme against one that is built in: in each round, one random pair of servers meets."""

from dataclasses import dataclass

import sdfeel
from sdfeel import Mix, Mixing, Network, Setting, View, Work


@dataclass(frozen=True)
class OnePair:
    """Edge servers average their clients; one random pair of neighbours meets per round."""

    tau1: int = 5

    def adapt(self, net: Network) -> Network:  # the network as this scheme uses it
        return net

    def lanes(self, setting: Setting) -> tuple[tuple[int, ...], ...]:  # all wait for all
        return (tuple(setting.servers),)

    def work(self, view: View) -> Work:  # every client takes the model of its own server
        return Work(down=sdfeel.broadcast(view.net), steps=self.tau1)

    def mix(self, view: View, done: object) -> Mix:  # servers average, then two of them meet
        a, b = view.rng().choice(view.net.edges)
        pair: Mixing = sdfeel.average(
            [a, a, b, b], [a, b, a, b], mass=view.net.mass, via="server-server"
        )
        return Mix(up=sdfeel.collect(view.net), across=pair)


experiment = {
    "network": {"clients": 8, "servers": 4, "graph": "complete"},
    "model": "logistic",
    "training": {"iterations": 30},
    "evaluation": {"every": 2},
}
runs = sdfeel.compare([OnePair(), "sd-feel"], experiment, seeds=2, out="race")
for line in runs.records():
    print(f"{line['label']:8}  accuracy {line['accuracy']:.3f}  {line['bytes'] / 1e6:.1f} MB")
print(sdfeel.export("race", target=0.5))  # ready for a paper
