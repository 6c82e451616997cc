"""Who may ask, what a request asks for, and answers as JSON, files and streams.

* On loopback, only requests to loopback's own names are answered, so that no foreign page can
  reach us under a name of its own that points here.
* On any other address, every request needs the token: as a cookie, which `?token=` sets, or as
  `Authorization: Bearer`.
* Requests that change something must come from our own page (`Origin`), with its secret.
"""

import json
import os
import re
import secrets
import tempfile
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from http.cookies import CookieError, SimpleCookie
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import anyio
from matplotlib.colors import to_hex
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sdfeel.core.errors import InputError
from sdfeel.core.run_files import json_safe
from sdfeel.dashboard.log_files import UNREADABLE
from sdfeel.report.drawing import SHARES
from sdfeel.report.gantt import COLOURS
from sdfeel.report.history import History
from sdfeel.report.styles import DASHES, PALETTE

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE, SECRET = "sdfeel-dash", "x-sdfeel-secret"
SAFE = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self'; img-src 'self' data: "
    "blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def policy(page: bytes) -> str:
    """What a browser may load and run: our files, and the scripts inside this page as they are."""
    hashes = [b64encode(sha256(script).digest()).decode() for script in INLINE.findall(page)]
    return POLICY.format(scripts=" ".join(f"'sha256-{each}'" for each in hashes))


@dataclass(frozen=True)
class Guard:
    """Checks every request before the application sees it."""

    app: ASGIApp
    token: str | None  # None: loopback only
    secret: str
    policy: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["content-security-policy"] = self.policy
                headers.setdefault("cache-control", "no-store")
                message["headers"] = headers.raw
            await send(message)

        refused = self._refusal(scope)
        await (self.app if refused is None else refused)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self.token is None and _name(headers.get("host", "")) not in LOOPBACK:
            return PlainTextResponse(
                f"This page answers only under the names {', '.join(LOOPBACK)}.", 421
            )
        if self.token is not None and not self._knows(headers.get("authorization", ""), headers):
            return self._welcome(scope)
        if scope["method"] not in SAFE and not self._ours(scope, headers):
            return PlainTextResponse("Only this page itself may do that.", 403)
        return None

    def _knows(self, authorization: str, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        told = authorization.removeprefix("Bearer ") if cookie is None else cookie.value
        return self._is_token(told)

    def _is_token(self, told: str) -> bool:
        return secrets.compare_digest(told.encode(), (self.token or "").encode())

    def _welcome(self, scope: Scope) -> Response:
        """Turn `?token=` into a cookie, and take it out of the address."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        told = next((value for key, value in query if key == "token"), "")
        if scope["method"] not in SAFE or not self._is_token(told):
            return PlainTextResponse(
                "This page needs its token: open the address that `sdfeel dash` printed.", 401
            )
        rest = urlencode([(key, value) for key, value in query if key != "token"])
        # A path that begins with // would name another host.
        answer = RedirectResponse(
            "/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else ""), 303
        )
        answer.set_cookie(COOKIE, told, httponly=True, samesite="strict")
        return answer

    def _ours(self, scope: Scope, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        same = origin == f"{scope['scheme']}://{headers.get('host', '')}"
        if origin is None:
            same = site == "same-origin"
        fetched = site in (None, "same-origin")
        told = headers.get(SECRET, "")
        return same and fetched and secrets.compare_digest(told.encode(), self.secret.encode())


@dataclass(frozen=True)
class Economical:
    """Gives every complete answer an ETag, and sends no body to a browser that already has it."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in SAFE:
            await self.app(scope, receive, send)
            return
        held: list[Message] = []

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            if held:  # the first piece of the body
                start = held.pop()
                if start["status"] == 200 and not message.get("more_body"):
                    headers = MutableHeaders(raw=start["headers"])
                    tag = f'"{blake2b(message["body"], digest_size=12).hexdigest()}"'
                    headers["etag"] = tag
                    headers.setdefault("cache-control", "no-cache")
                    if tag in Headers(scope=scope).get("if-none-match", ""):
                        start, message = {**start, "status": 304}, {**message, "body": b""}
                        del headers["content-length"]
                    start["headers"] = headers.raw
                await send(start)
            await send(message)

        await self.app(scope, receive, sending)


def _name(host: str) -> str:
    """A host without its port.

    >>> _name("localhost:8080"), _name("[::1]:80"), _name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


LONGEST_BODY = 1 << 16


def run_name(request: Request) -> str:
    return request.query_params.get("name", "")


def selection(request: Request) -> tuple[list[str], bool, float | None]:
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if not names:
        raise InputError("choose at least one run")
    text = request.query_params.get("target")
    target = number(request, "target", None) if text else None
    if target is not None and not 0 <= target <= 1:
        raise InputError(f"the target must be between 0 and 1, got {target:g}")
    return names, request.query_params.get("seeds") == "mean", target


def number(request: Request, key: str, default: float | None) -> Any:
    text = request.query_params.get(key)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{key} must be a number, got {text!r}")
    return value


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InputError(f"{text!r} is not a whole number")
    return int(text)


async def body(request: Request) -> dict[str, Any]:
    sent = b""
    async for piece in request.stream():
        sent += piece
        if len(sent) > LONGEST_BODY:  # whatever its header says
            raise InputError("the request is too large")
    try:
        body = json.loads(sent)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InputError("the request must be a JSON object")
    return body


POLL, HEARTBEAT = 0.4, 15.0  # seconds


class Json(Response):
    """An answer in JSON; what JSON cannot express (NaN, infinity) becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content).encode()


def encoded(content: Any) -> str:
    """A value as compact JSON."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(json_safe(content), separators=(",", ":"), default=str)


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


PICTURES = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}


def picture(
    histories: Sequence[History], target: float | None, ending: str, width: str | None
) -> bytes:
    """The curves as `sdfeel show` draws them."""
    from sdfeel.report.curves import curves
    from sdfeel.report.drawing import save

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"picture.{ending}"
        save(curves(histories, target, width=width), path, width)
        return path.read_bytes()


def stream(
    request: Request,
    news: Callable[[], Awaitable[list[tuple[str, Any]]]],
    closing: Callable[[], bool],
) -> Response:
    """Server-sent events: whatever `news` brings, until the browser leaves or we close."""
    squeezed = "gzip" in request.headers.get("accept-encoding", "")

    async def bodies() -> AsyncIterator[bytes]:
        squeeze = zlib.compressobj(6, wbits=31)
        async for text in messages():
            data = text.encode()
            # Each message is flushed separately: the browser must not wait for the next.
            yield squeeze.compress(data) + squeeze.flush(zlib.Z_SYNC_FLUSH) if squeezed else data

    async def messages() -> AsyncIterator[str]:
        silent = HEARTBEAT
        trouble: list[tuple[str, Any]] = []  # an error that was reported already
        while not closing():
            try:
                found, trouble = await news(), []
            except UNREADABLE as error:  # files come and go: the next look may well succeed
                told = [("trouble", {"error": f"{type(error).__name__}: {error}"})]
                found, trouble = (told if told != trouble else []), told
            if not found and silent >= HEARTBEAT:
                found = [("beat", None)]
            for name, content in found:
                silent = 0.0
                yield f"event: {name}\ndata: {encoded(content)}\n\n"
            await anyio.sleep(POLL)
            silent += POLL

    headers = {"content-encoding": "gzip", "vary": "accept-encoding"} if squeezed else {}
    return StreamingResponse(bodies(), media_type="text/event-stream", headers=headers)


STOPS = 9  # of the scale from little to much
DARK = {"#000000": "#e7ebf0", "#0072B2": "#2f8fd0", "#882255": "#c2668a", "#332288": "#8f7fe0"}
DARK |= {COLOURS["wait"]: "#353f4b"}  # on a dark page


def palette() -> str:
    """Colours of lines, of spans and of a scale; some have to change on a dark page."""
    named = {f"line-{index}": colour for index, colour in enumerate(PALETTE)}
    named |= {f"span-{kind}": colour for kind, colour in COLOURS.items()}
    dark = {name: DARK[colour] for name, colour in named.items() if colour in DARK}
    shares = [i / (STOPS - 1) for i in range(STOPS)]
    named |= {f"scale-{i}": to_hex(SHARES(share)) for i, share in enumerate(shares)}
    # High values stand out: dark on a light page, and light on a dark one.
    dark |= {f"scale-{i}": to_hex(SHARES(0.92 * (1 - share))) for i, share in enumerate(shares)}
    dashes = "".join(
        f".dash-{index} {{ stroke-dasharray: {' '.join(map(str, _lengths(dash)))}; }}\n"
        for index, dash in enumerate(DASHES)
    )
    return (
        f":root {{ {_rules(named)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) "
        f"{{ {_rules(dark)} }} }}\n"
        f":root[data-theme=dark] {{ {_rules(dark)} }}\n{dashes}"
    )


def _rules(named: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


def _lengths(dash: object) -> tuple[object, ...]:
    """A dash of matplotlib's: a line, or where it begins and its lengths."""
    return tuple(dash[1]) if isinstance(dash, tuple) else ("none",)
