"""Other servers that were given up: each is asked again until it can take part."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from sdfeel.core.errors import SdfeelError

AGAIN = 1.0  # seconds between two questions


class Absent:
    """The servers that were given up. `back(server)` tells whether one can take part again.

    Both sides of a cut link give each other up, so somebody must find out when it works again.
    """

    def __init__(self, back: Callable[[int], Awaitable[bool]]) -> None:
        self._back = back
        self._searches: dict[int, asyncio.Future[None]] = {}

    def __contains__(self, server: object) -> bool:
        return server in self._searches

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._searches))

    def add(self, server: int) -> None:
        if server not in self._searches:
            self._searches[server] = asyncio.ensure_future(self._search(server))

    def discard(self, server: int) -> None:
        search = self._searches.pop(server, None)
        if search is not None:
            search.cancel()

    def clear(self) -> None:
        """Stop asking all of them."""
        for server in self:
            self.discard(server)

    async def _search(self, server: int) -> None:
        while True:
            if await self._asked(server):
                self._searches.pop(server, None)
                return
            await asyncio.sleep(AGAIN)

    async def _asked(self, server: int) -> bool:
        try:
            return await self._back(server)
        except SdfeelError:  # nor can a server take part that is not trusted, or refuses us
            return False
