"""JSON that is counted before it is parsed: never refused within the bounds, never parsed beyond them."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_lib import jsonbounds
from thunderfleet_lib.jsonbounds import TooLarge

MIB = 1 << 20
_TEXT = st.text(st.sampled_from('ab,:[]{}"\\\n é\U0001f600'), max_size=12)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """What the commas, colons and opening brackets of a value's JSON add up to."""
    if isinstance(value, dict):
        return 1 + 2 * len(value) - bool(value) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(counted, value))
    return 0


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(value=_JSON, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_a_value_passes_exactly_its_own_bounds(value: Any, ascii_only: bool, indent: int | None) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    values, depth = counted(value), depth_of(value)
    assert jsonbounds.loads(raw, values=values, depth=depth) == value
    if values:
        with pytest.raises(TooLarge):
            jsonbounds.check(raw, values=values - 1, depth=depth)
        with pytest.raises(TooLarge):
            jsonbounds.check(raw, values=values, depth=depth - 1)


@given(raw=st.binary(max_size=60) | st.text('[]{}",:\\0a', max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_an_error(raw: bytes) -> None:
    try:
        found = jsonbounds.loads(raw, values=12, depth=3)
    except ValueError:
        return
    assert found == json.loads(raw) and depth_of(found) <= 3


def test_constants_are_json_only_when_allowed() -> None:
    assert jsonbounds.loads(b"[Infinity]", values=9, depth=9, constants=True) == [float("inf")]
    with pytest.raises(ValueError, match="Infinity is not JSON"):
        jsonbounds.loads(b"[Infinity]", values=9, depth=9)


@pytest.mark.parametrize(
    "piece",
    [
        b"[],",
        b"{},",
        b'"",',
        b"[",
        b"]",
        b'{"a":',
        b'"',
        b"\\",
        b'\\"',
        b'"a":1,',
        b"1",
        b" ",
        b"a",
        b"\xff",
        b'"\\\\",',
        b"\n",
    ],
)
def test_millions_of_anything_are_refused_in_a_moment(piece: bytes) -> None:
    raw = b"[" + piece * (16 * MIB // len(piece))
    before = time.process_time()
    with pytest.raises(ValueError):
        jsonbounds.loads(raw, values=200_000, depth=32)
    # Parsing it would take seconds.
    assert time.process_time() - before < 1.0
