"""Which logits are hashed, and what the hash notices."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from thunderfleet_crds.vocabulary import Split, Verify
from thunderfleet_runner.group import launch
from thunderfleet_runner.rank.mlxlm.batching.logits import EVERY_STEPS, LogitsHash, row_hash, value_hash


def step(*answers: int, row: Any = None) -> list[Any]:
    return [SimpleNamespace(uid=uid, logprobs=mx.array([0.5, 1.0]) if row is None else row) for uid in answers]


@pytest.mark.parametrize("kind", [mx.float32, mx.bfloat16, mx.float16])
def test_one_bit_is_noticed(kind: Any) -> None:
    row = mx.arange(1000).astype(kind)
    changed = mx.array(row)
    changed[10] = changed[10] + 1
    assert row_hash(row) == row_hash(mx.array(row)) != row_hash(changed)


def test_every_first_token_and_one_of_many() -> None:
    hashes = LogitsHash()
    found = [hashes.of(step(1)) is not None for _ in range(2 * EVERY_STEPS)]
    assert [number for number, one in enumerate(found, 1) if one] == [1, EVERY_STEPS, 2 * EVERY_STEPS]
    assert hashes.of([]) is None
    # Of a new answer beside an old one, the new one's row is hashed.
    other = mx.array([3.0, 4.0])
    assert hashes.of([*step(1), *step(2, row=other)]) == row_hash(other)
    assert hashes.of(step(1, 2)) is None
    assert value_hash(-0.5) != value_hash(-0.25)


@pytest.mark.parametrize(
    ("split", "size", "mesh", "verify", "equal"),
    [
        (Split.TENSOR, 2, True, Verify.FULL, True),
        (Split.TENSOR, 4, True, Verify.FULL, False),
        (Split.TENSOR, 4, False, Verify.FULL, True),
        (Split.PIPELINE, 4, True, Verify.FULL, True),
        (Split.TENSOR, 2, True, Verify.QUICK, False),
    ],
)
def test_where_ranks_must_have_the_same_bits(split: Split, size: int, mesh: bool, verify: Verify, equal: bool) -> None:
    assert launch.equal_logits(verify, split, size, mesh=mesh) is equal
