"""Requests to gateways and their responses, as bytes: the same however they are split, and nothing else is understood."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_router.http import framing
from thunderfleet_router.http.framing import BadResponse, Response

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def _fed(data: bytes, cuts: set[int] | None = None) -> tuple[Response, bytes]:
    """The response to bytes that arrive in parts, and its body."""
    found, body = Response(), b""
    at = [0, *sorted(cut for cut in cuts or () if cut < len(data)), len(data)]
    for start, end in pairwise(at):
        body += found.feed(data[start:end])
    return found, body


@pytest.mark.parametrize(
    ("data", "body", "reusable"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
        (OK + b"Content-Length: 0\r\n\r\n", b"", True),
        (OK + b"content-length:5\r\nConnection: Close\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.0 200\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 OK\r\nX: y\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", b"a", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", b"hello", True),
        (CHUNKED + b"A;name=value\r\n0123456789\r\n1 \r\n\r\r\n00\r\nTrailer: x\r\nOther: y\r\n\r\n", b"0123456789\r", True),
        (CHUNKED + b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n", True),
    ],
)
@given(cuts=st.sets(st.integers(1, 300), max_size=40))
def test_a_response_is_the_same_however_it_is_split(data: bytes, body: bytes, reusable: bool, cuts: set[int]) -> None:
    found, read = _fed(data, cuts)
    assert (read, found.complete, found.reusable) == (body, True, reusable)
    # The end of the connection ends nothing that is complete, but the connection.
    found.end()
    assert found.complete and not found.reusable


@pytest.mark.parametrize("size", range(len(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")))
def test_a_response_that_is_cut_is_not_complete(size: int) -> None:
    found, _ = _fed((CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")[:size])
    assert not found.complete
    with pytest.raises(BadResponse):
        found.end()


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    found, body = _fed(OK + b"\r\nhello")
    assert (body, found.complete) == (b"hello", False)
    found.end()
    assert found.complete and not found.reusable


@pytest.mark.parametrize("data", [OK + b"Content-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\n", CHUNKED + b"0\r\n\r\nH"])
def test_bytes_behind_a_response_end_the_use_of_its_connection(data: bytes) -> None:
    found, _ = _fed(data)
    assert found.complete and not found.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        OK + b" folded: x\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"space : x\r\n\r\n",
        OK + b"X: a\nY: b\r\n\r\n",
        OK + b"X: a\0\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        OK + b"Content-Length: 5\r\ncontent-length: 5\r\n\r\n",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: +1\r\n\r\n",
        OK + "Content-Length: \u0661\r\n\r\n".encode(),
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0x5\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"1" * 300,
        CHUNKED + b"1\r\na" + b"b" * 300,
        CHUNKED + b"f" * 13 + b"\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000,
        CHUNKED + b"0\r\n" + b"X" * 70_000,
        b"HTTP/1.1 200 " + b"x" * 70_000,
    ],
)
def test_what_no_gateway_sends_is_not_understood(data: bytes) -> None:
    with pytest.raises(BadResponse):
        _fed(data)
    with pytest.raises(BadResponse):
        _fed(data, set(range(1, 400)))


@given(start=st.sampled_from([b"", OK, CHUNKED, OK + b"Content-Length: 3\r\n\r\n"]), data=st.binary(max_size=200))
def test_any_bytes_are_a_response_or_not_understood(start: bytes, data: bytes) -> None:
    found = Response()
    try:
        body = found.feed(start) + found.feed(data)
    except BadResponse:
        return
    assert len(body) <= len(start) + len(data)


def test_headers_are_looked_up_in_any_case_and_passed_on_as_they_were() -> None:
    found, _ = _fed(OK + b"Content-TYPE:  Text/Plain ; x=y \r\nX-Odd: \xff\r\nContent-Length: 0\r\n\r\n")
    assert found.head is not None
    assert found.head.content_type == "text/plain" and found.head.get("content-type") == "Text/Plain ; x=y"
    assert found.head.headers["x-odd"] == ("X-Odd", "\udcff") and found.head.get("other") == ""


def test_a_request_has_each_header_once() -> None:
    found = framing.request("/v1/x", "10.0.0.1:80", {"Accept": "a/b", "traceparent": "\udcff"}, 3)
    assert found == (
        b"POST /v1/x HTTP/1.1\r\nHost: 10.0.0.1:80\r\nAccept: a/b\r\ntraceparent: \xff\r\nContent-Length: 3\r\n\r\n"
    )


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nX: y", "a\rb", "a\0b", "\r\n"])
def test_no_value_ends_its_line(value: str) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        framing.request("/v1/x", "h", {"X": value}, 0)
    with pytest.raises(ValueError, match="end of a line"):
        framing.request(f"/v1/{value}", "h", {}, 0)
