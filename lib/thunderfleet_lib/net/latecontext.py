"""TLS contexts that read the root certificates of the system at their first connection."""

import ssl
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any

_READER = "set_default_verify_paths"
"""The method that reads them. ``load_default_certs`` calls it, too."""
_READING = Lock()


class LateContext(ssl.SSLContext):
    """A context that has not read the root certificates of the system yet."""

    _unread = True

    def _read(self) -> None:
        with _READING:
            if self._unread:
                self.set_default_verify_paths()
                self._unread = False

    def wrap_socket(self, *words: Any, **named: Any) -> ssl.SSLSocket:
        """As that of the base class."""
        self._read()
        return super().wrap_socket(*words, **named)

    def wrap_bio(self, *words: Any, **named: Any) -> ssl.SSLObject:
        """As that of the base class; asyncio calls it."""
        self._read()
        return super().wrap_bio(*words, **named)


def put_off(work: Callable[[], None]) -> None:
    """Does ``work``. The contexts that it creates read the root certificates of the system when they are used."""
    read, thread = getattr(ssl.SSLContext, _READER), get_ident()
    late: list[ssl.SSLContext] = []

    def later(context: ssl.SSLContext) -> None:
        if get_ident() == thread:
            late.append(context)
        else:
            read(context)

    setattr(ssl.SSLContext, _READER, later)
    try:
        work()
    finally:
        # The real one is in the base class.
        delattr(ssl.SSLContext, _READER)
        for context in late:
            context.__class__ = LateContext
