"""What a request asks for, or one sentence about why it is refused."""

from math import isfinite
from typing import Any

from starlette.requests import Request

from sdfeel.core.errors import InputError

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
    if int(request.headers.get("content-length", LONGEST_BODY + 1)) > LONGEST_BODY:
        raise InputError("the request is too large")
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InputError("the request must be a JSON object")
    return body
