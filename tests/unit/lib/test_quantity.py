"""Kubernetes quantities: exact values, and nothing that the API server would refuse."""

from __future__ import annotations

from fractions import Fraction

import pytest
from thunderfleet_lib.quantity import parse_quantity, to_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("500m", Fraction(1, 2)),
        ("64Gi", 64 * 2**30),
        ("1e3", 1000),
        ("2E3", 2000),
        ("2M", 2_000_000),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+3", 3),
        ("-3", -3),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("7n", Fraction(7, 10**9)),
        ("3u", Fraction(3, 10**6)),
        ("1k", 1000),
        ("1Ki", 1024),
        ("9223372036854775807", 2**63 - 1),
        (" 2 ", 2),
        (7, 7),
    ],
)
def test_quantities_are_exact(text: object, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "Gi",
        "1Zi",
        "1 Gi",
        "1e",
        "1.2.3",
        "0x1",
        "NaN",
        "Infinity",
        "1_000",
        "1e100",
        "1e999999999",
        "1mi",
        "1K",
        "٣",
        None,
    ],
)
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"not a quantity: .* \(expected a number such as"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512Gi", 512 * 2**30),
        ("1e9", 10**9),
        (7, 7),
        ("129M", 129 * 10**6),
        ("1500m", 2),
        ("1m", 1),
        ("1.5Ki", 1536),
        ("0", 0),
        ("2E3", 2000),
    ],
)
def test_bytes_are_rounded_up(text: object, size: int) -> None:
    assert to_bytes(text) == size


def test_bytes_of_no_quantity_are_refused() -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        to_bytes("1 Gi")
