"""The line that `thunderfleet join` takes."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_controlplane.install.joinline import JoinLine, decode

TOKEN, HASH = "abcdef.0123456789abcdef", "sha256:" + "0a" * 32


@given(
    st.lists(st.ip_addresses().map(str), min_size=1, max_size=16),
    st.integers(1, 65535),
    st.from_regex(r"[a-z0-9]{6}\.[a-z0-9]{16}", fullmatch=True),
)
def test_what_is_encoded_is_decoded(addresses: list[str], port: int, token: str) -> None:
    line = JoinLine(tuple(addresses), port, token, HASH)
    text = line.encode()
    assert text.startswith("tf1-") and text.isascii() and not set(text) & set(" =+/'\"$")
    assert decode(text) == line


def test_names_and_a_key_are_decoded() -> None:
    line = JoinLine(("10.0.0.1",), 6443, TOKEN, HASH, ("studio-1.local",), bytes(range(32)))
    assert decode(line.encode()) == line
    assert line.hosts == ("10.0.0.1", "studio-1.local")


def test_the_longest_line_is_accepted() -> None:
    longest = ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff" + digit for digit in "0123456789abcdef"]
    line = JoinLine(tuple(longest), 65535, TOKEN, HASH, tuple(f"{digit}" * 64 for digit in "abcd"), b"k" * 32)
    assert decode(line.encode()) == line


@given(st.text(max_size=200))
def test_other_text_is_refused(text: str) -> None:
    for given_text in (text, "tf1-" + text):
        with pytest.raises(ValueError, match="thunderfleet init"):
            decode(given_text)


@pytest.mark.parametrize(
    "change",
    [
        {"a": []},
        {"a": ["studio-1"]},
        {"p": 0},
        {"p": "6443"},
        {"t": "abcdef"},
        {"t": None},
        {"h": "sha256:0a"},
        {"a": ["::1"] * 17},
        {"n": ["a"] * 5},
        {"n": ["a b"]},
        {"n": ["a" * 65]},
        {"n": 1},
        {"k": "AAAA"},
        {"k": 1},
        {"k": "#"},
    ],
)
def test_a_line_with_something_wrong_is_refused(change: dict[str, object]) -> None:
    content = {"a": ["10.0.0.1"], "p": 6443, "t": TOKEN, "h": HASH, **change}
    text = "tf1-" + base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
    with pytest.raises(ValueError, match="copy all of it"):
        decode(text)


def test_a_line_that_was_cut_is_refused() -> None:
    text = JoinLine(("10.0.0.1",), 6443, TOKEN, HASH).encode()
    for length in range(len(text)):
        with pytest.raises(ValueError):
            decode(text[:length])
