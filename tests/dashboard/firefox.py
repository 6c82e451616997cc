"""A real Firefox, by WebDriver BiDi, which it speaks itself: no driver, no other package.

Only what tests need: open a page, run a script, press keys, and hear what goes wrong.
"""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from tests.waiting import DEADLINE, started, until

BROWSERS = ("firefox-esr", "firefox")
FLAGS = ("--headless", "--no-remote", "--remote-debugging-port=0", "about:blank")


def firefox_path() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Firefox:
    """One window."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE)
        self._left = b""
        self._number = 0
        self.wrong: list[str] = []  # errors of pages, and what they print as such
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._left:
            self._more()
        head, self._left = self._left.split(b"\r\n\r\n", 1)
        assert b" 101 " in head, head
        self.ask("session.new", capabilities={})
        self.ask("session.subscribe", events=["log.entryAdded"])
        self.window = self.ask("browsingContext.getTree")["contexts"][0]["context"]

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to a command; events that come before it are heard."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        self._send(json.dumps(asked).encode())
        while (told := json.loads(self._receive())).get("id") != self._number:
            if told.get("method") == "log.entryAdded" and told["params"]["level"] == "error":
                self.wrong.append(str(told["params"]["text"]))
        assert told["type"] == "success", told
        return told["result"]

    def open(self, url: str) -> None:
        self.ask("browsingContext.navigate", context=self.window, url=url, wait="interactive")

    def value(self, expression: str) -> Any:
        """The result of a script: text, a number, true or false, or nothing."""
        target = {"context": self.window}
        found = self.ask("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        until(lambda: bool(self.value(expression)), expression)

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keys", "actions": actions}
        self.ask("input.performActions", context=self.window, actions=[source])

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> None:
        found = self._socket.recv(1 << 16)
        assert found, "Firefox hung up"
        self._left += found

    def _take(self, size: int) -> bytes:
        while len(self._left) < size:
            self._more()
        found, self._left = self._left[:size], self._left[size:]
        return found

    def _send(self, text: bytes, kind: int = 1) -> None:
        """One frame, under a mask."""
        size, mask = len(text), os.urandom(4)
        masked = bytes(each ^ mask[n % 4] for n, each in enumerate(text))
        length = (
            bytes([0x80 | size])
            if size < 126
            else struct.pack("!BH", 0xFE, size)
            if size < 1 << 16
            else struct.pack("!BQ", 0xFF, size)
        )
        self._socket.sendall(bytes([0x80 | kind]) + length + mask + masked)

    def _receive(self) -> bytes:
        """The next message of text, put together from its frames."""
        whole, end = b"", monotonic() + DEADLINE
        while monotonic() < end:
            first, size = self._take(2)
            if size == 126:
                (size,) = struct.unpack("!H", self._take(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._take(8))
            found, kind = self._take(size), first & 0x0F
            if kind == 9:  # a ping
                self._send(found, 10)
            elif kind < 3:
                whole += found
                if first & 0x80:
                    return whole
        raise AssertionError("Firefox says no more")


@contextmanager
def firefox(home: Path) -> Iterator[Firefox]:
    """A fresh Firefox that keeps what it writes in `home`."""
    path = firefox_path()
    assert path is not None
    said = home / "firefox.log"
    environment = {**os.environ, "HOME": str(home), "MOZ_CRASHREPORTER_DISABLE": "1"}
    command = [path, "--profile", str(home), *FLAGS]
    with (
        said.open("wb") as out,
        started(command, stdout=out, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        try:
            address = re.compile(r"BiDi listening on ws://127\.0\.0\.1:(\d+)")
            until(lambda: address.search(said.read_text(errors="replace")) is not None)
            port = address.search(said.read_text(errors="replace"))
            assert port is not None
            window = Firefox(int(port[1]))
            yield window
            window.close()
        finally:
            process.terminate()
            process.wait(60)
