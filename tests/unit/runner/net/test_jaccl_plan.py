"""JACCL's environment, and its exchange of connection data."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_runner.net import jaccl


def plan(rows: list[list[str | None]], **more: Any) -> Plan:
    ranks = [
        {
            "rank": rank, "node": f"studio-{rank}", "pod": f"p-{rank}", "address": "10.0.0.1", "controlPort": 1,
            "gatewayPort": 2, "devices": row, "memoryBytes": 1,
        }
        for rank, row in enumerate(rows)
    ]  # fmt: skip
    return Plan.model_validate(
        {
            "namespace": "default", "deployment": "d", "uid": "u", "index": 0, "epoch": 1, "model": "m", "modelPath": "/m",
            "backend": "jaccl", "split": "Tensor", "ranks": ranks,
            "memory": {"contextTokens": 1, "concurrentRequests": 1, "cachedTokens": 0}, **more,
        }
    )  # fmt: skip


def full(size: int) -> list[list[str | None]]:
    return [[None if here == there else f"rdma_en{there}" for there in range(size)] for here in range(size)]


def test_a_mesh_gets_every_device() -> None:
    assert jaccl.device_matrix(plan(full(4))) == full(4)
    told = jaccl.environment(plan(full(4)), 2, Path("/d.json"))
    assert told == {"MLX_RANK": "2", "MLX_IBV_DEVICES": "/d.json"}


def test_a_missing_cable_makes_a_ring_of_neighbors_only() -> None:
    rows = full(4)
    rows[0][2] = rows[2][0] = None
    found = jaccl.device_matrix(plan(rows))
    assert found[1] == ["rdma_en0", None, "rdma_en2", None]
    # The presence of the variable selects a ring, whatever its value, so a mesh must not have it.
    assert jaccl.environment(plan(rows), 0, Path("d"))["MLX_JACCL_RING"] == "1"
    assert jaccl.environment(plan(full(4), jaccl_ring=True), 0, Path("d"))["MLX_JACCL_RING"] == "1"


def test_a_ring_with_a_gap_and_a_mesh_that_is_too_large_are_refused() -> None:
    rows = full(4)
    rows[0][1] = None
    with pytest.raises(ValueError, match=r"rank 0 \(studio-0\) towards rank 1"):
        jaccl.device_matrix(plan(rows))
    with pytest.raises(ValueError, match="at most 8 ranks"):
        jaccl.device_matrix(plan(full(9)))
    assert len(jaccl.device_matrix(plan(full(9), jaccl_ring=True))) == 9


def test_the_devices_file_is_new_for_each_attempt(tmp_path: Path) -> None:
    first = jaccl.write_devices(plan(full(2)), tmp_path, 1)
    second = jaccl.write_devices(plan(full(2)), tmp_path, 2)
    assert (first.exists(), second.read_text()) == (False, '[[null, "rdma_en1"], ["rdma_en0", null]]')


@given(order=st.permutations([(rank, number) for rank in range(3) for number in (1, 2)]))
def test_parts_come_together_in_order_of_ranks_however_they_arrive(order: list[tuple[int, int]]) -> None:
    exchange, whole = jaccl.Exchange(3), {}
    for rank, number in order:
        exchange, done = exchange.put(rank, number, f"{number}{rank}".encode())
        if done is not None:
            whole[number] = done
    assert whole == {1: b"101112", 2: b"202122"}
    assert exchange.missing == ()


def test_who_is_waited_for_is_known() -> None:
    exchange, _ = jaccl.Exchange(3).put(0, 1, b"x")
    exchange, _ = exchange.put(2, 1, b"x")
    assert exchange.missing == (1,)
    with pytest.raises(jaccl.UnevenParts, match="rank 0 sent 1 bytes and rank 1 2"):
        exchange.put(1, 1, b"xx")
    with pytest.raises(ValueError, match="at most"):
        exchange.put(1, 1, bytes(jaccl.PART_LIMIT + 1))
