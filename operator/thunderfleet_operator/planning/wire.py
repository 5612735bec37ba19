"""The messages between the operator and its planning process: pickles of values, each with its length in front.

Both ends are the same program in the same version. The fleet is sent once; later messages have only its changes.
"""

import pickle
import struct
from dataclasses import dataclass

from thunderfleet_crds.vocabulary import PlacedSplit, PlacedTransport

from thunderfleet_operator.placement.inputs.fleet import Cable, Mac
from thunderfleet_operator.placement.inputs.request import Request
from thunderfleet_operator.placement.questions import Answer

LENGTH = struct.Struct(">I")
MAX_BYTES = 64 * 2**20
"""Maximum size of one message."""
LIMIT_THE_MACS = "limit the Macs with spec.nodes.selector and spec.nodes.max"
"""What to do when an answer takes too much time or memory."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Changes the fleet: arguments of ``Fleet.changed``."""

    macs: tuple[Mac, ...] = ()
    cables: tuple[Cable, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedWhere:
    """``WherePlaced`` on the fleet that was sent."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class AskedBetter:
    """``WhatIsBetter`` on the fleet that was sent."""

    request: Request
    running: PlacedTransport | None
    links: tuple[str, ...]
    split: PlacedSplit | None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, and the seconds of processor time that it took."""

    answer: Answer
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no answer. ``why`` is the end of a sentence that begins with "the planner"."""

    why: str


def encode(message: object) -> bytes:
    """One message with its length. Raises ``ValueError`` if it is too large."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) > MAX_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is larger than {MAX_BYTES}")
    return LENGTH.pack(len(data)) + data


def size_of(header: bytes) -> int:
    """The size of the message that follows. Raises ``ValueError`` if it is too large."""
    (size,) = LENGTH.unpack(header)
    if size > MAX_BYTES:
        raise ValueError(f"a message of {size} bytes is larger than {MAX_BYTES}")
    return int(size)
