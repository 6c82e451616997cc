"""Numbers as JSON writes them: NaN and the infinities, which it cannot express, become null."""

from math import isfinite
from typing import Any


def finite(value: float | None, below: float | None = None) -> float | None:
    """The value, or None where JSON cannot express it or its size is not smaller than `below`.

    >>> finite(0.5), finite(float("nan")), finite(None), finite(-1e40, below=1e30)
    (0.5, None, None, None)
    """
    if value is None or not isfinite(value) or (below is not None and abs(value) >= below):
        return None
    return float(value)


def sayable(document: Any) -> Any:
    """The same document, with null in place of numbers that JSON cannot express.

    >>> sayable({"loss": [1.0, float("inf")], "clients": 3})
    {'loss': [1.0, None], 'clients': 3}
    """
    if isinstance(document, dict):
        return {key: sayable(item) for key, item in document.items()}
    if isinstance(document, list | tuple):
        return [sayable(item) for item in document]
    return finite(document) if isinstance(document, float) else document
