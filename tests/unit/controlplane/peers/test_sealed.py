"""The keys of a cluster on their way to another Mac."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_controlplane.daemons.layout import SHARED
from thunderfleet_controlplane.install.sharing.sealed import FILE_BYTES, LIMIT_BYTES, SealedError, seal, unseal

KEY, TOKEN = b"k" * 32, "abcdef"
FILES = {name: f"-----BEGIN {name}-----".encode() for name in SHARED}


def sealed(files: dict[str, bytes] | None = None) -> bytes:
    return seal(files or FILES, "0.1.0", key=KEY, token=TOKEN, random=secrets.token_bytes)


def test_what_is_sealed_is_read_with_the_key() -> None:
    data = sealed()
    assert unseal(data, key=KEY, token=TOKEN) == (FILES, "0.1.0")
    assert b"BEGIN" not in data and data != sealed(), "equal keys are not seen to be equal"


def test_no_other_key_and_no_other_token_reads_it() -> None:
    for key, token in ((b"l" * 32, TOKEN), (KEY, "abcdeg")):
        with pytest.raises(SealedError, match="another key"):
            unseal(sealed(), key=key, token=token)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_is_noticed(at: int, change: int) -> None:
    data = bytearray(sealed())
    data[at % len(data)] ^= change
    with pytest.raises(SealedError):
        unseal(bytes(data), key=KEY, token=TOKEN)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SealedError):
        unseal(data, key=KEY, token=TOKEN)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(SealedError, match="too large"):
        unseal(b"x" * (LIMIT_BYTES + 1), key=KEY, token=TOKEN)
    with pytest.raises(SealedError, match="too large"):
        unseal(sealed({**FILES, SHARED[0]: b"x" * (FILE_BYTES + 1)}), key=KEY, token=TOKEN)
