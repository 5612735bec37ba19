"""What pods and plans take on each Mac: memory, ports, cables and queue pairs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from thunderfleet_crds.plan import Plan

from thunderfleet_operator.observe.objects import GroupKey
from thunderfleet_operator.observe.pods import Pod


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken on each Mac."""

    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by Mac."""
    ports: Mapping[str, frozenset[int]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    """Macs on which a group has a rank."""
    addresses: frozenset[tuple[str, str]] = frozenset()
    """Mac and address of each cable that a ring runs over."""
    queue_pairs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By Mac and RDMA device."""

    def with_ports(self, node: str, ports: frozenset[int]) -> "Taken":
        """The same, with ports that a program other than a pod holds."""
        return replace(self, ports={**self.ports, node: self.ports.get(node, frozenset()) | ports})


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything that takes something: pods by ``namespace/name``, and each group's newest plan."""

    pods: Mapping[str, Pod] = field(default_factory=dict)
    plans: Mapping[GroupKey, Plan] = field(default_factory=dict)

    def without(self, group: GroupKey) -> "Usage":
        """The same after a group's pods and plan are gone."""
        pods = {key: pod for key, pod in self.pods.items() if (pod.owner, pod.group) != group}
        return Usage(pods, {key: plan for key, plan in self.plans.items() if key != group})

    def placed(self, group: GroupKey, plan: Plan) -> "Usage":
        """The same after a group has got another plan. Its old pods stay until they end."""
        return replace(self, plans={**self.plans, group: plan})

    def taken(self, without: GroupKey | None = None) -> Taken:
        """The sums by Mac. ``without``: a group that does not count, because it makes room for its next placement.

        A rank whose pod exists counts as that pod, and as its plan says until then.
        """
        memory: dict[str, int] = {}
        ports: dict[str, frozenset[int]] = {}
        groups: set[str] = set()
        for pod in self.pods.values():
            if pod.node is None or pod.ended or (without is not None and (pod.owner, pod.group) == without):
                continue
            memory[pod.node] = memory.get(pod.node, 0) + pod.memory_bytes
            if pod.ports:
                ports[pod.node] = ports.get(pod.node, frozenset()) | pod.ports
            if pod.owner is not None:
                groups.add(pod.node)
        addresses: set[tuple[str, str]] = set()
        queue_pairs: dict[tuple[str, str], int] = {}
        for key, plan in self.plans.items():
            if key == without:
                continue
            for device, count in _queue_pairs(plan).items():
                queue_pairs[device] = queue_pairs.get(device, 0) + count
            addresses |= {(rank.node, rank.ring_address) for rank in plan.ranks if rank.ring_address}
            for rank in plan.ranks:
                if f"{plan.namespace}/{rank.pod}" in self.pods:
                    continue
                memory[rank.node] = memory.get(rank.node, 0) + rank.memory_bytes
                held = frozenset((rank.gateway_port, rank.control_port, *rank.ring_ports))
                ports[rank.node] = ports.get(rank.node, frozenset()) | held
                groups.add(rank.node)
        return Taken(memory, ports, frozenset(groups), frozenset(addresses), queue_pairs)


def _queue_pairs(plan: Plan) -> dict[tuple[str, str], int]:
    """By Mac and RDMA device: one for each rank that the device faces; in a ring of two, one for each direction."""
    found: dict[tuple[str, str], int] = {}
    each = 2 if plan.jaccl_ring and plan.world_size == 2 else 1
    for rank in plan.ranks:
        for device in rank.devices:
            if device is not None:
                found[rank.node, device] = found.get((rank.node, device), 0) + each
    return found
