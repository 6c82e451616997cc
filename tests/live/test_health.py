"""A node says how it is: by a page for probes, by metrics, by a file."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import STATUS
from sdfeel.live.health import MOST_PROBES, Health, HealthPage, write_status
from sdfeel.live.metrics import metrics
from tests.clock import Clock
from tests.live.parties import until
from tests.waiting import completed


async def fetched(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def node(told: dict[str, Any], clock: Clock) -> Health:
    return Health("edge-0", "edge", lambda: told, clock=clock, steady=clock)


def test_the_page_answers_probes_and_prometheus() -> None:
    clock, told = Clock(), {"round": 3, "bytes": 10, "last_error": ""}

    async def run() -> None:
        health = node(told, clock)
        page = HealthPage(health)
        address = await page.start("127.0.0.1:0")
        assert await fetched(address, "/healthz") == (200, "ok\n")
        code, text = await fetched(address, "/metrics")
        assert code == 200
        assert 'sdfeel_round{node="edge-0",role="edge"} 3.0\n' in text
        code, text = await fetched(address, "/status")
        assert json.loads(text)["round"] == 3
        assert (await fetched(address, "/secret"))[0] == 404
        clock.now += 10_000  # it waits for others, which is no fault of its own
        assert (await fetched(address, "/healthz"))[0] == 200
        health.trouble = "cannot write"
        assert await fetched(address, "/healthz") == (503, "cannot write\n")
        health.trouble = ""
        health.expires = clock.now + 1
        assert (await fetched(address, "/healthz"))[0] == 200
        clock.now += 2
        assert (await fetched(address, "/healthz"))[0] == 503
        await page.stop()

    completed(run())


def test_strangers_cannot_use_up_a_nodes_descriptors() -> None:
    async def run() -> None:
        page = HealthPage(node({"round": 3}, Clock()), patience=600.0)
        address = await page.start("127.0.0.1:0")
        host, _, port = address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(MOST_PROBES)]
        await until(lambda: page.probes == MOST_PROBES)
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""  # ended at once
        for _, each in (*idle, (reader, writer)):
            each.close()
        await until(lambda: page.probes == 0)
        assert await fetched(address, "/healthz") == (200, "ok\n")
        await page.stop()

    completed(run())


def test_lag_counts_since_the_last_round_and_ends_with_the_run() -> None:
    clock, told = Clock(), {"round": 0}
    health = node(told, clock)
    assert health.status()["lag"] == 0
    clock.now += 5
    assert health.status()["lag"] == 5
    told["round"] = 1
    assert health.status()["lag"] == 0
    clock.now += 1000
    told["over"] = True
    assert health.status()["healthy"]


def test_a_failure_is_reported_with_its_reason() -> None:
    health = node({"round": 0}, Clock())
    health.failed = "no such data"
    status = health.status()
    assert not status["healthy"]
    assert status["last_error"] == "no such data"
    assert "sdfeel_healthy" in metrics(status)


def test_the_status_file_has_what_an_operator_needs(tmp_path: Path) -> None:
    write_status(tmp_path, node({"round": 2, "bytes": 7, "last_error": ""}, Clock()).status())
    told = json.loads((tmp_path / STATUS).read_text())
    wanted = {"name", "role", "healthy", "round", "lag", "bytes", "last_error", "updated"}
    assert wanted <= told.keys()


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nowhere.invalid:0", "127.0.0.1:http"])
def test_an_impossible_address_is_reported_in_a_sentence(address: str) -> None:
    with pytest.raises(InputError, match=f"cannot serve health on {address}"):
        completed(HealthPage(node({}, Clock())).start(address))
