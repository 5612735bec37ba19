"""Kubernetes quantities, such as ``500m`` and ``64Gi``, as exact numbers."""

import math
import re
from fractions import Fraction

# What the API server accepts; an exponent has two digits at most.
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
_SCALES = {unit.strip(): Fraction(1000) ** power for power, unit in enumerate("num kMGTPE", -3)}
_SCALES |= {f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", 1)}


def parse_quantity(value: object) -> Fraction:
    """The exact value of a quantity. Raises ``ValueError`` for anything else."""
    found = _FORM.fullmatch(str(value).strip())
    if not found:
        raise ValueError(f"not a quantity: {value!r} (expected a number such as 500m, 2, 1e9 or 64Gi)")
    number, unit = found.groups(default="")
    return Fraction(number) * (_SCALES[unit] if unit in _SCALES else Fraction(10) ** int(unit[1:]))


def to_bytes(value: object) -> int:
    """Whole bytes of a quantity, rounded up. Raises ``ValueError``."""
    return math.ceil(parse_quantity(value))
