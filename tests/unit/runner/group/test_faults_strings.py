"""The table of faults compared with the installed library: new messages of MLX fail this test.

The compiler lays the texts of one source file side by side, so the ring's, JACCL's and their sockets' are found between known
ones, whole or in the parts that are put together at run time.
"""

import re
from importlib import metadata
from pathlib import Path

import pytest
from thunderfleet_runner import faults
from thunderfleet_runner.faults import Stage

TAGGED = re.compile(rb"\[(?:ring|jaccl|distributed)\] ?[^\x00\n]*")
TEXT = re.compile(rb"[\x20-\x7e]{4,}(?=[\x00\n])")
WINDOWS = (
    (b"[distributed] Couldn't initialize any backend", b"Couldn't create socket to connect"),
    (b"[ring] sum_scatter not supported.", b" has no sockets to the left."),
)
NO_FAILURE = {
    # What the ring logs while it works, if it is verbose.
    "[ring]", "Attempt", "waiting", "Rank", "accepting", "connecting to", "ms (error:", "MLX_RING_VERBOSE",
    # Names of variables.
    "MLX_HOSTFILE", "MLX_RANK", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_JACCL_RING",
    # Ends and middle parts: the beginning of each message is in the table too.
    " (error: ", 'and a hostfile (MLX_HOSTFILE) but provided MLX_RANK="', '" and MLX_HOSTFILE="', "but tried to send to ",
    "but tried to recv from ", "Socket", " connections to the right and ", "[ring] Rank ", "to the right but rank ", " has ",
    "'jaccl' and 'ring' but '", "'jaccl' backend but '", "failed with errno", "made no progress", "Receiving from socket",
    "Sending to socket", "Send failed with errno=", "Recv failed with errno=",
    # The reader of the hostfile, which the supervisor writes.
    "out_of_range", "invalid_iterator", "type must be string, but is ", "object", "boolean", "binary", "discarded", "array",
    "number", "string", "null",
}  # fmt: skip
WHOLE = {
    # The parts as MLX joins them.
    "Receiving from socket": "[ring] Receiving from socket 4 failed with errno 104",
    "Sending to socket": "[ring] Sending to socket 4 made no progress",
    "Send failed with errno=": "[jaccl] Send failed with errno=32",
    "Recv failed with errno=": "[jaccl] Recv failed with errno=104",
    "Too many send/recv errors. Failing pending tasks...": "[ring] Too many send/recv errors. Failing pending tasks...",
    "was closed by the peer": "[ring] Socket 4 was closed by the peer",
    "Couldn't bind socket": "[ring] Couldn't bind socket (error: 98)",
    "Couldn't connect": "[ring] Couldn't connect (error: 111)",
}


def library() -> Path:
    for file in metadata.files("mlx") or metadata.files("mlx-cpu") or ():
        found = Path(str(file.locate()))
        if found.name in ("libmlx.so", "libmlx.dylib"):
            return found
    import mlx.core as mx

    (found, *_) = sorted(Path(mx.__file__).parent.glob("lib/libmlx.*"))
    return found


def said() -> list[str]:
    """Every message of the ring, of JACCL and of their sockets in the installed library."""
    data = library().read_bytes()
    found = {match.group() for match in TAGGED.finditer(data)}
    for first, last in WINDOWS:
        start = data.find(first)
        assert start >= 0, f"{first.decode()} is not in {library()}: look for what this MLX says instead"
        end = data.find(last, start)
        assert 0 < end - start < 16_384, f"{last.decode()} does not follow {first.decode()}"
        found |= {match.group() for match in TEXT.finditer(data[start : end + len(last) + 1])}
    headers = library().parent.parent / "include" / "mlx" / "distributed"
    for header in headers.rglob("*.h"):
        found |= {text for text in re.findall(rb'"(\[jaccl\] [^"]+)"', header.read_bytes())}
    return sorted(text.decode() for text in found)


def known(text: str) -> bool:
    seen = WHOLE.get(text.strip(), text)
    return any(faults.from_text(stage, seen).reason != "Unknown" for stage in (Stage.INIT, Stage.SERVE))


def symbol(text: str) -> bool:
    """Names that the compiler adds, and errors of the JSON parser."""
    return bool(re.match(r"(_Z|N3mlx|St\d|N\d|<|\[json|parse|.* literal$|at line|, column|unknown token|end of|'\['|syntax|"
                         r"while parsing|; |unexpected|\s?at line)", text))  # fmt: skip


def test_every_message_of_the_installed_ring_and_jaccl_is_known_or_no_failure() -> None:
    found = said()
    assert len(found) > 25, found
    unknown = [text for text in found if text.strip() and not symbol(text) and not known(text)]
    assert [text for text in unknown if text not in NO_FAILURE and text.strip() not in NO_FAILURE] == []


@pytest.mark.parametrize("text", ["Couldn't listen", "[ring] connection to a peer was lost", "was closed by the peer"])
def test_messages_are_really_found(text: str) -> None:
    assert any(text in entry for entry in said())


def test_an_unknown_message_would_be_reported() -> None:
    assert not known("[ring] The moon is in the way") and "[ring] The moon is in the way" not in NO_FAILURE
