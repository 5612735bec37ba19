"""The first message to a rank: which settings it starts with."""

from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_runner.group import launch
from thunderfleet_runner.protocol import Start


def plan(*devices: tuple[str | None, ...], ring: bool = False, verify: str = "Full", **runtime: Any) -> Plan:
    """A JACCL group of as many ranks."""
    ranks = [
        {"rank": rank, "node": f"n{rank}", "pod": f"p{rank}", "address": "10.0.0.1", "controlPort": 1, "gatewayPort": 2,
         "memoryBytes": 7, "devices": row}
        for rank, row in enumerate(devices)
    ]  # fmt: skip
    memory = {"contextTokens": 1, "concurrentRequests": 1, "cachedTokens": 0}
    return Plan.model_validate(
        {"namespace": "ns", "deployment": "md", "uid": "u", "index": 0, "epoch": 1, "model": "m", "modelPath": "/m",
         "backend": "jaccl", "jacclRing": ring, "split": "Tensor", "ranks": ranks, "memory": memory, "runtime": runtime,
         "verify": verify}
    )  # fmt: skip


PAIR = (None, "rdma_en2"), ("rdma_en2", None)


def started(made: Plan, **environment: str) -> Start:
    return launch.start_message(made, 0, 3, None, environment, jaccl_environment=False)


def test_settings_of_the_plan_come_with_the_connection_which_takes_precedence() -> None:
    made = plan(*PAIR, environment={"MLX_ENABLE_TF32": "0", "MLX_RANK": "9"})
    assert started(made, MLX_RANK="0").environment == {
        "MLX_ENABLE_TF32": "0",
        "MLX_RANK": "0",
        "THUNDERFLEET_RANK_ATTEMPT": "3",
    }


def test_a_rank_wires_its_memory_unless_the_plan_says_otherwise() -> None:
    assert started(plan(*PAIR)).wired
    assert not started(plan(*PAIR, wiredLimit="Unlimited")).wired


@pytest.mark.parametrize(
    ("devices", "ring", "mesh"),
    [
        (PAIR, False, True),
        (PAIR, True, False),
        (((None, "a", None, "b"), ("a", None, "b", None), (None, "a", None, "b"), ("a", None, "b", None)), False, False),
    ],
)
def test_a_rank_knows_whether_all_others_are_connected_to_it(devices: Any, ring: bool, mesh: bool) -> None:
    assert started(plan(*devices, ring=ring)).mesh is mesh


@pytest.mark.parametrize(("verify", "proves"), [("Full", True), ("Quick", True), ("None", False)])
def test_the_plan_says_whether_a_rank_checks_its_connections(verify: str, proves: bool) -> None:
    found = started(plan(*PAIR, verify=verify))
    assert (found.prove, found.prove_seconds) == (proves, 60)
