"""What pods and plans take on each Mac: memory, ports, cables and queue pairs."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from thunderfleet_crds.plan import Plan, RankPlan

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

    def replaced(self, macs: Set[str], new: "Taken") -> "Taken":
        """The same, with what ``new`` has of these Macs, and nothing else of them."""
        return Taken(
            {**{node: size for node, size in self.memory.items() if node not in macs}, **new.memory},
            {**{node: ports for node, ports in self.ports.items() if node not in macs}, **new.ports},
            (self.groups - macs) | new.groups,
            frozenset([at for at in self.addresses if at[0] not in macs]) | new.addresses,
            {**{at: count for at, count in self.queue_pairs.items() if at[0] not in macs}, **new.queue_pairs},
        )

    def with_ports(self, node: str, ports: frozenset[int]) -> "Taken":
        """The same, with ports that a program other than a pod holds."""
        return replace(self, ports={**self.ports, node: self.ports.get(node, frozenset()) | ports})


class _Share(NamedTuple):
    """What one pod, or one rank of a plan, takes on its Mac. ``memory``: None if the rank's pod stands for it."""

    group: GroupKey
    memory: int | None
    ports: frozenset[int] = frozenset()
    in_use: bool = True
    address: str | None = None
    queue_pairs: tuple[tuple[str, int], ...] = ()
    """By RDMA device."""


@dataclass(frozen=True)
class Usage:
    """Everything that takes something: pods by ``namespace/name``, and each group's newest plan.

    ``held``: plans that take nothing by themselves, such as those that cannot be verified or are being replaced; what their
    running pods hold counts.
    """

    pods: Mapping[str, Pod] = field(default_factory=dict)
    plans: Mapping[GroupKey, Plan] = field(default_factory=dict)
    held: Mapping[GroupKey, Plan] = field(default_factory=dict)

    def has(self, group: GroupKey) -> bool:
        """Whether a group takes anything."""
        return group in self.plans or group in self.held or group in self._with_pods

    @cached_property
    def _with_pods(self) -> frozenset[GroupKey]:
        return frozenset([(pod.owner, pod.group) for pod in self.pods.values()])

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

    @cached_property
    def _shares(self) -> dict[str, list[_Share]]:
        """By Mac.

        A rank whose pod has been bound to its Mac counts as that pod, and as its plan says until then. A pod that is bound to
        no Mac takes nothing by itself: anybody could create one that asks for a whole Mac and is never scheduled.
        """
        found: dict[str, list[_Share]] = {}
        for pod in self.pods.values():
            if pod.node is not None and _holds(pod):
                share = _Share((pod.owner, pod.group), pod.memory_bytes, pod.ports, pod.owner is not None)
                found.setdefault(pod.node, []).append(share)
        claims = [(key, plan, plan.ranks) for key, plan in self.plans.items()]
        claims += [(key, plan, tuple(self._running(plan))) for key, plan in self.held.items()]
        for key, plan, ranks in claims:
            for rank in ranks:
                found.setdefault(rank.node, []).append(self._planned(key, plan, rank))
        return found

    def _planned(self, group: GroupKey, plan: Plan, rank: RankPlan) -> _Share:
        address, pairs = rank.ring_address or None, _queue_pairs(plan, rank)
        made = self.pod(plan, rank)
        if made is not None and (made.scheduled or made.ended):
            return _Share(group, None, in_use=False, address=address, queue_pairs=pairs)
        ports = frozenset((rank.gateway_port, rank.control_port, *rank.ring_ports))
        return _Share(group, rank.memory_bytes, ports, address=address, queue_pairs=pairs)

    @cached_property
    def _taken(self) -> Taken:
        return _sums(self._shares)

    @cached_property
    def _macs_of(self) -> dict[GroupKey, set[str]]:
        """By group, the Macs on which it takes something."""
        found: dict[GroupKey, set[str]] = {}
        for node, shares in self._shares.items():
            for share in shares:
                found.setdefault(share.group, set()).add(node)
        return found

    def taken(self, without: GroupKey | None = None) -> Taken:
        """The sums by Mac. ``without``: a group that does not count, because it makes room for its next placement."""
        macs = self._macs_of.get(without) if without is not None else None
        if not macs:
            return self._taken
        left = {node: [share for share in self._shares[node] if share.group != without] for node in macs}
        return self._taken.replaced(macs, _sums(left))


def _sums(shares: Mapping[str, Iterable[_Share]]) -> Taken:
    memory: dict[str, int] = {}
    ports: dict[str, frozenset[int]] = {}
    groups: set[str] = set()
    addresses: set[tuple[str, str]] = set()
    queue_pairs: dict[tuple[str, str], int] = {}
    for node, all_of in shares.items():
        for share in all_of:
            if share.memory is not None:
                memory[node] = memory.get(node, 0) + share.memory
            if share.ports:
                ports[node] = ports.get(node, frozenset()) | share.ports
            if share.in_use:
                groups.add(node)
            if share.address is not None:
                addresses.add((node, share.address))
            for device, count in share.queue_pairs:
                queue_pairs[node, device] = queue_pairs.get((node, device), 0) + count
    return Taken(memory, ports, frozenset(groups), frozenset(addresses), queue_pairs)


def _holds(pod: Pod) -> bool:
    return pod.scheduled and not pod.ended


def _but(plans: Mapping[GroupKey, Plan], group: GroupKey) -> dict[GroupKey, Plan]:
    return {key: plan for key, plan in plans.items() if key != group}


def _queue_pairs(plan: Plan, rank: RankPlan) -> tuple[tuple[str, int], ...]:
    """By RDMA device of a rank: one for each rank that the device faces; in a ring of two, one for each direction."""
    each = 2 if plan.jaccl_ring and plan.world_size == 2 else 1
    return tuple((device, each) for device in rank.devices if device is not None)
