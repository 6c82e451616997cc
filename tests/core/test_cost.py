import numpy as np
import pytest

from sdfeel.core.cost import Cost, Power
from sdfeel.core.errors import InputError
from sdfeel.core.graphs import links
from sdfeel.core.mixing import broadcast, cloud_average, collect, gossip
from sdfeel.core.network import clustered
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


def test_a_deadline_cuts_the_slow_and_lasts_its_time() -> None:
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
