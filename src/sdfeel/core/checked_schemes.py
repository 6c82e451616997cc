"""What a user's own scheme returns, checked in every round: nonsense is refused by name.

The schemes of the package are held to this by their tests; a new one is most often wrong at first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isnan
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from sdfeel.core.arrays import Ints
from sdfeel.core.errors import InputError, said
from sdfeel.core.link_times import Link
from sdfeel.core.mixing import Mixing
from sdfeel.core.network import Network
from sdfeel.core.scheme import Around, Lane, Mix, Setting, Terms, View, Work, terms

TOLERANCE = 1e-6  # of weights that sum to 1


@dataclass(frozen=True)
class Checked(Around):
    """A scheme whose every answer is looked at before it is carried out."""

    @property
    def _name(self) -> str:
        return type(self.inner).__name__

    @property
    def terms(self) -> Terms | None:
        """The theorem that covers it, if it names one."""
        return terms(self.inner)

    def adapt(self, net: Network) -> Network:
        found = self.inner.adapt(net)
        if not isinstance(found, Network):
            raise _wrong(f"{self._name}.adapt", found, "return net, or a Network made from it")
        return found

    def lanes(self, setting: Setting) -> tuple[Lane, ...]:
        found: Any = self.inner.lanes(setting)
        method, net = f"{self._name}.lanes", setting.net
        hint = "return groups of servers that wait for one another, such as (setting.servers,)"
        if not isinstance(found, tuple | list) or not found:
            raise _wrong(method, found, hint)
        for lane in found:
            if not isinstance(lane, tuple | list) or not lane:
                raise _wrong(method, lane, hint)
            for d in lane:
                if not isinstance(d, Integral) or int(d) not in net.servers:
                    raise _wrong(method, d, f"servers are numbered 0 to {len(net.servers) - 1}")
        # Lanes of the same servers share them: each serves some of their clients, as in FedAsync.
        groups = sorted({tuple(sorted(int(d) for d in lane)) for lane in found})
        every = [d for group in groups for d in group]
        if twice := [d for d in every if every.count(d) > 1]:
            raise InputError(
                f"{method} puts server {twice[0]} into two lanes: a server waits for one group only"
            )
        idle = set(net.present.tolist()) - {int(d) for lane in found for d in lane}
        if idle:
            raise InputError(
                f"{method} leaves out server {min(idle)}, whose clients would never train: put "
                f"every server into a lane"
            )
        return tuple(tuple(int(d) for d in lane) for lane in found)

    def work(self, view: View) -> Work:
        found: Any = self.inner.work(view)
        method = f"{self._name}.work"
        if not isinstance(found, Work) or not isinstance(found.down, Mixing):
            raise _wrong(method, found, "return Work(down=broadcast(view.net), steps=...)")
        who = found.down.rows
        _check_link(method, found.down)
        _check_rows(method, "client", who, len(view.net.samples))
        _check_sources(method, view.net, found.down.sources, 0)
        if found.shift is not None:
            _check_rows(method, "client", found.shift.rows, len(view.net.samples))
            _check_sources(method, view.net, found.shift.sources, 0)
        if found.each is None and not (isinstance(found.steps, Integral) and found.steps >= 1):
            raise _wrong(method, found.steps, "steps must be a whole number of at least 1")
        if isnan(found.deadline) or found.deadline <= 0:
            raise _wrong(method, found.deadline, "a deadline must be above 0 seconds")
        for option, least, strictly in _PER_CLIENT:
            _check_each(method, option, getattr(found, option), len(who), least, strictly)
        if found.lasts is not None and not found.lasts >= 0:
            raise _wrong(method, found.lasts, "`lasts` must be at least 0 seconds")
        return found

    def mix(self, view: View, done: Ints) -> Mix:
        found: Any = self.inner.mix(view, done)
        method, net = f"{self._name}.mix", view.net
        if not isinstance(found, Mix) or not all(isinstance(m, Mixing) for m in _mixings(found)):
            raise _wrong(method, found, "return Mix(collect(view.net), ...), made of Mixings")
        if found.payload not in ("model", "update"):
            raise _wrong(method, found.payload, "a payload is 'model' or 'update'")
        if found.over is not None and not isinstance(found.over, str):
            raise _wrong(method, found.over, "`over` is the reason why the run ends, as a text")
        for part, given, kind in (
            ("memory", found.memory, object),
            ("figures", found.figures, Real),
        ):
            if not isinstance(given, Mapping):
                raise _wrong(method, given, f"{part} must be a mapping of names to numbers")
            for name, value in given.items():
                if not isinstance(name, str) or not isinstance(value, kind):
                    raise _wrong(method, value, f"{part} must be a mapping of names to numbers")
        _check_rows(method, "server", found.up.rows, len(net.servers), net.kept)
        for mixing in _mixings(found):
            _check_link(method, mixing)
            _check_rows(method, "server", mixing.rows, len(net.servers), net.kept)
            clients = len(net.samples) if mixing is found.up else 0
            _check_sources(method, net, mixing.sources, clients)
            if not np.isfinite(mixing.weights).all():
                raise _wrong(method, mixing.weights, "weights must be finite numbers")
        if not net.shelves:  # whatever is on shelves may be added in any measure
            means = [stage for stage in _mixings(found) if stage is not found.up]
            for mixing in [found.up] * (found.payload == "model") + means:
                _check_sums(method, mixing)
        for stage in found.stages:
            _check_links(method, net, stage)
        return found


_PER_CLIENT = (  # options of Work with a number per client, the bound of each; must it be above?
    ("each", 0, False),
    ("rates", 0, True),
    ("share", 0, True),
    ("ends", 0, False),
)


def _wrong(method: str, found: Any, hint: str) -> InputError:
    return InputError(f"{method} gave {said(found)}: {hint}")


def _mixings(mix: Mix) -> tuple[Any, ...]:
    return mix.up, *mix.stages


def _check_rows(method: str, kind: str, rows: Ints, count: int, kept: int = 0) -> None:
    for row in rows[(rows < -kept) | (rows >= count)][:1]:
        raise _wrong(method, int(row), f"{kind}s are numbered 0 to {count - 1}")


def _check_sources(method: str, net: Network, sources: Ints, clients: int) -> None:
    """What is read: the models of servers, or of clients if there are any, and rows of shelves."""
    count = clients or len(net.servers)
    kind = "client" if clients else "server"
    _check_rows(method, kind, sources, count, net.kept)


def _check_link(method: str, mixing: Mixing) -> None:
    if mixing.via not in get_args(Link):
        raise _wrong(method, mixing.via, f"messages go via {', '.join(get_args(Link))}")


def _check_each(
    method: str, option: str, given: Any, clients: int, least: float, strictly: bool
) -> None:
    if given is None:
        return
    values = np.asarray(given)
    if values.shape != (clients,) or values.dtype.kind not in "iuf":
        raise _wrong(
            method, given, f"`{option}` needs a number for each of the {clients} clients at work"
        )
    for value in values[~((values > least) if strictly else (values >= least))][:1].tolist():
        bound = "above" if strictly else "at least"
        raise _wrong(method, value, f"`{option}` must be {bound} {least:g}")
    if not isfinite(float(values.sum())) or (option == "each" and values.dtype.kind == "f"):
        kind = "whole" if option == "each" else "finite"
        raise _wrong(method, given, f"`{option}` must be {kind} numbers")


def _check_sums(method: str, mixing: Mixing) -> None:
    for dst, _, weights in mixing:
        if abs(float(weights.sum()) - 1) > TOLERANCE:
            raise InputError(
                f"{method} makes server {dst} take weights that sum to {float(weights.sum()):g}: "
                f"the weights of a mean sum to 1 (`average` sees to it)"
            )


def _check_links(method: str, net: Network, stage: Mixing) -> None:
    """Servers that talk directly must be linked."""
    if stage.via != "server-server" or stage.relay is not None:
        return
    to, of = net.holder(np.repeat(stage.rows, np.diff(stage.starts))), net.holder(stage.sources)
    for a, b in zip(to.tolist(), of.tolist(), strict=True):
        if a >= 0 and b >= 0 and a != b and b not in net.neighbours(a):
            raise InputError(
                f"{method} lets server {a} hear server {b}, but no link joins them: choose among "
                f"view.net.neighbours({a}), another graph, or via='server-cloud'"
            )
