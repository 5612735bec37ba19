"""What pods and plans take on each Mac: memory, ports, cables and queue pairs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from thunderfleet_crds.exchange.plan import Plan, RankPlan

from thunderfleet_operator.observe.objects.metadata import GroupKey
from thunderfleet_operator.observe.objects.pods import Pod


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken on each Mac."""

    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by Mac."""
    ports: Mapping[str, frozenset[int]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    """Macs on which a group has a rank."""
    addresses: frozenset[tuple[str, str]] = frozenset()
    """Mac and address of each cable that a ring uses."""
    queue_pairs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Queue pairs in use, by Mac and RDMA device."""
    pods: Mapping[str, int] = field(default_factory=dict)
    """Number of pods by Mac, with those that plans are about to create."""

    def with_ports(self, node: str, ports: frozenset[int]) -> "Taken":
        """The same, with ports that programs outside of pods use."""
        return replace(self, ports={**self.ports, node: self.ports.get(node, frozenset()) | ports})


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything that reserves resources: pods by ``namespace/name``, and each group's newest plan.

    ``held``: plans that reserve nothing themselves, such as those that cannot be verified or are being replaced. Only their
    running pods count.
    """

    pods: Mapping[str, Pod] = field(default_factory=dict)
    plans: Mapping[GroupKey, Plan] = field(default_factory=dict)
    held: Mapping[GroupKey, Plan] = field(default_factory=dict)

    def has(self, group: GroupKey) -> bool:
        """Whether a group takes anything."""
        planned = group in self.plans or group in self.held
        return planned or any((pod.owner, pod.group) == group for pod in self.pods.values())

    def without(self, group: GroupKey) -> "Usage":
        """The same after a group's pods and plan are gone."""
        pods = {key: pod for key, pod in self.pods.items() if (pod.owner, pod.group) != group}
        return Usage(pods, _but(self.plans, group), _but(self.held, group))

    def placed(self, group: GroupKey, plan: Plan) -> "Usage":
        """The same after a group has got another plan. Its old pods stay until they end."""
        return Usage(self.pods, {**self.plans, group: plan}, _but(self.held, group))

    def pod(self, plan: Plan, rank: RankPlan) -> Pod | None:
        """The operator's pod of a rank."""
        found = self.pods.get(f"{plan.namespace}/{rank.pod}")
        return found if found is not None and (found.owner, found.group) == (plan.uid, plan.index) else None

    def _running(self, plan: Plan) -> list[RankPlan]:
        """The ranks whose pod is on its Mac and has not ended."""
        pods = [(rank, self.pod(plan, rank)) for rank in plan.ranks]
        return [rank for rank, pod in pods if pod is not None and _holds(pod) and pod.node == rank.node]

    def taken(self, without: GroupKey | None = None) -> Taken:
        """The sums by Mac. ``without``: a group that does not count, because it makes room for its next placement.

        A rank counts as in its plan until its pod is bound to the Mac; then the pod counts. A pod that is bound to no Mac
        does not count: anybody could create one that requests a whole Mac and is never scheduled.
        """
        memory: dict[str, int] = {}
        ports: dict[str, frozenset[int]] = {}
        groups: set[str] = set()
        pods: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.node is None or not _holds(pod) or (without is not None and (pod.owner, pod.group) == without):
                continue
            memory[pod.node] = memory.get(pod.node, 0) + pod.memory_bytes
            pods[pod.node] = pods.get(pod.node, 0) + 1
            if pod.ports:
                ports[pod.node] = ports.get(pod.node, frozenset()) | pod.ports
            if pod.owner is not None:
                groups.add(pod.node)
        addresses: set[tuple[str, str]] = set()
        queue_pairs: dict[tuple[str, str], int] = {}
        claims = [(key, plan, plan.ranks) for key, plan in self.plans.items()]
        claims += [(key, plan, tuple(self._running(plan))) for key, plan in self.held.items()]
        for key, plan, ranks in claims:
            if key == without:
                continue
            for device, count in _queue_pairs(plan, ranks).items():
                queue_pairs[device] = queue_pairs.get(device, 0) + count
            addresses |= {(rank.node, rank.ring_address) for rank in ranks if rank.ring_address}
            for rank in ranks:
                made = self.pod(plan, rank)
                if made is not None and (made.scheduled or made.ended):
                    continue
                memory[rank.node] = memory.get(rank.node, 0) + rank.memory_bytes
                pods[rank.node] = pods.get(rank.node, 0) + 1
                held = frozenset((rank.gateway_port, rank.control_port, *rank.ring_ports))
                ports[rank.node] = ports.get(rank.node, frozenset()) | held
                groups.add(rank.node)
        return Taken(memory, ports, frozenset(groups), frozenset(addresses), queue_pairs, pods)


def _holds(pod: Pod) -> bool:
    return pod.scheduled and not pod.ended


def _but(plans: Mapping[GroupKey, Plan], group: GroupKey) -> dict[GroupKey, Plan]:
    return {key: plan for key, plan in plans.items() if key != group}


def _queue_pairs(plan: Plan, ranks: Iterable[RankPlan]) -> dict[tuple[str, str], int]:
    """By Mac and RDMA device: one for each rank that the device faces; in a ring of two, one for each direction."""
    found: dict[tuple[str, str], int] = {}
    each = 2 if plan.jaccl_ring and plan.world_size == 2 else 1
    for rank in ranks:
        for device in rank.devices:
            if device is not None:
                found[rank.node, device] = found.get((rank.node, device), 0) + each
    return found
