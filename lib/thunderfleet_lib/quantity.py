"""Kubernetes quantities, such as ``500m`` and ``64Gi``, as exact numbers."""

import math
import re
from fractions import Fraction

from kubernetes.utils.quantity import parse_quantity as _parse

# What the API server accepts; the library's parser also takes NaN, Infinity, underscores and exponents of any size.
_FORM = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)

MAX_LENGTH = 64
"""The API server writes at most 19 digits; numbers of millions of digits take minutes."""


def parse_quantity(value: object) -> Fraction:
    """The exact value of a quantity. Raises ``ValueError`` for anything else."""
    text = str(value).strip()
    if len(text) > MAX_LENGTH or not _FORM.fullmatch(text):
        shown = repr(value) if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]!r} …"
        raise ValueError(f"not a quantity: {shown} (expected a number such as 500m, 2, 1e9 or 64Gi)")
    return Fraction(_parse(text))


def to_bytes(value: object) -> int:
    """Whole bytes of a quantity, rounded up. Raises ``ValueError``."""
    return math.ceil(parse_quantity(value))
