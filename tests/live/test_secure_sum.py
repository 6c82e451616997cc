"""A masked sum is the plain sum, whoever dies when, and a lying server learns nothing else."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.bench.guards import sum_cost
from sdfeel.core.masked_sums import threshold_of
from sdfeel.live.secure_sum import (
    PRIME,
    SHARE,
    Collector,
    Contributor,
    Numbers,
    Sitting,
    TooFew,
    lagrange,
    split,
)
from sdfeel.live.transport.errors import Rejected
from tests.examples import examples

SIZE = 5
STEPS = ("keys", "shares", "numbers", "survivors", "unmask")


class Seals:
    """Signatures that only this object can make."""

    def sign(self, client: int, words: str) -> Any:
        return hashlib.sha256(f"{client} {words}".encode()).hexdigest()

    def check(self, client: int, words: str, seal: Any) -> bool:
        return bool(seal == self.sign(client, words))


def values_of(client: int) -> Numbers:
    return np.random.default_rng(client).integers(0, 2**32, SIZE, dtype=np.uint32)


@dataclass
class Play:
    """A sum, step by step; clients die before the step that `dies` names."""

    count: int
    dies: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clients = tuple(range(self.count))
        self.sitting = Sitting("a sum", clients, threshold_of(self.count))
        self.server = Collector(self.sitting, SIZE)
        self.clients = {n: self.made(n) for n in clients}

    def made(self, n: int, state: dict[str, Any] | None = None) -> Contributor:
        return Contributor(self.sitting, n, bytes([n]) * 32, Seals(), state)

    def alive(self, step: str) -> list[int]:
        late = STEPS.index(step)
        return [n for n in self.clients if n not in self.dies or STEPS.index(self.dies[n]) > late]

    def until_numbers(self) -> None:
        server = self.server
        server.keys = {n: self.clients[n].keys() for n in self.alive("keys")}
        server.letters = {n: self.clients[n].shares(server.keys) for n in self.alive("shares")}
        for n in self.alive("numbers"):
            assert not self.clients[n].opened(server.letters_to(n))
            server.numbers[n] = self.clients[n].numbers(values_of(n))

    def total(self) -> Numbers:
        self.until_numbers()
        server = self.server
        left = server.survivors
        server.signed = {n: self.clients[n].survivors(left) for n in self.alive("survivors")}
        for n in self.alive("unmask"):
            server.shares[n] = self.clients[n].unmask(left, server.signed)
        return server.total()


@examples(15)
@given(
    count=st.integers(2, 7),
    dies=st.dictionaries(st.integers(0, 6), st.sampled_from(STEPS), max_size=4),
)
def test_when_clients_die_at_any_step_the_sum_is_exact_or_not_revealed(
    count: int, dies: dict[int, str]
) -> None:
    play = Play(count, {n: step for n, step in dies.items() if n < count})
    expected = np.zeros(SIZE, dtype=np.uint32)
    for n in play.alive("numbers"):
        expected += values_of(n)
    if count - len(play.dies) < threshold_of(count):
        with pytest.raises(TooFew, match="are needed to see the sum"):
            play.total()
    else:
        assert play.total().tolist() == expected.tolist()


def test_what_a_client_sends_looks_random_and_differs_in_every_sum() -> None:
    play = Play(4)
    play.until_numbers()
    sent = play.server.numbers[0]
    assert sent.tolist() != values_of(0).tolist()
    again = Play(4)
    again.sitting = Sitting("another sum", play.sitting.clients, 3)
    again.clients = {n: again.made(n) for n in range(4)}
    again.server = Collector(again.sitting, SIZE)
    again.until_numbers()
    assert again.server.numbers[0].tolist() != sent.tolist()


def test_a_server_that_lies_about_who_died_gets_one_kind_of_shares_only() -> None:
    """With both kinds about a client it could read what that client sent."""
    play = Play(6)
    play.until_numbers()
    everyone, without = list(range(6)), [0, 1, 2, 3, 4]
    signed = {n: play.clients[n].survivors(everyone) for n in everyone}
    given_away = play.clients[0].unmask(everyone, signed)
    with pytest.raises(Rejected, match="asks twice for survivors of one sum"):
        play.clients[0].survivors(without)
    with pytest.raises(Rejected, match="asks twice for survivors of one sum"):
        play.clients[0].unmask(without, signed)
    restarted = play.made(0, play.clients[0].state)  # killed, and asked once more
    restarted.shares(play.server.keys)
    assert not restarted.opened(play.server.letters_to(0))
    restarted.numbers(values_of(0))
    with pytest.raises(Rejected, match="asks twice for survivors of one sum"):
        restarted.survivors(without)
    assert restarted.unmask(everyone, signed) == given_away
    assert all(len(share) == SHARE for share in given_away.values())


def test_two_halves_that_are_told_different_stories_do_not_unmask() -> None:
    play = Play(6)
    play.until_numbers()
    everyone, without = list(range(6)), [0, 1, 2, 3, 4]
    signed = {n: play.clients[n].survivors(everyone if n < 3 else without) for n in range(5)}
    for n, told in ((0, everyone), (3, without)):
        with pytest.raises((Rejected, TooFew)):
            play.clients[n].unmask(told, signed)
        some = {m: seal for m, seal in signed.items() if (m < 3) == (n < 3)}
        with pytest.raises(TooFew):
            play.clients[n].unmask(told, some)
    with pytest.raises(Rejected, match="or leaves us out"):
        play.clients[5].survivors(without)  # it is alive and knows it


@pytest.mark.parametrize("what", ["a key", "a letter", "a stranger", "a few"])
def test_what_a_server_changes_on_the_way_is_noticed(what: str) -> None:
    play = Play(4)
    server = play.server
    server.keys = {n: play.clients[n].keys() for n in range(4)}
    if what == "a key":
        server.keys[1] = {**server.keys[1], "masks": server.keys[2]["letters"]}
    if what == "a stranger":
        server.keys[9] = server.keys[1]
    if what == "a few":
        server.keys = {0: server.keys[0], 1: server.keys[1]}
    if what != "a letter":
        with pytest.raises((Rejected, TooFew)):
            play.clients[0].shares(server.keys)
        return
    server.letters = {n: play.clients[n].shares(server.keys) for n in range(4)}
    changed = {**server.letters_to(0), 1: server.letters[1][2]}  # meant for another
    assert play.clients[0].opened(changed) == [1]
    changed[1] = changed[1][:-1] + bytes([changed[1][-1] ^ 1])  # another seal
    assert play.clients[0].opened(changed) == [1]


@examples(12)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 4))
def test_enough_shares_give_the_secret_and_fewer_do_not(
    secret: bytes, threshold: int, more: int
) -> None:
    places = list(range(1, threshold + more + 1))
    shares = [int.from_bytes(each, "big") for each in split(secret, places, threshold, b"dice")]
    chosen = places[-threshold:]
    parts = zip(lagrange(chosen), shares[-threshold:], strict=True)
    assert sum(w * s for w, s in parts) % PRIME == int.from_bytes(secret, "big")
    if threshold > 1:
        fewer = zip(lagrange(chosen[1:]), shares[-threshold:][1:], strict=True)
        assert sum(w * s for w, s in fewer) % PRIME != int.from_bytes(secret, "big")


@pytest.mark.parametrize(("clients", "threshold"), [(6, 4), (6, 7), (3, 2)])
def test_a_threshold_too_low_against_a_lying_server_is_refused(
    clients: int, threshold: int
) -> None:
    with pytest.raises(Rejected, match="more than two thirds"):
        Sitting("x", tuple(range(clients)), threshold)


def test_what_a_sum_costs_can_be_measured() -> None:
    cost = sum_cost(clients=4, numbers=7, dead=1)
    assert cost.plain_bytes == 28
    assert cost.client_ms > 0 < cost.server_ms
