"""Plans, groups and pods as values, for tests of single decisions."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.exchange.plan import MemoryPlan, Plan, RankPlan
from thunderfleet_crds.kinds.modeldeployment import Group, Rank
from thunderfleet_crds.vocabulary import Backend, GroupPhase, RankPhase, Split
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.objects.plans import Epoch, GroupView, Report
from thunderfleet_operator.observe.objects.pods import Pod
from thunderfleet_operator.observe.objects.proofs import Finding, Proof

PROVEN = Finding(Proof.VALID, "key")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODES = {"a": Node("a", ready=True), "b": Node("b", ready=True)}


def plan(epoch: int = 1, *, nodes: tuple[str, ...] = ("a", "b"), **more: Any) -> Plan:
    """A ring over Thunderbolt, rank 0 first."""
    ranks = tuple(
        RankPlan(
            rank=rank,
            node=node,
            pod=f"md-0-e{epoch}-{rank}",
            address=f"10.0.0.{rank + 1}",
            control_port=20001,
            gateway_port=20000,
            ring_address=f"169.254.0.{rank + 1}" if len(nodes) > 1 else None,
            ring_ports=(21000, 21001) if len(nodes) > 1 else (),
            memory_bytes=100,
        )
        for rank, node in enumerate(nodes)
    )
    fields: dict[str, Any] = {
        "namespace": "ns",
        "deployment": "md",
        "uid": "uid",
        "index": 0,
        "epoch": epoch,
        "model": "org/tiny",
        "model_path": "/models/tiny",
        "backend": Backend.RING if len(nodes) > 1 else Backend.NONE,
        "split": Split.TENSOR if len(nodes) > 1 else Split.NONE,
        "ranks": ranks,
        "memory": MemoryPlan(context_tokens=1, concurrent_requests=1, cached_tokens=1),
    }
    return Plan(**{**fields, **more})


def pod(rank: int, **more: Any) -> Pod:
    """A running pod of epoch 1."""
    fields: dict[str, Any] = {
        "name": f"md-0-e1-{rank}",
        "uid": f"uid-{rank}",
        "rank": rank,
        "epoch": 1,
        "node": "ab"[rank],
        "group": 0,
        "owner": "uid",
        "phase": "Running",
        "scheduled": True,
        "running": True,
    }
    return Pod(**{**fields, **more})


def group_status(phase: GroupPhase = GroupPhase.READY, **more: Any) -> Group:
    """``status.groups[0]`` of epoch 1."""
    ranks = tuple(Rank(rank=rank, node="ab"[rank], pod=f"md-0-e1-{rank}", state=RankPhase.SERVING) for rank in (0, 1))
    return Group(**{"index": 0, "epoch": 1, "state": phase, "ranks": ranks, **more})


def view(*pods: Pod, status: Group | None = None, made: Plan | None = None, spec_hash: str = "hash") -> GroupView:
    """A group of epoch 1 with these pods, or with all of them running."""
    planned = made or plan()
    epoch = Epoch(planned, spec_hash, "why", PROVEN, "digest", "uid-plan")
    bare = GroupView(0, epoch, (), (), (), planned.epoch, status)
    return bare.with_pods(pods or (pod(0), pod(1)))


def report(phase: GroupPhase | None, *ranks: RankPhase, silent: float = 0.0, since: float = 0.0, **more: Any) -> Report:
    """A report of rank 0; ``ranks``: their phases."""
    if phase is None:
        return Report(None, silent, since)
    told = [{"rank": rank, "node": "ab"[rank], "phase": state} for rank, state in enumerate(ranks)]
    state = {"uid": "uid", "index": 0, "epoch": 1, "phase": phase, "ranks": told, **more}
    return Report(GroupState.model_validate(state), silent, since)


def not_ready(name: str) -> dict[str, Node]:
    """The Nodes, with one that is not Ready."""
    return {**NODES, name: replace(NODES[name], ready=False)}
