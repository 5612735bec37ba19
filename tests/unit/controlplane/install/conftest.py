"""What several tests of the daemons need."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A socket that is bound, and does not listen yet."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield found
