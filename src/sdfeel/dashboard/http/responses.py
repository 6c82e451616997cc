"""Answers as JSON, files and streams."""

import json
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
from starlette.responses import Response, StreamingResponse

from sdfeel.core.run_files import sayable
from sdfeel.report.history import History

POLL, HEARTBEAT = 0.4, 15.0  # seconds


class Json(Response):
    """What JSON cannot express (NaN, infinity) becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content).encode()


def encoded(content: Any) -> str:
    """Compact JSON."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(sayable(content), separators=(",", ":"))


def attachment(content: bytes, name: str, kind: str) -> Response:
    """Bytes to save under a name."""
    return Response(content, media_type=kind, headers=_saved_as(name))


def download(descriptor: int, name: str) -> Response:
    """A file to save, as long as it was when it was opened."""
    size = os.fstat(descriptor).st_size

    def pieces() -> Iterator[bytes]:
        left = size
        with os.fdopen(descriptor, "rb") as file:
            while left > 0 and (piece := file.read(min(left, 1 << 18))):
                left -= len(piece)
                yield piece

    headers = {"content-length": str(size), **_saved_as(name)}
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


def _saved_as(name: str) -> dict[str, str]:
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-._=") else "-" for c in name)
    return {"content-disposition": f'attachment; filename="{plain}"'}


def picture(histories: Sequence[History], target: float | None) -> bytes:
    """The curves as `sdfeel show` draws them."""
    from sdfeel.report.curves import curves
    from sdfeel.report.drawing import save

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "picture.png"
        save(curves(histories, target), path)
        return path.read_bytes()


def stream(
    news: Callable[[], Awaitable[list[tuple[str, Any]]]], closing: Callable[[], bool]
) -> Response:
    """Server-sent events: whatever `news` brings, until the browser leaves or we close."""

    async def messages() -> AsyncIterator[str]:
        silent = HEARTBEAT
        while not closing():
            for name, content in await news():
                silent = 0.0
                yield f"event: {name}\ndata: {encoded(content)}\n\n"
            if silent >= HEARTBEAT:
                silent = 0.0
                yield ": still here\n\n"
            await anyio.sleep(POLL)
            silent += POLL

    return StreamingResponse(messages(), media_type="text/event-stream")
