"""What pods and plans take on each Mac: memory, ports, cables and queue pairs."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from thunderfleet_crds.exchange.plan import Plan, RankPlan

from thunderfleet_operator.observe.objects.metadata import GroupKey
from thunderfleet_operator.observe.objects.pods import Pod

K = TypeVar("K")
V = TypeVar("V")


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

    def without(self, group: GroupKey) -> "Usage":
        """The same after a group's pods and plan are gone. This value if it has none."""
        pods = {key: pod for key, pod in self.pods.items() if pod.group != group[1] or pod.owner != group[0]}
        if len(pods) == len(self.pods) and group not in self.plans and group not in self.held:
            return self
        return Usage(pods, _but(self.plans, group), _but(self.held, group))

    def placed(self, group: GroupKey, plan: Plan) -> "Usage":
        """The same after a group has got another plan. Its old pods stay until they end."""
        return Usage(self.pods, {**self.plans, group: plan}, _but(self.held, group))

    def pod(self, plan: Plan, rank: RankPlan) -> Pod | None:
        """The operator's pod of a rank."""
        found = self.pods.get(f"{plan.namespace}/{rank.pod}")
        return found if found is not None and (found.owner, found.group) == (plan.uid, plan.index) else None

    def _runs(self, plan: Plan, rank: RankPlan) -> bool:
        """Whether the pod of a rank is on its Mac and has not ended."""
        pod = self.pod(plan, rank)
        return pod is not None and _holds(pod) and pod.node == rank.node

    def taken(self) -> Taken:
        """The sums by Mac.

        A rank counts as in its plan until its pod is bound to the Mac; then the pod counts. A pod that is bound to no Mac
        does not count: anybody could create one that requests a whole Mac and is never scheduled.
        """
        return self.taken_after(Usage(), Taken())

    def taken_after(self, past: "Usage", taken: Taken) -> Taken:
        """The same as ``taken``, from what was ``taken`` with a ``past`` usage. Only Macs that differ are summed up again."""
        macs = self._changed_since(past)
        if not macs:
            return taken
        sums = _Sums(taken, macs)
        for pod in self.pods.values():
            if pod.node is not None and pod.node in macs and _holds(pod):
                sums.add_pod(pod.node, pod)
        for table, counts in ((self.plans, True), (self.held, False)):
            for plan in table.values():
                for rank in plan.ranks:
                    if rank.node in macs and (counts or self._runs(plan, rank)):
                        sums.add_rank(plan, rank, self.pod(plan, rank))
        return sums.taken()

    def _changed_since(self, past: "Usage") -> Set[str]:
        """The Macs for which the sums of two usages may differ."""
        macs, groups = set[str](), set[GroupKey]()
        for pod in _changed(past.pods, self.pods):
            if pod.node is not None:
                macs.add(pod.node)
            if pod.owner is not None:
                # What is taken for a rank depends on its pod, wherever that is.
                groups.add((pod.owner, pod.group))
        plans = [*_changed(past.plans, self.plans), *_changed(past.held, self.held)]
        plans += [table[key] for key in groups for table in (self.plans, self.held) if key in table]
        macs.update(rank.node for plan in plans for rank in plan.ranks)
        return macs


class _Sums:
    """Adds up what is taken on ``macs``. What is taken elsewhere stays as it is in ``taken``."""

    def __init__(self, taken: Taken, macs: Set[str]) -> None:
        self._memory, self._ports = _elsewhere(taken.memory, macs), _elsewhere(taken.ports, macs)
        self._pods = _elsewhere(taken.pods, macs)
        self._groups = set(taken.groups - macs)
        self._addresses = {address for address in taken.addresses if address[0] not in macs}
        self._queue_pairs = {device: count for device, count in taken.queue_pairs.items() if device[0] not in macs}

    def _add(self, node: str, memory: int, ports: frozenset[int]) -> None:
        self._memory[node] = self._memory.get(node, 0) + memory
        self._pods[node] = self._pods.get(node, 0) + 1
        if ports:
            self._ports[node] = self._ports.get(node, frozenset()) | ports

    def add_pod(self, node: str, pod: Pod) -> None:
        """A pod that is bound to a Mac."""
        self._add(node, pod.memory_bytes, pod.ports)
        if pod.owner is not None:
            self._groups.add(node)

    def add_rank(self, plan: Plan, rank: RankPlan, pod: Pod | None) -> None:
        """A rank: its cables, and its room unless its pod is bound or has ended.

        It takes a queue pair for each rank that a device faces; in a ring of two, one for each direction.
        """
        each = 2 if plan.jaccl_ring and plan.world_size == 2 else 1
        for device in rank.devices:
            if device is not None:
                self._queue_pairs[rank.node, device] = self._queue_pairs.get((rank.node, device), 0) + each
        if rank.ring_address:
            self._addresses.add((rank.node, rank.ring_address))
        if pod is None or not (pod.scheduled or pod.ended):
            self._add(rank.node, rank.memory_bytes, frozenset((rank.gateway_port, rank.control_port, *rank.ring_ports)))
            self._groups.add(rank.node)

    def taken(self) -> Taken:
        """All sums."""
        groups, addresses = frozenset(self._groups), frozenset(self._addresses)
        return Taken(self._memory, self._ports, groups, addresses, self._queue_pairs, self._pods)


def _holds(pod: Pod) -> bool:
    return pod.scheduled and not pod.ended


def _but(plans: Mapping[GroupKey, Plan], group: GroupKey) -> Mapping[GroupKey, Plan]:
    return {key: plan for key, plan in plans.items() if key != group} if group in plans else plans


def _elsewhere(table: Mapping[str, V], macs: Set[str]) -> dict[str, V]:
    found = dict(table)
    for mac in macs:
        found.pop(mac, None)
    return found


def _changed(past: Mapping[K, V], now: Mapping[K, V]) -> Iterator[V]:
    """The values of both that are not the same object in the other."""
    if past is now:
        return
    for key, value in now.items():
        before = past.get(key)
        if before is not value:
            yield value
            if before is not None:
                yield before
    for key in past.keys() - now.keys():
        yield past[key]
