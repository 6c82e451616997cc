import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdfeel.core.arrays import ints
from sdfeel.core.cost import Bill, Cost, Overheads, Power, _with_counts, fair_shares
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import average, broadcast, cloud_average, collect, gossip
from sdfeel.core.network import clustered
from sdfeel.core.partial_mixing import nothing
from sdfeel.core.scheme import Mix, Work

NET = clustered([1] * 6, [0, 0, 1, 1, 2, 2], links("ring", 3))
RATES = {"client-server": 5e6, "server-server": 50e6, "server-cloud": 4e6, "client-cloud": 2.5e6}


def price(**changes: object) -> Cost:
    steps = np.array([1.0, 1, 1, 1, 1, 3])
    return Cost(**{"step_seconds": steps, "model_bits": 1e6, "rates": RATES, **changes})  # type: ignore[arg-type]


def test_a_round_waits_for_the_slowest_client() -> None:
    work = Work(broadcast(NET), steps=2)
    done = price().done(work)
    bill = price().bill(work, Mix(collect(NET), gossip(NET, 5)), done)
    assert bill.compute == 6.0
    assert bill.upload == pytest.approx(0.2)
    assert bill.mix == pytest.approx(5 * 0.02)
    assert bill.seconds == pytest.approx(6.3)


def test_a_deadline_cuts_slow_clients_short_and_a_round_lasts_until_it() -> None:
    work = Work(broadcast(NET), steps=100, deadline=3.0)
    assert price().done(work).tolist() == [3, 3, 3, 3, 3, 1]
    assert price().bill(work, Mix(collect(NET)), price().done(work)).compute == 3.0


def test_a_deadline_of_exactly_n_steps_gives_n_steps() -> None:
    cost = price(step_seconds=np.full(6, 0.1))
    for n in range(1, 50):
        assert cost.done(Work(broadcast(NET), 1000, deadline=n * 0.1))[0] == n


def test_every_model_sent_is_counted() -> None:
    cost, work = price(), Work(broadcast(NET), 1)
    alone = cost.bill(work, Mix(collect(NET)), cost.done(work)).bytes
    assert alone == (6 + 3) * 125_000  # uploads and broadcasts
    meeting = cost.bill(work, Mix(collect(NET), gossip(NET, 2)), cost.done(work)).bytes
    assert meeting - alone == 2 * 6 * 125_000  # hops times both directions of 3 links
    cloudy = cost.bill(work, Mix(collect(NET), cloud_average(NET)), cost.done(work)).bytes
    assert cloudy - alone == (3 + 3) * 125_000  # up and down


def test_the_way_down_can_be_charged() -> None:
    work = Work(broadcast(NET), 1)
    mix = Mix(collect(NET), cloud_average(NET))
    bill = price(downlink=True).bill(work, mix, price().done(work))
    assert bill.upload == pytest.approx(0.4)
    assert bill.mix == pytest.approx(0.5)


def test_energy_is_power_times_busy_time() -> None:
    cost = price(power=Power(computing=2.0, sending=3.0, backhaul=7.0))
    work = Work(broadcast(NET), 1)
    bill = cost.bill(work, Mix(collect(NET), gossip(NET, 1)), cost.done(work))
    assert bill.joules == pytest.approx(2 * 8 + 0.2 * (6 * 3 + 3 * 7) + 0.02 * 6 * 7)


def test_a_link_without_a_rate_is_refused() -> None:
    with pytest.raises(
        InputError, match="server-cloud rate must be above 0 bits per second, got 0"
    ):
        price(rates={**RATES, "server-cloud": 0})


def bill_of(overheads: Overheads, downlink: bool = False, mix: Mix | None = None) -> Bill:
    cost, work = price(overheads=overheads, downlink=downlink), Work(broadcast(NET), steps=2)
    mix = Mix(collect(NET), gossip(NET, 5)) if mix is None else mix
    return cost.bill(work, mix, cost.done(work))


EVERYONE = np.array([0, 0, 1, 1, 2, 2])


def test_overheads_are_charged_where_they_arise() -> None:
    """The plain round: 6 s of computing, 0.2 s of uploads, and 5 exchanges of 0.02 s."""
    far = bill_of(Overheads({"client-server": 0.03, "server-server": 0.005}))
    assert far.compute == 6.0
    assert far.upload == pytest.approx(0.2 + 0.03)
    assert far.mix == pytest.approx(5 * (0.02 + 0.005))
    handled = bill_of(Overheads(message=0.01))
    assert handled.upload == pytest.approx(0.2 + 2 * 0.01)  # two clients at each server
    assert handled.mix == pytest.approx(5 * (0.02 + 2 * 0.01))  # two neighbours
    assert bill_of(Overheads(round=0.5)).compute == 6.5
    headed = bill_of(Overheads(header_bytes=12_500))  # a tenth of a model
    assert headed.upload == pytest.approx(0.22)
    assert headed.bytes == pytest.approx(1.1 * bill_of(Overheads()).bytes)
    shared = bill_of(Overheads(cells=EVERYONE, cell_rate=4e6))  # 2 Mbit/s for each of two
    assert shared.upload == pytest.approx(0.5)
    assert bill_of(Overheads(cells=EVERYONE, cell_rate=40e6)).upload == pytest.approx(0.2)
    assert bill_of(Overheads(common_rate=6e6)).upload == pytest.approx(1.0)


def test_overheads_of_the_way_down_and_of_the_cloud() -> None:
    plain = bill_of(Overheads(), downlink=True).upload
    far = bill_of(Overheads({"client-server": 0.03}), downlink=True)
    assert far.upload - plain == pytest.approx(2 * 0.03)
    copies = bill_of(Overheads(cells=EVERYONE, cell_rate=4e6), downlink=True)
    assert copies.upload == pytest.approx(0.5 + 0.5)  # each of two clients gets its own
    cloudy = Mix(collect(NET), cloud_average(NET))
    plain = bill_of(Overheads(), mix=cloudy).mix
    assert bill_of(Overheads({"server-cloud": 0.1}), mix=cloudy).mix - plain == pytest.approx(0.1)
    own = Overheads(cloud_delays=np.array([0.1, 0.4, 0.2]))
    assert bill_of(own, mix=cloudy).mix - plain == pytest.approx(0.4)  # the furthest decides


@pytest.mark.parametrize("nothing_there", [0, np.nan, -1])
def test_rates_are_checked_only_where_there_are_links(nothing_there: float) -> None:
    net = clustered([1] * 4, [0, 1, 2, 3], links("path", 4))
    rates = np.where(net.links > 0, 2.0, nothing_there)
    sound = price(server_rates=rates, step_seconds=np.ones(4))
    sound.check(net)
    for link in np.argwhere(net.links > 0):
        wrong = rates.copy()
        wrong[tuple(link)] = nothing_there
        with pytest.raises(InputError, match=r"cost.server_rates must be finite and above 0"):
            replace(sound, server_rates=wrong).check(net)


def test_each_link_may_have_a_rate_and_a_delay_of_its_own() -> None:
    """0-1 is slow and near, 1-2 fast and far: the one that takes longer decides."""
    rates = np.array([[0, 0.1, 1], [0.1, 0, 1], [1, 1, 0]])
    delays = np.array([[0, 0.001, 0.01], [0.001, 0, 0.5], [0.01, 0.5, 0]])
    work, mix = Work(broadcast(NET), 1), Mix(collect(NET), gossip(NET, 1))
    cost = price(server_rates=rates, overheads=Overheads(server_delays=delays))
    assert cost.bill(work, mix, cost.done(work)).mix == pytest.approx(0.02 + 0.5)
    near = price(server_rates=rates, overheads=Overheads(server_delays=delays / 100))
    assert near.bill(work, mix, near.done(work)).mix == pytest.approx(0.2 + 0.00001)


def test_only_a_first_round_connects() -> None:
    cost = price(overheads=Overheads(connect=3.0, round=0.5))
    assert cost.at((0,), 0, 0.0).overheads.round == 3.5
    assert cost.at((0,), 1, 9.0) is cost


@pytest.mark.parametrize("seed", range(20))
def test_overheads_never_make_anything_cheaper_and_none_changes_no_bit(seed: int) -> None:
    draws = np.random.default_rng(seed)
    one, two = draws.uniform(0, 1, 2)
    given: dict[str, object] = {
        "delays": {"client-server": one, "server-server": two},
        "server_delays": draws.uniform(0, 1, (3, 3)),
        "cloud_delays": draws.uniform(0, 1, 3),
        "message": one,
        "round": two,
        "header_bytes": int(1e5 * one),
        "cells": EVERYONE,
        "cell_rate": 1e7 * two,
        "common_rate": 1e7 * one,
    }
    some = {key: value for key, value in given.items() if draws.random() < 0.5}
    rates = draws.uniform(0.1, 2, (3, 3))
    work = Work(broadcast(NET), steps=2)
    for mix in (Mix(collect(NET), gossip(NET, 3)), Mix(collect(NET), cloud_average(NET))):
        for downlink in (False, True):
            plain = price(downlink=downlink, server_rates=rates, client_rates=rates[0].repeat(2))
            more = replace(plain, overheads=Overheads(**some))  # type: ignore[arg-type]
            before, after = (each.bill(work, mix, each.done(work)) for each in (plain, more))
            assert after.compute >= before.compute
            assert after.upload >= before.upload - 1e-12
            assert after.mix >= before.mix - 1e-12
            assert after.bytes >= before.bytes
            none = replace(plain, overheads=Overheads(cells=EVERYONE))
            again = none.bill(work, mix, none.done(work))
            assert (again.compute, again.upload, again.mix, again.bytes, again.joules) == (
                *(before.compute, before.upload, before.mix, before.bytes, before.joules),
            )


@pytest.mark.parametrize("seed", range(20))
def test_a_shared_line_is_full_or_not_needed_and_nobody_is_favoured(seed: int) -> None:
    draws = np.random.default_rng(seed)
    rates = draws.uniform(0, 3, draws.integers(1, 12)) * (draws.random() < 0.9)
    capacity = float(draws.uniform(0.1, 15))
    got = fair_shares(rates, capacity)
    assert (got <= rates + 1e-12).all()
    assert got.sum() == pytest.approx(min(rates.sum(), capacity))
    limited = got < rates - 1e-9
    if limited.any():
        assert got[limited] == pytest.approx(got.max())


def test_overheads_survive_a_file() -> None:
    own = Overheads(
        {"server-server": 0.25}, server_delays=np.eye(3), message=0.5, cells=EVERYONE, cell_rate=1e6
    )
    again = Overheads.of(json.loads(json.dumps(own.record())))
    work, mix = Work(broadcast(NET), 1), Mix(collect(NET), gossip(NET, 2))
    bills = [
        cost.bill(work, mix, cost.done(work))
        for cost in (price(overheads=own), price(overheads=again))
    ]
    assert (
        bills[0].seconds == bills[1].seconds > price().bill(work, mix, price().done(work)).seconds
    )
    assert Overheads(cells=EVERYONE).record() == {}


@pytest.mark.parametrize("seed", range(12))
def test_what_a_client_sends_costs_the_same_whichever_others_are_priced(seed: int) -> None:
    """Seconds of all clients, written out; a bill looks only at those that take part."""
    draws = np.random.default_rng(seed)
    count = int(draws.integers(3, 30))
    who = np.sort(draws.choice(count, int(draws.integers(1, count)), replace=False))
    pairs = [(d, i) for i in who.tolist() for d in range(3) if draws.random() < 0.6]
    servers, clients = [d for d, _ in pairs], [i for _, i in pairs]
    up = average(servers, clients) if pairs else nothing(collect(NET))
    share = draws.uniform(0.2, 3, len(who)) if seed % 3 == 1 else None
    cells = Overheads(cells=draws.integers(-1, 3, count), cell_rate=7e6, common_rate=9e6)
    cost = price(
        step_seconds=np.ones(count),
        client_rates=draws.uniform(0.1, 2, count) if seed % 2 else None,
        cell_edge_rate=3e6 if seed % 4 > 1 else None,
        overheads=cells if seed % 3 == 2 else Overheads(),
    )
    work = Work(average(who, np.zeros(len(who))), 1, share=share)

    copies = np.bincount(np.array(clients, dtype=np.int64), minlength=count)
    seconds = np.where(copies > 0, cost.transfer("client-server"), 0.0)
    if cost.cell_edge_rate is not None:
        seconds = np.where(copies > 1, 1e6 / cost.cell_edge_rate, seconds)
    if cost.client_rates is not None:
        seconds = seconds / cost.client_rates
    if share is not None:
        seconds[who] /= cost.link_times.speedup(share, who)
    if cost.overheads.has_shared_lines:
        rates = np.divide(1e6, seconds, out=np.zeros(count), where=seconds > 0)
        slow = cost.overheads.shared(rates)
        seconds = np.divide(1e6, slow, out=np.zeros(count), where=slow > 0)
    assert cost.uploads(up, work).tolist() == seconds.tolist()
    assert cost.bill(work, Mix(up), cost.done(work)).sending.tolist() == seconds[who].tolist()


@given(st.lists(st.integers(0, 9), max_size=12))
def test_numbers_are_counted_whether_or_not_they_are_in_order(numbers: list[int]) -> None:
    for each in (numbers, sorted(numbers), sorted(set(numbers))):
        found, counts = _with_counts(ints(each))
        assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == Counter(each)
        assert found.tolist() == sorted(set(each))
