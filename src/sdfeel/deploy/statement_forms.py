"""Checks that lines in nodes' statement files have the form in which honest nodes write them.

Whoever holds a node's key can sign anything. A verifier reads the files of all nodes, so no file
may crash it, keep it busy for ever, or speak for another node.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sdfeel.live.edge.policy import Policy
from sdfeel.live.federation import Federation, Turn
from sdfeel.live.protocol import is_whole
from sdfeel.live.statements import Statement, is_clients, is_hash

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def _number(value: Any) -> bool:
    return isinstance(value, str) and len(value) < 16 and value.isascii() and value.isdecimal()


def _place(value: Any) -> bool:
    """Is it `server/hop/row`?"""
    return isinstance(value, str) and value.count("/") == 2 and all(map(_number, value.split("/")))


def _each(keys: Check, values: Check) -> Check:
    return lambda value: (
        isinstance(value, dict) and all(map(keys, value)) and all(map(values, value.values()))
    )


def _all(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _policy(value: Any) -> bool:
    change = value.get("max_change") if isinstance(value, dict) else None
    right = isinstance(change, int | float) and not isinstance(change, bool) and change > 0
    return right and value.get("pace") in ("experiment", "measured")


HASHES = _each(_number, is_hash)
OF_SERVERS: Mapping[str, Check] = {
    **dict.fromkeys(("round", "epoch"), is_whole),
    **dict.fromkeys(("start", "result", "before"), is_hash),
    **dict.fromkeys(("came", "offered", "rows"), HASHES),
    **dict.fromkeys(("guests", "missing"), _all(is_whole)),
    **{"steps": _each(_number, is_whole), "heard": _each(_place, is_hash), "policy": _policy},
}
SOMETIMES: Mapping[str, Check] = {"software": _each(_text, _text), "away": _all(is_whole)}


def is_servers(value: object) -> bool:
    """Does this value, which may be anything, have the form of a server's statement?"""
    if not isinstance(value, dict) or not OF_SERVERS.keys() <= value.keys():
        return False
    needed = all(check(value[key]) for key, check in OF_SERVERS.items())
    return needed and all(check(value[key]) for key, check in SOMETIMES.items() if key in value)


def _kept(value: Any) -> bool:
    return isinstance(value, dict) and is_clients(value.get("statement"))


def _heard(value: Any) -> bool:
    return isinstance(value, dict) and is_hash(value.get("sha256"))


def _offered(value: Any) -> bool:
    return _heard(value) and (value.get("work") is None or is_hash(value["work"]))


def is_line(name: str, line: object) -> bool:
    """Does a line of this node's file have the right form?"""
    if not isinstance(line, dict) or not _each(_text, lambda pem: isinstance(pem, str))(
        line.get("certificates")
    ):
        return False
    if not name.startswith("edge-"):
        known = _each(_number, _offered)(line.get("offers"))
        return known and is_clients(line.get("statement"))
    clients, servers = _each(_number, _kept), _each(_place, _heard)
    known = clients(line.get("clients")) and servers(line.get("servers"))
    return known and is_servers(line.get("statement"))


def impossible(federation: Federation, server: int, said: Statement) -> str:
    """Why no server can have done what this one signed; "" if it is possible."""
    net = federation.net
    clients, home = len(net.samples), [int(d) for d in net.home]
    if not federation.has(server):
        return "it signed a round of a network in which it has no place"
    guests = said["guests"]
    if len(set(guests)) < len(guests) or any(
        n >= clients or server in net.reach[n] or home[n] < 0 for n in guests
    ):
        return "it signed that it had guests that it cannot have"
    used = (*said["steps"], *said["came"], *map(str, said["missing"]))
    if any(int(n) >= clients for n in used):
        return "it signed results of clients that do not exist"
    if any(d not in net.servers for d in said.get("away", ())):
        return "it signed that servers were away that do not exist"
    return ""


def wrong_steps(
    turn: Turn, steps: Mapping[int, int], iterations: int, said: Statement, known: bool
) -> str:
    """Why no server would have used these results; "" if one would.

    Recomputing a result of far too many steps would never end. The right number of steps is certain
    only if all earlier rounds are `known`.
    """
    most = max(iterations, int(turn.planned.max()))
    exact = known and not Policy(pace=said["policy"]["pace"]).own_pace(turn.work)
    for client, done in steps.items():
        right = int(turn.planned[client]) if exact else most
        if done > most or (exact and done != right):
            return f"it used {done} steps of client-{client}, which were to be {right}"
    return ""
