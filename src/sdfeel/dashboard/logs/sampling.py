"""A long sequence in little memory."""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

Raw = TypeVar("Raw")
Item = TypeVar("Item")
Some = TypeVar("Some", covariant=True)


class Indexed(Protocol[Some]):
    """What is needed of a sequence here."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Some: ...


class Thinned(Generic[Raw, Item]):
    """Every n-th of a growing sequence, and its newest: never more than `limit` and one.

    `read` turns what arrives into what is kept, or None to leave it out; it is called for few.

    >>> few = Thinned[str, int](4, int)
    >>> few.extend("0123456789")
    >>> list(few), few.stride, few.count
    ([0, 4, 8, 9], 4, 10)
    """

    def __init__(self, limit: int, read: Callable[[Raw], Item | None]) -> None:
        self.limit, self.read = limit, read
        self.stride, self.count = 1, 0
        self._kept: list[tuple[int, Item]] = []  # with their places in the sequence
        self._newest: Item | None = None

    def extend(self, items: Indexed[Raw]) -> None:
        """Extend the sequence with `items`."""
        if len(items) == 0:
            return
        for index in range(-self.count % self.stride, len(items), self.stride):
            item = self.read(items[index])
            if item is not None:
                self._kept.append((self.count + index, item))
        self.count += len(items)
        while len(self._kept) > self.limit:
            self._halve()
        self._newest = self.read(items[len(items) - 1])

    def expect(self, more: int) -> None:
        """Prepare for so many more: keep no more of them than will stay."""
        while (self.count + more) // self.stride > self.limit:
            self._halve()

    @property
    def newest(self) -> Item | None:
        """The last of all."""
        return self._newest

    def __iter__(self) -> Iterator[Item]:
        yield from (item for _, item in self._kept)
        if self._newest is not None and (not self._kept or self._kept[-1][0] != self.count - 1):
            yield self._newest

    def _halve(self) -> None:
        self.stride *= 2
        self._kept = [kept for kept in self._kept if kept[0] % self.stride == 0]
