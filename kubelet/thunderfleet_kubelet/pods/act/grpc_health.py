"""One call of the standard gRPC health protocol, ``grpc.health.v1.Health/Check``, without TLS, as Kubernetes makes it.

HTTP/2 is that of h2, in Python: gRPC's own library takes 9 MB of a kubelet's memory and 19 MB of a Mac's disk for one call.
The server is a program of a pod, so what it may send is bounded.
"""

import asyncio
from collections.abc import Iterable
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import H2Error

READ_BYTES = 16 * 1024
ANSWER_BYTES = 256 * 1024
"""What is read of one connection at most. Of it, h2 takes 64 KiB as headers, and the window of flow control 64 KiB as data."""
MESSAGE_CHARACTERS = 200
STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
SERVING = 1
OK, UNIMPLEMENTED = 0, 12
CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
# The parts of an encoded message: its flag for compression and its length come first.
_PREFIX = 5
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class NoAnswer(Exception):
    """The health service did not answer the call."""


async def check(host: str, port: int, service: str) -> str:
    """The status of ``service``, one of ``STATUSES``; an empty name is the server as a whole. The caller limits the time.

    Raises NoAnswer with the reason, or OSError.
    """
    reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES)
    try:
        call = _Call(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", service)
        writer.write(call.to_send())
        read = 0
        while not call.ended:
            data = await reader.read(READ_BYTES)
            read += len(data)
            if not data:
                raise NoAnswer("the server closed the connection")
            if read > ANSWER_BYTES:
                raise NoAnswer(f"the server sent more than {ANSWER_BYTES} bytes")
            call.receive(data)
            writer.write(call.to_send())
        return status_of(call.message())
    finally:
        # Not close: it would wait for a server that reads nothing.
        writer.transport.abort()


class _Call:
    """The connection of one call, and its result."""

    def __init__(self, authority: str, service: str) -> None:
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._fields: dict[bytes, bytes] = {}
        self._data = bytearray()
        self.ended = False
        self._connection.initiate_connection()
        self._connection.send_headers(
            1,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/grpc.health.v1.Health/Check"),
                (":authority", authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "kube-probe/thunderfleet"),
            ],
        )
        self._connection.send_data(1, _framed(_request(service)), end_stream=True)

    def to_send(self) -> bytes:
        """The bytes to send to the server next."""
        return self._connection.data_to_send()

    def receive(self, data: bytes) -> None:
        """Processes bytes from the server. Raises NoAnswer."""
        try:
            events = self._connection.receive_data(data)
        except H2Error as error:
            raise NoAnswer(f"the server does not speak gRPC: {str(error) or type(error).__name__}") from None
        self._follow(events)

    def _follow(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ResponseReceived() | TrailersReceived():
                    self._fields.update((bytes(name), bytes(value)) for name, value in event.headers)
                case DataReceived():
                    self._data += event.data
                case StreamEnded():
                    self.ended = True
                    return
                case StreamReset():
                    raise NoAnswer(f"the server reset the stream: {_error(event.error_code)}")
                case ConnectionTerminated():
                    raise NoAnswer(f"the server ends the connection: {_error(event.error_code)}")

    def message(self) -> bytes:
        """The message of the answer. Raises NoAnswer if the answer is an error."""
        if (http := self._field(b":status")) != "200":
            raise NoAnswer(f"the server answered with HTTP status {http}")
        code = self._field(b"grpc-status")
        if not code.isdecimal():
            raise NoAnswer("the server does not speak gRPC: its answer has no grpc-status")
        if int(code) != OK:
            said = unquote(self._field(b"grpc-message"))
            if int(code) == UNIMPLEMENTED:
                raise NoAnswer(f"this server does not implement the grpc health protocol (grpc.health.v1.Health): {said}")
            raise NoAnswer(f"health rpc failed: {CODES[int(code)] if int(code) < len(CODES) else code}: {said}")
        return _unframed(bytes(self._data))

    def _field(self, name: bytes) -> str:
        return self._fields.get(name, b"").decode("utf-8", "replace")[:MESSAGE_CHARACTERS]


def _error(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else str(code)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _request(service: str) -> bytes:
    """A HealthCheckRequest: field 1 is the name of the service."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _unframed(data: bytes) -> bytes:
    """The only message in ``data``. Raises NoAnswer."""
    if len(data) < _PREFIX or int.from_bytes(data[1:_PREFIX], "big") != len(data) - _PREFIX:
        raise NoAnswer(f"the server answered with {len(data)} bytes, which are not one message")
    if data[0]:
        raise NoAnswer("the server answered with a compressed message, which was not requested")
    return data[_PREFIX:]


def status_of(message: bytes) -> str:
    """The status in a HealthCheckResponse, in which it is field 1; unknown fields are skipped. Raises NoAnswer."""
    at, status = 0, 0
    try:
        while at < len(message):
            key, at = _read_varint(message, at)
            kind = key & 7
            if kind == _VARINT:
                value, at = _read_varint(message, at)
                status = value if key >> 3 == 1 else status
            elif kind == _BYTES:
                size, at = _read_varint(message, at)
                at += size
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise ValueError
    except (IndexError, ValueError):
        at = len(message) + 1
    if at != len(message):
        raise NoAnswer("the server answered with a message that is not a HealthCheckResponse")
    return STATUSES[status] if status < len(STATUSES) else str(status)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer and the position after it. Raises IndexError or ValueError."""
    number = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
    raise ValueError
