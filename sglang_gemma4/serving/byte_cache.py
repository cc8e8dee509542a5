"""A cache limited by the bytes it holds, for clients' data of different sizes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class ByteCache(Generic[T]):
    """A thread-safe LRU cache.

    Args:
        limit: the most bytes to keep; a larger value is not kept at all.
        size_of: returns the bytes of a key and its value.
    """

    def __init__(self, limit: int, size_of: Callable[[Hashable, T], int]) -> None:
        self.limit = limit
        self.bytes = 0
        self._size_of = size_of
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, or else ``make()``, which is then kept; an exception from ``make`` is passed on, not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        value = make()
        self.put(key, value)
        return value

    def put(self, key: Hashable, value: T) -> None:
        """Keep ``value``, and drop the least recently used values until the rest fits; a value above the limit drops none."""
        size = self._size_of(key, value)
        with self._lock:
            self.bytes -= self._kept.pop(key, (value, 0))[1]
            if size > self.limit:
                return
            self.bytes += size
            self._kept[key] = value, size
            while self.bytes > self.limit:
                _, (_, dropped) = self._kept.popitem(last=False)
                self.bytes -= dropped

    def __len__(self) -> int:
        return len(self._kept)
