"""TLS of a client that reads much: the socket is read in large blocks.

Python's own TLS sockets read each record of 16 KiB with two system calls and wait with a third one, which takes more processor
time than decrypting it.
"""

from __future__ import annotations

import socket
import ssl
import time

READ_BYTES = 256 * 1024


class Tls:
    """The client's end of a connection over ``sock``, whose time-out limits each call. For one thread."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, seconds: float) -> None:
        """Shakes hands within ``seconds``. Raises OSError, which ssl.SSLError and TimeoutError are."""
        until = time.monotonic() + seconds
        self._sock = sock
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._arrived, self._leaving)
        self._block = memoryview(bytearray(READ_BYTES))
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if time.monotonic() > until:
                    raise TimeoutError from None
                self._fill()
        self._flush()

    def certificate(self) -> bytes:
        """The server's certificate (DER)."""
        return self._object.getpeercert(binary_form=True) or b""

    def sendall(self, data: bytes) -> None:
        """Raises OSError."""
        self._object.write(data)
        self._flush()

    def recv_into(self, view: memoryview) -> int:
        """Reads at least one byte; 0 at the end of the connection. Raises OSError."""
        while True:
            try:
                return int(self._object.read(len(view), view))
            except ssl.SSLWantReadError:
                # An answer of TLS itself, such as to a change of keys.
                self._flush()
                self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def close(self) -> None:
        self._sock.close()

    def _flush(self) -> None:
        if data := self._leaving.read():
            self._sock.sendall(data)

    def _fill(self) -> None:
        count = self._sock.recv_into(self._block)
        if count:
            self._arrived.write(self._block[:count])
        else:
            self._arrived.write_eof()
