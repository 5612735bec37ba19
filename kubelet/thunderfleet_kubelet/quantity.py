"""Kubernetes quantities as exact numbers, for comparing what pods ask for with what the machine has."""

import re
from fractions import Fraction

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")
_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), None: Fraction(1), "k": Fraction(1000)}
_SUFFIXES |= {letter: Fraction(1000 ** (index + 2)) for index, letter in enumerate("MGTPE")}
_SUFFIXES |= {f"{letter}i": Fraction(1024 ** (index + 1)) for index, letter in enumerate("KMGTPE")}


def parse_quantity(text: str) -> Fraction:
    """The exact value of a quantity such as ``1500m`` or ``64Gi``. Raises ValueError for anything else."""
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text!r} is no quantity, as in '500m', '2' or '64Gi'")
    number, exponent, suffix = match.groups()
    scale = Fraction(10) ** int(exponent[1:]) if exponent else _SUFFIXES[suffix]
    return Fraction(number) * scale
