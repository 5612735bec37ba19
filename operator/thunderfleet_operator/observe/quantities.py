"""Kubernetes quantities, as numbers. Pods and Nodes say memory in them."""

import re
from decimal import ROUND_CEILING, Decimal

_UNITS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{unit + "i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"^([+-]?[0-9]*\.?[0-9]+\.?)(?:([eE][+-]?[0-9]+)|([numkKMGTPE]?i?))$")


def to_bytes(text: object) -> int:
    """Bytes of ``"512Gi"``, ``"1e9"``, ``1024``; parts of a byte are rounded up. Raises ``ValueError``."""
    match = _QUANTITY.match(str(text).strip())
    if match is None or (match[3] or "") not in _UNITS:
        raise ValueError(f"not a quantity: {text!r}")
    number = Decimal(match[1] + (match[2] or "")) * _UNITS[match[3] or ""]
    return int(number.to_integral_value(ROUND_CEILING))
