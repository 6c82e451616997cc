"""Schemes made for tests of what the core can express beyond averaging."""

from dataclasses import dataclass, replace
from typing import ClassVar

from sdfeel.core.arrays import Ints
from sdfeel.core.mixing import Mixing, broadcast, of_rows
from sdfeel.core.network import Network, Shelf
from sdfeel.core.rules import Parts, Rule
from sdfeel.core.scheme import Around, Facts, Lane, Mix, Setting, View, Work, one_server
from sdfeel.core.tolerance import CLOUD, Tolerates


@dataclass(frozen=True)
class Robust(Around):
    """Servers trust no single client, or no single neighbour."""

    up: Rule | None = None
    across: Rule | None = None

    def mix(self, view: View, done: Ints) -> Mix:
        mix = self.inner.mix(view, done)
        stages = tuple(replace(each, rule=self.across) for each in mix.stages)
        return replace(mix, up=replace(mix.up, rule=self.up), across=stages or None)


@dataclass(frozen=True)
class Momentum(Around):
    """Servers keep up the speed at which their models move, after they have mixed."""

    beta: float = 0.5

    def adapt(self, net: Network) -> Network:
        own = self.inner.adapt(net)
        kept = (Shelf("momentum.before", "server"), Shelf("momentum.speed", "server", start="zero"))
        return replace(own, shelves=(*own.shelves, *kept))

    def mix(self, view: View, done: Ints) -> Mix:
        mix, net = self.inner.mix(view, done), view.net
        before, speed = net.shelf("momentum.before").tolist(), net.shelf("momentum.speed").tolist()
        faster = {speed[d]: {speed[d]: self.beta, d: 1.0, before[d]: -1.0} for d in view.lane}
        moved = {d: {before[d]: 1.0, speed[d]: 1.0} for d in view.lane}
        kept = {before[d]: {d: 1.0} for d in view.lane}
        return replace(mix, across=(*mix.stages, *map(of_rows, (faster, moved, kept))))


@dataclass(frozen=True)
class Personal(Around):
    """The first number of a model never leaves its client."""

    def adapt(self, net: Network) -> Network:
        own = self.inner.adapt(net)
        return replace(own, shelves=(*own.shelves, Shelf("personal", "client", "client")))

    def work(self, view: View) -> Work:
        work, own = self.inner.work(view), view.net.shelf("personal").tolist()
        rows = {
            i: {own[i]: 1.0} | dict(zip(sources.tolist(), weights.tolist(), strict=True))
            for i, sources, weights in work.down
        }
        return replace(work, down=replace(of_rows(rows, work.down.via), rule=Parts(((0, 1),))))

    def mix(self, view: View, done: Ints) -> Mix:
        mix, own = self.inner.mix(view, done), view.net.shelf("personal").tolist()
        rows = {dst: dict(zip(s.tolist(), w.tolist(), strict=True)) for dst, s, w in mix.up}
        rows |= {own[i]: {i: 1.0} for i in done.nonzero()[0].tolist()}
        return replace(mix, up=of_rows(rows, mix.up.via))


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD of all clients: each corrects its steps by how its gradient differs from all."""

    tau1: int = 5
    facts: ClassVar[Facts] = Facts(False, True, "high", True, True, True)
    tolerates: ClassVar[Tolerates] = Tolerates(CLOUD)

    def adapt(self, net: Network) -> Network:
        shelves = (
            Shelf("variate", "client", "client", "zero"),  # a client's own mean gradient
            Shelf("direction", "server", "server", "zero"),  # everyone's
        )
        return replace(one_server(net), shelves=shelves)

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        return (setting.servers,)

    def work(self, view: View) -> Work:
        own, all_ = view.net.shelf("variate").tolist(), int(view.net.shelf("direction")[0])
        shift = of_rows({i: {all_: 1.0, own[i]: -1.0} for i in view.net.clients.tolist()})
        return Work(broadcast(view.net, via="client-cloud"), self.tau1, shift=shift)

    def mix(self, view: View, done: Ints) -> Mix:
        return Mix(self._moved(view), payload="update")

    def _moved(self, view: View) -> Mixing:
        net, pace = view.net, 1 / (self.tau1 * view.local.rate)
        own, all_ = net.shelf("variate").tolist(), int(net.shelf("direction")[0])
        share = net.samples / net.samples[net.clients].sum()
        rows: dict[int, dict[int, float]] = {0: {}, all_: {all_: -1.0}}
        for i in net.clients.tolist():
            rows[0][i] = float(share[i])
            rows[all_][i] = -float(share[i]) * pace
            rows[own[i]] = {all_: -1.0, i: -pace}
        return of_rows(rows, "client-cloud")


@dataclass(frozen=True)
class SlowlyFollowing(Around):
    """A run returns what follows the servers' models slowly (an exponential moving average)."""

    pace: float = 0.25

    def adapt(self, net: Network) -> Network:
        own = self.inner.adapt(net)
        return replace(own, shelves=(*own.shelves, Shelf("slow", "server", returned=True)))

    def mix(self, view: View, done: Ints) -> Mix:
        mix, slow = self.inner.mix(view, done), view.net.shelf("slow").tolist()
        after = of_rows({slow[d]: {slow[d]: 1 - self.pace, d: self.pace} for d in view.lane})
        return replace(mix, across=(*mix.stages, after))


@dataclass(frozen=True)
class Own(Around):
    """A run returns what every client made of the model it was given last."""

    def adapt(self, net: Network) -> Network:
        own = self.inner.adapt(net)
        kept = Shelf("own", "client", "client", returned=True)
        return replace(own, shelves=(*own.shelves, kept))

    def mix(self, view: View, done: Ints) -> Mix:
        mix, own = self.inner.mix(view, done), view.net.shelf("own").tolist()
        rows = {dst: dict(zip(s.tolist(), w.tolist(), strict=True)) for dst, s, w in mix.up}
        rows |= {own[i]: {i: 1.0} for i in done.nonzero()[0].tolist()}
        return replace(mix, up=of_rows(rows, mix.up.via))


@dataclass(frozen=True)
class Ending(Around):
    """A run that its scheme ends, with figures of its own."""

    rounds: int = 3

    def mix(self, view: View, done: Ints) -> Mix:
        over = "enough" if view.k + 1 == self.rounds else None
        figures = {"round": view.k + 1.0, "steps": float(done.sum())}
        return replace(self.inner.mix(view, done), over=over, figures=figures)
