"""``spec.runtime``: what a plan takes from it, what the status says, and which groups it rolls out."""

from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_crds.exchange.plan import Plan, RuntimePlan
from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeployment, ModelDeploymentSpec
from thunderfleet_crds.vocabulary import GroupPhase, PlacedSplit, PlacedTransport, RankPhase, Split, Transport, WiredLimit
from thunderfleet_operator.decide.group.lifecycle import NextStep, Step
from thunderfleet_operator.decide.manifests import make_plan
from thunderfleet_operator.decide.placing.request import spec_hash
from thunderfleet_operator.decide.status.group import group_status
from thunderfleet_operator.decide.status.outcome import Outcome
from thunderfleet_operator.decide.status.verdict import MESSAGE_LENGTH
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.placement import Placement
from thunderfleet_operator.placement.result import RankPlacement

from tests.unit.operator import values
from tests.unit.operator.values import report

UNUSED = "runtime.fastSynch has no effect: it needs parallelism Tensor and transport JACCL"


def deployment(**runtime: Any) -> ModelDeployment:
    spec = {"model": {"repository": "org/tiny"}, "runtime": runtime}
    return ModelDeployment.load({"metadata": {"name": "md", "namespace": "ns", "uid": "uid", "generation": 1}, "spec": spec})


def planned(transport: PlacedTransport, split: PlacedSplit, **runtime: Any) -> Plan:
    layers = ((1, 2), (0, 1)) if split is Split.PIPELINE else (None, None)
    ranks = tuple(
        RankPlacement(
            rank=rank,
            node="ab"[rank],
            address=f"10.0.0.{rank + 1}",
            memory_bytes=1,
            layers=layers[rank],
            ring_address=f"10.1.0.{rank + 1}",
            devices=(None, "rdma_en2") if rank == 0 else ("rdma_en2", None),
        )
        for rank in (0, 1)
    )
    placement = Placement(model_path="/m", transport=transport, split=split, ranks=ranks)
    ports = [RankPorts(1, 2, (3,)), RankPorts(4, 5, (6,))]
    return make_plan(deployment(**runtime), 0, 1, placement, ports)


@pytest.mark.parametrize(
    ("transport", "split", "used"),
    [
        (Transport.JACCL, Split.TENSOR, True),
        (Transport.JACCL, Split.PIPELINE, False),
        (Transport.JACCL_RING, Split.TENSOR, False),
        (Transport.RING, Split.TENSOR, False),
    ],
)
def test_fast_synch_is_for_tensor_over_a_mesh_only(transport: PlacedTransport, split: PlacedSplit, used: bool) -> None:
    variables = {"MLX_METAL_FAST_SYNCH": "1"} if used else {}
    made = planned(transport, split, fastSynch="Enabled")
    assert made.runtime == RuntimePlan(environment=variables)
    shown = status(made, fastSynch="Enabled")
    assert shown.environment == (("MLX_METAL_FAST_SYNCH=1",) if used else ())
    assert shown.reason == ("why" if used else f"why; {UNUSED}")
    assert planned(transport, split).runtime == planned(transport, split, fastSynch="Disabled").runtime == RuntimePlan()
    assert status(planned(transport, split)).reason == "why"


def status(made: Plan, **runtime: Any) -> Group:
    found = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING)
    return group_status(Outcome(values.view(made=made), NextStep(Step.KEEP), found), deployment(**runtime))


def test_all_ranks_get_the_variables_and_the_status_shows_them() -> None:
    env = [{"name": "MLX_SDPA_BLOCKS", "value": "32"}, {"name": "MLX_ENABLE_TF32", "value": "0"}]
    made = planned(Transport.JACCL, Split.TENSOR, env=env, wiredLimit="Unlimited", fastSynch="Enabled")
    wanted = {"MLX_SDPA_BLOCKS": "32", "MLX_ENABLE_TF32": "0", "MLX_METAL_FAST_SYNCH": "1"}
    assert made.runtime == RuntimePlan(environment=wanted, wired_limit=WiredLimit.UNLIMITED)
    assert status(made).environment == ("MLX_ENABLE_TF32=0", "MLX_METAL_FAST_SYNCH=1", "MLX_SDPA_BLOCKS=32")
    assert Plan.model_validate_json(made.model_dump_json(by_alias=True)) == made


def test_a_long_reason_leaves_room_for_the_unused_setting() -> None:
    made = planned(Transport.RING, Split.TENSOR)
    group = values.view(made=made)
    assert group.epoch is not None
    long = replace(group, epoch=replace(group.epoch, reason="x" * MESSAGE_LENGTH))
    found = report(GroupPhase.READY, RankPhase.SERVING, RankPhase.SERVING)
    shown = group_status(Outcome(long, NextStep(Step.KEEP), found), deployment(fastSynch="Enabled"))
    assert len(shown.reason) == MESSAGE_LENGTH and shown.reason.endswith(f"x; {UNUSED}")


def test_defaults_roll_no_group_out_and_other_values_do() -> None:
    def hashed(**runtime: Any) -> str:
        model = {"path": "/m"}
        return spec_hash(ModelDeploymentSpec.load({"model": model, "runtime": runtime} if runtime else {"model": model}))

    assert hashed() == hashed(fastSynch="Disabled", wiredLimit="Auto", env=[])
    others = [
        hashed(fastSynch="Enabled"),
        hashed(wiredLimit="Unlimited"),
        hashed(env=[{"name": "MLX_ENABLE_TF32", "value": "1"}]),
    ]
    assert len({hashed(), *others}) == 4


@pytest.mark.parametrize("name", ["MLX_RANK", "MLX_METAL_FAST_SYNCH", "PATH", "mlx_enable_tf32"])
def test_variables_of_the_connection_cannot_be_set(name: str) -> None:
    with pytest.raises(ValueError, match="MLX_BFS_MAX_WIDTH"):
        deployment(env=[{"name": name, "value": "1"}])
