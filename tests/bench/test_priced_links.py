"""Links as an experiment prices them: what is asked of the kernel, and how long a relay waits."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sdfeel.bench import fidelity
from sdfeel.bench.deployed_rounds import federation
from sdfeel.bench.priced_links import TRAINER, PricedLine, forward_later, lines, redirect, shaping
from sdfeel.bench.shaped_links import address, edge_addresses
from sdfeel.core.run_files import NODE, NODES
from sdfeel.deploy.files import read_node
from tests.live import timeless


def made(home: Path, *settings: str) -> dict[str, PricedLine]:
    ready = fidelity.prepared(home, ("model.name=logistic", *settings))
    federation(ready, home, edge_addresses(3), address, TRAINER)
    ready.engine.close()
    return lines(home)


def test_every_address_has_the_rate_and_delay_of_its_price(tmp_path: Path) -> None:
    found = made(tmp_path, *fidelity.CONFIGURATIONS["hierfavg-far"])
    clients = [line for end, line in found.items() if end.startswith("127.1.")]
    servers = [line for end, line in found.items() if end.startswith("127.2.")]
    assert clients == [PricedLine(4.0, 0.04)] * 6
    assert servers == [PricedLine(4.0, 0.08)] * 6  # to the cloud, which one of them plays
    relayed = redirect(tmp_path, found)
    assert len(relayed) == 12
    peers = read_node(tmp_path / NODES / "client-0" / NODE).peers
    assert all(peer.startswith("127.11.0.") for peer in peers.values())


def test_clients_of_a_cell_share_its_line() -> None:
    found = {"127.1.0.0": PricedLine(2.0, 0.0, 0, 3.0), "127.1.1.0": PricedLine(2.0, 0.0, 0, 3.0)}
    classes = [each for each in shaping(found) if "tc class" in each]
    assert sum("parent 1: " in each and "rate 3000000bit" in each for each in classes) == 2
    inner = [each for each in classes if "rate 1500000bit ceil 2000000bit" in each]
    assert len(inner) == 4
    assert all("parent 1:1 " in each or "parent 1:2 " in each for each in inner)


@pytest.mark.parametrize("seconds", [0.05, 3.0])
def test_what_is_relayed_arrives_later_and_in_order(seconds: float) -> None:
    class Writer:
        """Notes what is written, and when."""

        def __init__(self) -> None:
            self.came: list[tuple[float, bytes]] = []
            self.closed = False

        def write(self, data: bytes) -> None:
            self.came.append((asyncio.get_running_loop().time(), data))

        async def drain(self) -> None:
            pass

        def close(self) -> None:
            self.closed = True

    async def pass_on() -> tuple[float, Writer]:
        reader, writer = asyncio.StreamReader(), Writer()
        stand_in: Any = writer
        job = asyncio.ensure_future(forward_later(reader, stand_in, seconds))
        begin = asyncio.get_running_loop().time()
        for word in (b"one", b"two"):
            reader.feed_data(word)
            await asyncio.sleep(0.5)
        reader.feed_eof()
        await job
        return begin, writer

    begin, writer = timeless.run(pass_on())
    assert [data for _, data in writer.came] == [b"one", b"two"]
    assert writer.came[0][0] == pytest.approx(begin + seconds)
    assert writer.came[1][0] == pytest.approx(begin + 0.5 + seconds)
    assert writer.closed
