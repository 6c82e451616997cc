"""How many inputs a property is tried on.

`make test` tries a few, the same every time, so that its outcome depends on the code alone.
`make test-many` tries MANY times as many, different ones every time.
"""

import os

from hypothesis import settings

MANY = int(os.environ.get("MANY", "1"))
USUAL = 25 * MANY  # where a test does not say


def examples(count: int) -> settings:
    """Try a property on this many inputs; on MANY times as many if that is asked for."""
    return settings(max_examples=count * MANY)
