"""Pods that a queue holds back with scheduling gates, as Kueue documents it for pod groups.

Kueue itself is not here: a policy of the API server gates pods as its webhook does, and the test admits and preempts as its
controller does.
"""

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import yaml
from thunderfleet_lib.quantity import to_bytes

from tests.support.line import Deploy, Deployment, Line, condition
from tests.support.waiting import until

Json = dict[str, Any]

RESOURCE = "thunderfleet.io/gpu-memory"
GATE = "kueue.x-k8s.io/admission"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "queues-important"
KUEUE = f"""
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: {PRIORITY}}}
value: 1234
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: like-kueue}}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
      - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
  matchConditions:
    - {{name: queued, expression: "'{QUEUE}' in object.metadata.?labels.orValue({{}})"}}
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: >-
          Object{{
            metadata: Object.metadata{{labels: {{'kueue.x-k8s.io/managed': 'true'}}}},
            spec: Object.spec{{schedulingGates: [Object.spec.schedulingGates{{name: '{GATE}'}}]}}
          }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: like-kueue}}
spec: {{policyName: like-kueue}}
"""


@pytest.fixture
def kueue(line: Line) -> Iterator[None]:
    """Gates pods with the label of a queue."""
    line.kubectl("apply", "-f", "-", text=KUEUE)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": "default", "labels": {QUEUE: "macs"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }

    def gates() -> bool:
        made = line.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=yaml.safe_dump(pod))
        return "schedulingGates" in json.loads(made)["spec"]

    until(gates, "pods with a queue are gated")
    yield
    line.kubectl("delete", "--ignore-not-found", "-f", "-", text=KUEUE)


def pods(held: Deployment, epoch: int) -> list[Json]:
    """The pods of a placement that are not about to go."""
    found = held.line.items("pods", "-n", held.namespace, "-l", f"thunderfleet.io/epoch={epoch}")
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def gated(held: Deployment, epoch: int) -> list[Json]:
    """Both pods of a placement, which are gated."""

    def both() -> list[Json]:
        found = pods(held, epoch)
        return found if len(found) == 2 and all(pod["spec"].get("schedulingGates") == [{"name": GATE}] for pod in found) else []

    found = held.until(both, f"two gated pods of epoch {epoch}")
    assert found
    return found


def admit(held: Deployment, found: list[Json]) -> None:
    """Removes the gates, as Kueue does once there is room for the whole group."""
    for pod in found:
        held.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", '{"spec":{"schedulingGates":[]}}')


def preempt(held: Deployment, found: list[Json]) -> None:
    """Deletes the pods, as Kueue does for a workload with a higher priority."""
    why = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted", "message": "preempted"}
    for pod in found:
        patch = json.dumps({"status": {"conditions": [why]}})
        held.kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=strategic", "-p", patch)
    held.kubectl("delete", "pod", "--wait=false", *(pod["metadata"]["name"] for pod in found))


def test_a_group_waits_for_its_queue_and_again_when_it_is_preempted(line: Line, deploy: Deploy, kueue: None) -> None:
    metadata = {"labels": {QUEUE: "macs", "team": "search"}, "annotations": {"note": "first"}}
    held = deploy("held", podMetadata=metadata, priorityClassName=PRIORITY)
    first = gated(held, 1)
    labels, notes = [[pod["metadata"][part] for pod in first] for part in ("labels", "annotations")]
    assert {one["kueue.x-k8s.io/pod-group-name"] for one in labels} == {f"{held.name}-0-e1"}
    assert {(one["kueue.x-k8s.io/pod-group-total-count"], one["note"]) for one in notes} == {("2", "first")}
    assert {(one["team"], one["kueue.x-k8s.io/managed"]) for one in labels} == {("search", "true")}
    assert {pod["spec"]["priority"] for pod in first} == {1234}
    held.until_condition("Ready", "False", "SchedulingGated", says=f"its scheduling gates are removed: {GATE}")
    held.until_condition("Reconciling", "True", "Progressing")

    admit(held, first)
    held.until_ready()
    held.kubectl("wait", f"md/{held.name}", "--for=condition=Reconciling=false", "--timeout=30s")
    assert condition(held.get(), "Stalled")["status"] == "False"
    assert held.group()["runnerVersion"] == version("thunderfleet")
    assert held.until(lambda: held.status.get("benchmark", {}).get("mlxVersion"), "a benchmark") == version("mlx")

    # Other metadata and another priority are for later pods.
    held.patch({"podMetadata": {"annotations": {"note": "second"}}, "priorityClassName": None})
    held.until_condition("Reconciling", "False", "Ready")
    assert [pod["metadata"]["uid"] for pod in pods(held, 1)] == [pod["metadata"]["uid"] for pod in first]

    preempt(held, first)
    again = gated(held, 2)
    assert {pod["metadata"]["annotations"]["note"] for pod in again} == {"second"}
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] for pod in again} == {f"{held.name}-0-e2"}
    held.until_condition("Ready", "False", "SchedulingGated")
    group = held.group()
    assert (group["restarts"], group["lastFailure"]["reason"], group["epoch"]) == (0, "Evicted", 2)


def usage(found: list[Json], resource: str) -> int:
    """What the containers of some pods request (bytes)."""
    requests = [one["resources"]["requests"] for pod in found for one in pod["spec"]["containers"]]
    return sum(to_bytes(one[resource]) for one in requests)


class Queue:
    """A queue with a quota of GPU memory, as the ``nominalQuota`` of a ClusterQueue. ``free``: bytes."""

    def __init__(self, free: int) -> None:
        self.free = free

    def admits(self, held: Deployment, found: list[Json]) -> bool:
        """Whether there is room for a whole group, which may go on then."""
        asked = usage(found, RESOURCE)
        if asked > self.free:
            return False
        self.free -= asked
        admit(held, found)
        return True


def test_a_queue_counts_the_gpu_memory_that_placement_counts(line: Line, deploy: Deploy, kueue: None) -> None:
    first, second = (deploy(name, podMetadata={"labels": {QUEUE: "macs"}}) for name in ("one", "two"))
    of_first, of_second = gated(first, 1), gated(second, 1)
    for held, found in ((first, of_first), (second, of_second)):
        # The status follows the pods.
        held.until(held.ranks, "its ranks in the status")
        reserved = sum(rank["memoryBytes"] for rank in held.ranks())
        assert usage(found, RESOURCE) == usage(found, "memory") == reserved > 0
    queue = Queue(usage(of_first, RESOURCE) + usage(of_second, RESOURCE) - 1)
    assert queue.admits(first, of_first) and not queue.admits(second, of_second)
    first.until_ready()
    second.until_condition("Ready", "False", "SchedulingGated")
    first.patch({"suspend": True})
    until(lambda: not pods(first, 1), "the pods of the first group are gone")
    queue.free += usage(of_first, RESOURCE)
    assert queue.admits(second, of_second)
    second.until_ready()
    assert usage(pods(second, 1), RESOURCE) == sum(rank["memoryBytes"] for rank in second.ranks())
