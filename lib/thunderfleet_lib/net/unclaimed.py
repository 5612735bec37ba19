"""Bytes from clients of a listener that belong to no request yet. Pure.

They are unfinished headers, and requests behind the one that is being handled. An HTTP parser holds these bytes, and parsed
copies of about the same size, before the server has identified the sender. So they are counted for each connection, for each
address and in total, and a connection that holds too many is closed. The first FREE_BYTES of each connection do not count, so
clients that send their headers at once hold nothing.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

FREE_BYTES = 4 * 1024
HEAD_BYTES = 64 * 1024
"""Limit of the unfinished headers of one connection."""
ADDRESS_BYTES = 4 * 1024 * 1024
"""Limit of all connections of one address, without FREE_BYTES of each."""
ALL_BYTES = 16 * 1024 * 1024
"""Limit of all connections of a listener, without FREE_BYTES of each."""
_END = b"\r\n\r\n"

Holder = TypeVar("Holder", bound=Hashable)


class Unclaimed(Generic[Holder]):
    """Bytes by connection. ``known``: whether an address is known, which is then closed last when all hold too much."""

    def __init__(
        self, known: Callable[[str], bool] = lambda address: False, *, each: int = ADDRESS_BYTES, total: int = ALL_BYTES
    ) -> None:
        self._known = known
        self._each, self._total = each, total
        # Ordered by the time since which they hold something.
        self._held: dict[Holder, tuple[str, int]] = {}
        self._by_address: Counter[str] = Counter()
        self._all = 0

    @property
    def held(self) -> int:
        """Bytes that count, of all."""
        return self._all

    def put(self, holder: Holder, address: str, size: int) -> bool:
        """The connection holds ``size`` bytes now. Returns whether any of them count."""
        counted = size - FREE_BYTES if size > FREE_BYTES else 0
        if not counted and holder not in self._held:
            return False
        _, before = self._held.get(holder, (address, 0))
        self._all += counted - before
        self._by_address[address] += counted - before
        if self._by_address[address] <= 0:
            del self._by_address[address]
        if counted:
            self._held[holder] = address, counted
        else:
            self._held.pop(holder, None)
        return bool(counted)

    def excess(self, address: str) -> Holder | None:
        """The connection that must be closed because this address, or all together, hold too much. None if there is none.

        It is the one that has held something for the longest time: of this address, or of the address that holds most.
        """
        if self._by_address[address] > self._each:
            return self._first(address)
        if self._all > self._total:
            return self._first(max(self._by_address, key=lambda one: (not self._known(one), self._by_address[one])))
        return None

    def _first(self, address: str) -> Holder:
        return next(holder for holder, (of, _) in self._held.items() if of == address)


class Body(Protocol):
    """A request's body while it arrives, as aiohttp's StreamReader."""

    total_bytes: int
    """Received until now."""

    def is_eof(self) -> bool:
        """Whether it is complete."""
        ...


class Arrivals:
    """Counts the unclaimed bytes of one connection. ``early_bytes``: as for the Listener."""

    def __init__(self, early_bytes: int | None) -> None:
        self.unclaimed = 0
        """Bytes."""
        self._early_bytes = early_bytes
        self._body: Body | None = None
        self._busy = False
        self._carried = False
        """Whether ``unclaimed`` has bytes from before the last response, which may be whole requests."""
        self._begun = False
        """Whether a part of the next headers has come."""
        self._tail = b""
        """The last bytes of unfinished headers, which may be the beginning of their end."""
        self._ended = False
        """Whether the next headers are complete, and their handler has not started yet."""
        self._rest = 0
        """Bytes after these headers."""

    @property
    def too_many(self) -> bool:
        """Whether the connection must be closed."""
        if self.unfinished_body is not None:
            return self.unclaimed > HEAD_BYTES
        if self._busy:
            return self._early_bytes is not None and self.unclaimed > self._early_bytes
        return not self._carried and self.unclaimed > HEAD_BYTES

    @property
    def unfinished_body(self) -> Body | None:
        """The body to which bytes that come now belong. It may go on after the response."""
        return self._body if self._body is not None and not self._body.is_eof() else None

    def of_body(self, size: int, grown: int) -> None:
        """Counts ``size`` bytes that arrived while a body was unfinished. ``grown`` of them belong to the body.

        The others are its framing, or bytes after the body. Framing is held only as trailers, after the last part of the body.
        """
        complete = self.unfinished_body is None
        if grown or complete:
            self.unclaimed = 0
        if complete:
            self._early(size - grown)
        elif not grown:
            self.unclaimed += size

    def received(self, data: bytes) -> None:
        """Counts bytes that arrived and belong to no body."""
        if self._busy:
            self._early(len(data))
        elif self._ended:
            self._rest += len(data)
        elif self._carried:
            self.unclaimed += len(data)
        else:
            self._headers(data)

    def request_started(self, size: int, body: Body | None) -> None:
        """A handler has the next request, whose headers have ``size`` bytes."""
        of_body = body.total_bytes if body is not None else 0
        if self._ended:
            self.unclaimed = 0
            complete = body is None or body.is_eof()
            more = self._rest - of_body if complete else 0
        else:
            # It came before the last response.
            self.unclaimed = max(self.unclaimed - size - of_body, 0)
            more = 0
        self._begun = self._ended = self._carried = False
        self._tail, self._rest = b"", 0
        self._busy, self._body = True, body
        self._early(max(more, 0))

    def request_ended(self) -> None:
        """The response is complete."""
        self._busy = False
        # These few bytes are counted again with the bytes that follow.
        self._carried = self.unclaimed > FREE_BYTES
        if not self._carried:
            self.unclaimed = 0

    def _early(self, size: int) -> None:
        if self._early_bytes is not None:
            self.unclaimed += size

    def _headers(self, data: bytes) -> None:
        # Empty lines before a request are not its end.
        data = data if self._begun else data.lstrip(b"\r\n")
        if not data:
            return
        self._begun = True
        joined = self._tail + data
        end = joined.find(_END)
        if end < 0:
            self._tail = joined[1 - len(_END) :]
            self.unclaimed += len(data)
        else:
            self._ended, self._rest = True, len(joined) - end - len(_END)
