"""Which other Macs this Mac reads and dials when the fleet is too large for all of them. Pure.

Every NodeProfile is labeled with the bucket of its node's name. A Mac lists the profiles in a window of buckets that starts
at its own, so every Mac is in the sample of about as many others, and the sample does not change from one list to the next.
"""

from __future__ import annotations

import hashlib

from thunderfleet_crds.names import GROUP

LABEL_BUCKET = f"{GROUP}/bucket"
BUCKETS = 256
SAMPLE_SIZE = 32


def bucket(node: str) -> int:
    """The bucket of a node's name, 0 to BUCKETS - 1."""
    return hashlib.sha256(node.encode()).digest()[0] % BUCKETS


def bucket_label(number: int) -> str:
    """The label's value for a bucket."""
    return f"b{number % BUCKETS:02x}"


def window(node: str, profiles: int) -> tuple[str, ...]:
    """The buckets that hold about SAMPLE_SIZE of ``profiles`` profiles, starting with the node's own."""
    width = min(BUCKETS, max(1, round(SAMPLE_SIZE * BUCKETS / max(profiles, 1))))
    return tuple(bucket_label(bucket(node) + step) for step in range(width))
