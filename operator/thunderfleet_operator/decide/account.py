"""The running account of one round: what is taken grows with each group that is placed."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from thunderfleet_crds.modeldeployment import AvoidedLink
from thunderfleet_crds.plan import Plan

from thunderfleet_operator.decide.avoided import without
from thunderfleet_operator.observe.fleet import occupied
from thunderfleet_operator.observe.objects import GroupKey
from thunderfleet_operator.observe.usage import Taken, Usage
from thunderfleet_operator.placement import Fleet

RESERVED = ""
"""The uid of plans whose room is reserved."""


@dataclass(frozen=True, slots=True)
class Account:
    """``taken`` are the sums of ``usage``, and ``fleet`` is made with them."""

    fleet: Fleet
    usage: Usage
    taken: Taken

    def without(self, group: GroupKey) -> tuple[Fleet, Taken]:
        """The fleet and the usage without this group's own use."""
        if not self.usage.has(group):
            return self.fleet, self.taken
        taken = self.usage.taken(group)
        return occupied(self.fleet, self.taken, taken), taken

    def placed(self, group: GroupKey, plan: Plan) -> "Account":
        """The account after a group has been placed."""
        usage = self.usage.placed(group, plan)
        taken = usage.taken()
        return Account(occupied(self.fleet, self.taken, taken), usage, taken)

    def reserving(self, plans: Iterable[Plan]) -> "Account":
        """The account in which the room of these plans is taken as well, whatever has become of their pods."""
        usage = self.usage
        for number, plan in enumerate(plans):
            # Under a key of their own, so that no pod stands for a rank: a pod that ends leaves its room to nobody else.
            usage = usage.placed((RESERVED, number), plan.model_copy(update={"uid": RESERVED}))
        if usage is self.usage:
            return self
        taken = usage.taken()
        return Account(occupied(self.fleet, self.taken, taken), usage, taken)

    def avoiding(self, links: Collection[AvoidedLink], now: datetime) -> "Account":
        """The account, in which nothing new is placed on these cables."""
        return replace(self, fleet=without(self.fleet, links, now)) if links else self

    def quarantined(self, node: str, reason: str) -> "Account":
        """The account with one Mac out of placement."""
        mac = self.fleet.macs.get(node)
        if mac is None:
            return self
        return replace(self, fleet=self.fleet.changed([replace(mac, quarantine=reason)]))
