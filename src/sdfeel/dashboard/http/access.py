"""Who may ask: the host's own browser by default, holders of the token otherwise.

* On loopback, only requests to loopback's own names are answered, so that no foreign page can
  reach us under a name of its own that points here.
* On any other address, every request needs the token: as a cookie, which `?token=` sets, or as
  `Authorization: Bearer`.
* Requests that change something must come from our own page (`Origin`), with its secret.
"""

import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE, SECRET = "sdfeel-dash", "x-sdfeel-secret"
SAFE = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Guard:
    """Stands before the application."""

    app: ASGIApp
    token: str | None  # None: loopback only
    secret: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                message["headers"] = headers.raw
            await send(message)

        refused = self._refusal(scope)
        await (self.app if refused is None else refused)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self.token is None and _name(headers.get("host", "")) not in LOOPBACK:
            return PlainTextResponse("This page answers only to loopback's own names.", 421)
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


def _name(host: str) -> str:
    """
    >>> _name("localhost:8080"), _name("[::1]:80"), _name("evil.example")
    ('localhost', '::1', 'evil.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
